"""From a corpus to token files: measure, learn the tokenizer, split, encode; each step in bounded memory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import groupby, takewhile
from operator import itemgetter
from pathlib import Path
from typing import Any

from headwise.files import replacing, write_json
from headwise.text.corpus import Corpus
from headwise.text.definition import Kind
from headwise.text.token_file import TokenFile, write_tokens
from headwise.text.tokenizer import Tokenizer, describe_unknown

DESCRIPTION, TOKENIZER = "corpus.json", "tokenizer.json"
TRAIN, VALIDATION = "train", "validation"
_SPOKEN = {TRAIN: "training", VALIDATION: "validation"}
_FORMAT = 1
USUAL_FRACTION = 0.1


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
    if validation_fraction is not None and not 0 <= validation_fraction < 1:
        raise ValueError(f"validation_fraction must be at least 0 and below 1; got {validation_fraction}")
    folder = Path(folder)
    seen = survey(corpus)
    if seen.characters == 0:
        raise ValueError(f"the text {corpus.name!r} is empty")
    if isinstance(tokenizer, Tokenizer) and tokenizer.alphabet is not None:
        unknown = {item: [at] for item, at in seen.first_seen.items() if item not in tokenizer.alphabet}
        if unknown:
            raise ValueError(f"the given tokenizer does not fit {corpus.name!r}: {describe_unknown(unknown)}")
    if validation_fraction is None:
        try:
            return _prepare(_Split(corpus, seen, USUAL_FRACTION), tokenizer, folder, block_size, vocab_size)
        except TooShortError:
            validation_fraction = 0.0
    return _prepare(_Split(corpus, seen, validation_fraction), tokenizer, folder, block_size, vocab_size)


def open_prepared(folder: Path | str) -> Prepared:
    """Open the token files that `prepare` has left in `folder`.

    Raises:
        OSError: one of them is missing or cannot be read.
        ValueError: one is damaged, or they do not belong together.
    """
    folder = Path(folder)
    about = _description(folder)
    tokenizer = Tokenizer.from_file(folder / TOKENIZER)
    train = TokenFile(_file(folder, TRAIN), tokenizer)
    validation = None
    try:
        if about["validation_fraction"]:
            validation = TokenFile(_file(folder, VALIDATION), tokenizer)
        if about["tokens"] != _counts(train, validation):
            raise ValueError(f"{folder / DESCRIPTION} does not belong to the token files beside it")
        return Prepared(tokenizer, train, validation, about["characters"], about["text_hash"], reused=True)
    except KeyError as error:
        raise ValueError(f"{folder / DESCRIPTION} is damaged: it lacks {error}") from None


@dataclass(frozen=True)
class _Split:
    """A text that was surveyed, and where its training part ends."""

    corpus: Corpus
    seen: Survey
    validation_fraction: float

    @property
    def train_characters(self) -> int:
        # As a fraction of the number the user wrote: 0.9 in floating point can cost the last character.
        return int(self.seen.characters * (1 - Fraction(str(self.validation_fraction))))

    @property
    def parts(self) -> list[str]:
        """Those that will have a token file."""
        return [TRAIN, VALIDATION] if self.validation_fraction else [TRAIN]

    def read(self) -> Iterator[tuple[str, str]]:
        """Read the text as (part, text) pieces; raise if it is not the text surveyed."""
        changed = ValueError(f"the text {self.corpus.name!r} changed while it was being read; start again")
        digest = hashlib.sha256()
        position = 0
        for chunk in self.corpus.chunks():
            if not set(chunk) <= self.seen.first_seen.keys():  # or its tokenizer would be blamed
                raise changed
            digest.update(chunk.encode("utf-8"))
            cut = min(max(self.train_characters - position, 0), len(chunk))
            if cut:
                yield TRAIN, chunk[:cut]
            if cut < len(chunk):
                yield VALIDATION, chunk[cut:]
            position += len(chunk)
        if digest.hexdigest() != self.seen.sha256:
            raise changed

    def check_lengths(self, counts: Mapping[str, int], block_size: int) -> None:
        """Each part must hold a block and one token more."""
        part = next((part for part in self.parts if counts[part] <= block_size), None)
        if part is None:
            return
        largest = min(counts[part] for part in self.parts) - 1
        fits = f"the largest block_size that fits is {largest}" if largest > 0 else "no block_size fits"
        advice = ["a longer text"] + ["a smaller block_size"] * (largest > 0)
        if self.validation_fraction:
            advice.append(f"another validation_fraction (now {self.validation_fraction}; 0 for none)")
        raise TooShortError(
            f"the {_SPOKEN[part]} part of the text {self.corpus.name!r} has {counts[part]} tokens, but "
            f"block_size {block_size} needs at least {block_size + 1}: {fits}; use {' or '.join(advice)}"
        )


def _prepare(
    split: _Split, tokenizer: Kind | Tokenizer, folder: Path, block_size: int, vocab_size: int
) -> Prepared:
    """Find the tokens of a split text in `folder`, or make them."""
    seen = split.seen
    kind = tokenizer.kind if isinstance(tokenizer, Tokenizer) else tokenizer
    if kind == "char":  # one token per character: known before any work
        lengths = {TRAIN: split.train_characters, VALIDATION: seen.characters - split.train_characters}
        split.check_lengths(lengths, block_size)
    settings = {
        "format": _FORMAT,
        "text_hash": seen.sha256,
        "characters": seen.characters,
        "validation_fraction": split.validation_fraction,
        "tokenizer": tokenizer.hash if isinstance(tokenizer, Tokenizer) else tokenizer,
        "vocab_size": vocab_size if tokenizer == "bpe" else None,
    }
    found = _reusable(folder, settings)
    if found is not None:
        split.check_lengths(_counts(found.train, found.validation), block_size)
        return found
    if not isinstance(tokenizer, Tokenizer):
        tokenizer = _learn(tokenizer, split, vocab_size)
    _write(folder, split, tokenizer, settings, block_size)
    return replace(open_prepared(folder), reused=False)


def _reusable(folder: Path, settings: Mapping[str, Any]) -> Prepared | None:
    """What `folder` holds; None if it was made from something else or is not whole."""
    try:
        about = _description(folder)
        if any(about.get(name) != value for name, value in settings.items()):
            return None
        return open_prepared(folder)
    except (FileNotFoundError, ValueError):
        return None


def _learn(kind: Kind, split: _Split, vocab_size: int) -> Tokenizer:
    """A character vocabulary of the whole text, or a BPE of its training part."""
    if kind == "char":
        return Tokenizer.from_alphabet(split.seen.first_seen)
    training = (text for _, text in takewhile(lambda piece: piece[0] == TRAIN, split.read()))
    return Tokenizer.train(kind, training, vocab_size=vocab_size)


def _write(
    folder: Path, split: _Split, tokenizer: Tokenizer, settings: Mapping[str, Any], block_size: int
) -> None:
    """Encode the parts into token files, and put tokenizer and description beside them."""
    counts = dict.fromkeys(split.parts, 0)
    with _made_for_success(folder), ExitStack() as stack:
        files = {part: stack.enter_context(replacing(_file(folder, part))) for part in split.parts}
        for part, pieces in groupby(split.read(), key=itemgetter(0)):
            ids = tokenizer.encode_chunks(text for _, text in pieces)
            counts[part] = write_tokens(files[part], ids, tokenizer)
        split.check_lengths(counts, block_size)
        # From here to the last line the folder holds old and new files, so nothing may vouch for them.
        (folder / DESCRIPTION).unlink(missing_ok=True)
    tokenizer.save(folder / TOKENIZER)
    if VALIDATION not in split.parts:
        _file(folder, VALIDATION).unlink(missing_ok=True)
    about = {"name": split.corpus.name, **settings, "tokens": counts}
    write_json(folder / DESCRIPTION, about)


def _file(folder: Path, part: str) -> Path:
    return folder / f"{part}.tokens"


def _description(folder: Path) -> dict[str, Any]:
    path = folder / DESCRIPTION
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if not isinstance(about, dict):
        raise ValueError(f"{path} is damaged: it should hold one JSON object")
    return about


def _counts(train: TokenFile, validation: TokenFile | None) -> dict[str, int]:
    return {TRAIN: train.count} | ({VALIDATION: validation.count} if validation else {})


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
