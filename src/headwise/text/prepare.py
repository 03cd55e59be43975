"""From a corpus to token files: measure, learn the tokenizer, split, encode; each step in bounded memory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import groupby, takewhile
from operator import itemgetter
from pathlib import Path
from typing import Any

from headwise.files import replacing, write_json
from headwise.text.corpus import Corpus
from headwise.text.definition import Kind
from headwise.text.token_file import TokenFile, write_tokens
from headwise.text.tokenizer import Tokenizer, describe_unknown

_FORMAT = 1
_USUAL_FRACTION = 0.1


class TooShortError(ValueError):
    """A part of a text holds too few tokens for one block."""


@dataclass(frozen=True)
class Prepared:
    """A corpus as token files, with what made them."""

    tokenizer: Tokenizer
    train: TokenFile
    validation: TokenFile | None
    characters: int  # of the whole text
    text_hash: str  # sha256 (hex) of the whole normalised text in UTF-8
    reused: bool  # found in the folder, not made by this call


@dataclass(frozen=True)
class Survey:
    """What one reading of a corpus tells."""

    characters: int
    sha256: str
    first_seen: dict[str, int]  # every character of the text and where it first stands


def survey(corpus: Corpus) -> Survey:
    """Read a corpus once: its length, the sha256 of its UTF-8 text, and its alphabet.

    Raises:
        OSError, ValueError: see `Corpus.chunks`.
    """
    digest = hashlib.sha256()
    first_seen: dict[str, int] = {}
    characters = 0
    for chunk in corpus.chunks():
        digest.update(chunk.encode("utf-8"))
        for character in set(chunk) - first_seen.keys():
            first_seen[character] = characters + chunk.index(character)
        characters += len(chunk)
    return Survey(characters, digest.hexdigest(), first_seen)


def prepare(
    corpus: Corpus,
    tokenizer: Kind | Tokenizer,
    folder: Path,
    *,
    block_size: int,
    validation_fraction: float | None = None,
    vocab_size: int = 1024,
) -> Prepared:
    """Turn a corpus into checked token files, in bounded memory.

    The first `int(characters * (1 - validation_fraction))` characters are for training, the rest for
    validation. A character tokenizer learns the alphabet of the whole text, a BPE its merges from the
    training part alone. `folder` receives `tokenizer.json`, `train.tokens`, `validation.tokens` and
    `corpus.json`; if it holds them already for the same text, tokenizer and split, they are used as they are.
    Files of other names are left alone; after an error the folder is as it was.

    Args:
        corpus: the text.
        tokenizer: `"char"` or `"bpe"` to learn one, or a tokenizer to encode with.
        folder: where the files go; made if need be.
        block_size: the training window; each part must hold at least `block_size + 1` tokens.
        validation_fraction: at least 0 and below 1; 0 makes `validation` None. By default a tenth, or 0 where
            the text is long enough for a block but not for two parts.
        vocab_size: tokens a `"bpe"` tokenizer should learn; nothing else looks at it.

    Raises:
        ValueError: an argument out of range, a text that is empty, too short for a block, or not UTF-8, or
            characters that the given tokenizer does not know.
        OSError: reading or writing failed.
    """
    if block_size < 1:
        raise ValueError(f"block_size must be at least 1; got {block_size}")
    if validation_fraction is None:
        again = partial(prepare, corpus, tokenizer, folder, block_size=block_size, vocab_size=vocab_size)
        try:
            return again(validation_fraction=_USUAL_FRACTION)
        except TooShortError:
            return again(validation_fraction=0.0)
    if not 0 <= validation_fraction < 1:
        raise ValueError(f"validation_fraction must be at least 0 and below 1; got {validation_fraction}")
    folder = Path(folder)
    seen = survey(corpus)
    if seen.characters == 0:
        raise ValueError(f"the text {corpus.name!r} is empty")
    # As a fraction of the number the user wrote: 0.9 in floating point can cost the last character.
    split = int(seen.characters * (1 - Fraction(str(validation_fraction))))
    kind = tokenizer.kind if isinstance(tokenizer, Tokenizer) else tokenizer
    has_validation = validation_fraction > 0

    def check(train: int, validation: int) -> None:
        counts = {"training": train, "validation": validation} if has_validation else {"training": train}
        _check_lengths(corpus.name, counts, block_size, validation_fraction)

    if kind == "char":  # one token per character, so this is known before any work
        check(split, seen.characters - split)
    if isinstance(tokenizer, Tokenizer) and tokenizer.alphabet is not None:
        unknown = {item: [at] for item, at in seen.first_seen.items() if item not in tokenizer.alphabet}
        if unknown:
            raise ValueError(f"the given tokenizer does not fit {corpus.name!r}: {describe_unknown(unknown)}")

    settings = {
        "format": _FORMAT,
        "text_hash": seen.sha256,
        "characters": seen.characters,
        "validation_fraction": validation_fraction,
        "tokenizer": tokenizer.hash if isinstance(tokenizer, Tokenizer) else tokenizer,
        "vocab_size": vocab_size if tokenizer == "bpe" else None,
    }
    found = _open_prepared(folder, settings, has_validation)
    if found is not None:
        check(found.train.count, found.validation.count if found.validation else 0)
        return found

    parts = partial(_parts, corpus, split, seen)
    if isinstance(tokenizer, Tokenizer):
        learnt = tokenizer
    elif tokenizer == "char":
        learnt = Tokenizer.from_alphabet(seen.first_seen)
    else:
        training = (text for _, text in takewhile(lambda part: part[0] == "train", parts()))
        learnt = Tokenizer.train(tokenizer, training, vocab_size=vocab_size)

    names = ["train", "validation"] if has_validation else ["train"]
    counts = dict.fromkeys(names, 0)
    with _made_for_success(folder), ExitStack() as stack:
        files = {name: stack.enter_context(replacing(folder / f"{name}.tokens")) for name in names}
        for name, group in groupby(parts(), key=itemgetter(0)):
            counts[name] = write_tokens(files[name], learnt.encode_chunks(text for _, text in group), learnt)
        check(counts["train"], counts.get("validation", 0))
        # From here to the last line the folder holds old and new files, so nothing may vouch for them.
        (folder / "corpus.json").unlink(missing_ok=True)
    learnt.save(folder / "tokenizer.json")
    if not has_validation:
        (folder / "validation.tokens").unlink(missing_ok=True)
    write_json(folder / "corpus.json", {"name": corpus.name, **settings, "tokens": counts})
    made = _open_prepared(folder, settings, has_validation)
    if made is None:
        raise OSError(f"the token files in {folder} changed while they were being written")
    return replace(made, reused=False)


def _parts(corpus: Corpus, split: int, seen: Survey) -> Iterator[tuple[str, str]]:
    """Read the corpus as ("train" or "validation", text) pieces; raise if it is not the text surveyed."""
    changed = ValueError(f"the text {corpus.name!r} changed while it was being read; start again")
    digest = hashlib.sha256()
    position = 0
    for chunk in corpus.chunks():
        if not set(chunk) <= seen.first_seen.keys():  # or its tokenizer would be blamed
            raise changed
        digest.update(chunk.encode("utf-8"))
        cut = min(max(split - position, 0), len(chunk))
        if cut:
            yield "train", chunk[:cut]
        if cut < len(chunk):
            yield "validation", chunk[cut:]
        position += len(chunk)
    if digest.hexdigest() != seen.sha256:
        raise changed


def _open_prepared(folder: Path, settings: dict[str, Any], has_validation: bool) -> Prepared | None:
    """Open what `folder` holds, or return None if it was made from something else or is not whole."""
    try:
        description = json.loads((folder / "corpus.json").read_text(encoding="utf-8"))
        if any(description[name] != value for name, value in settings.items()):
            return None
        tokenizer = Tokenizer.from_file(folder / "tokenizer.json")
        train = TokenFile.open(folder / "train.tokens", tokenizer)
        validation = TokenFile.open(folder / "validation.tokens", tokenizer) if has_validation else None
        counts = {"train": train.count} | ({"validation": validation.count} if validation else {})
        if description["tokens"] != counts:
            return None
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return Prepared(tokenizer, train, validation, settings["characters"], settings["text_hash"], reused=True)


def _check_lengths(name: str, counts: dict[str, int], block_size: int, validation_fraction: float) -> None:
    for part, count in counts.items():
        if count <= block_size:
            largest = min(counts.values()) - 1
            fits = f"the largest block_size that fits is {largest}" if largest > 0 else "no block_size fits"
            advice = ["a longer text"] + ["a smaller block_size"] * (largest > 0)
            if validation_fraction:
                advice.append(f"another validation_fraction (now {validation_fraction}; 0 for none)")
            raise TooShortError(
                f"the {part} part of the text {name!r} has {count} tokens, but block_size {block_size} needs "
                f"at least {block_size + 1}: {fits}; use {' or '.join(advice)}"
            )


@contextmanager
def _made_for_success(folder: Path) -> Iterator[None]:
    """Take away the folders that were not there before, if the block raises."""
    missing = [item for item in (folder, *folder.parents) if not item.exists()]
    try:
        yield
    except BaseException:
        for item in missing:
            with suppress(OSError):  # not empty: someone else put something there
                item.rmdir()
        raise
