"""Text to token ids and back, by a character vocabulary or a byte-level BPE."""

from __future__ import annotations

import hashlib
import json
import operator
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from headwise.files import write_text
from headwise.text.definition import (
    Kind,
    byte_level_engine,
    bytes_of_tokens,
    character_engine,
    kind_of,
    load_engine,
)
from headwise.text.labels import label
from headwise.text.normal import normalise, normalised
from headwise.text.pieces import pieces

Unknown = Literal["error", "skip"]
Ids = npt.NDArray[np.uint32]

_SURROGATE = re.compile("[\ud800-\udfff]")
_MOST_SHOWN = 8


class Tokenizer:
    """Text to ids and back, exactly: `decode(encode(text))` is `normalise(text)`.

    Two kinds share one file format, that of the `tokenizers` library:

    - `char`: one token per Unicode character, the vocabulary in code point order.
    - `bpe`: byte-level BPE. Every byte is in the vocabulary, so no text is ever unknown.

    Text is brought to NFC with `\\n` newlines before it is encoded.
    """

    def __init__(self, definition: dict[str, Any], *, source: str = "the tokenizer") -> None:
        """Wrap a parsed `tokenizers` file; `source` names it in errors.

        Raises:
            ValueError: it is damaged, or neither a character vocabulary nor a byte-level BPE.
        """
        self.kind: Kind = kind_of(definition, source)
        self._text = json.dumps(definition, ensure_ascii=False, sort_keys=True, indent=1) + "\n"
        # Normalisation is ours alone (one Unicode version for corpus and prompt), so the engine does none.
        plain = {**definition, "normalizer": None, "truncation": None, "padding": None}
        self._engine = load_engine(json.dumps(plain), source)
        self._pieces = bytes_of_tokens(self._engine, self.kind, source)
        if self.kind == "char":
            codes = _code_points(self.decode(range(self.vocab_size)))
            self._order = np.argsort(codes).astype(np.uint32)
            self._codes = codes[self._order]

    @classmethod
    def train(cls, kind: Kind, chunks: Iterable[str], *, vocab_size: int = 1024) -> Tokenizer:
        """Learn a tokenizer from a stream of text, in bounded memory; the same text gives the same tokenizer.

        Args:
            kind: `"char"` takes every character of the text; `"bpe"` learns merges of bytes.
            chunks: the text in pieces of any size; how it is cut does not matter.
            vocab_size: for `"bpe"`, the number of tokens wanted, at least 256. A short text may give fewer.

        Raises:
            ValueError: unknown kind, a vocabulary smaller than 256, or no text at all.
        """
        text = normalised(chunks)
        if kind == "char":
            alphabet: set[str] = set()
            for chunk in text:
                alphabet.update(chunk)
            return cls.from_alphabet(alphabet)
        if kind != "bpe":
            raise ValueError(f"tokenizer kind must be one of {', '.join(get_args(Kind))}; got {kind!r}")
        if vocab_size < 256:
            raise ValueError(f"vocab_size must be at least 256, one token for each byte; got {vocab_size}")
        return cls(json.loads(byte_level_engine(pieces(text), vocab_size).to_str()))

    @classmethod
    def from_alphabet(cls, characters: Iterable[str]) -> Tokenizer:
        """Make a character tokenizer whose vocabulary is `characters`, ids in code point order.

        Raises:
            ValueError: no characters, or one that NFC or the newline rule would replace.
        """
        alphabet = sorted(set(characters))
        if not alphabet:
            raise ValueError("cannot make a character tokenizer: the text is empty")
        wrong = [item for item in alphabet if len(item) != 1 or normalise(item) != item]
        if wrong:
            raise ValueError(f"a character vocabulary holds single characters in NFC; got {wrong[0]!r}")
        return cls(json.loads(character_engine(alphabet).to_str()))

    @classmethod
    def from_file(cls, path: Path | str) -> Tokenizer:
        """Read a tokenizer file written by `save`, or any `tokenizers` file of a byte-level BPE.

        Raises:
            OSError: the file cannot be read.
            ValueError: it is damaged or of another kind.
        """
        source = f"the tokenizer file {path}"
        try:
            definition = json.loads(Path(path).read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{source} is damaged: {error}") from error
        if not isinstance(definition, dict):
            raise ValueError(f"{source} is damaged: it should hold one JSON object")
        return cls(definition, source=source)

    def save(self, path: Path | str) -> None:
        """Write the tokenizer as a `tokenizers` JSON file, all or nothing."""
        write_text(Path(path), self._text)

    @property
    def vocab_size(self) -> int:
        """How many tokens there are; ids run from 0 to `vocab_size - 1`."""
        return len(self._pieces)

    @property
    def hash(self) -> str:
        """The sha256 (64 hex digits) of the saved file: equal hashes mean equal tokenizers."""
        return hashlib.sha256(self._text.encode("utf-8")).hexdigest()

    @property
    def definition(self) -> str:
        """The text of the saved file, as the `tokenizers` library reads it."""
        return self._text

    @property
    def alphabet(self) -> frozenset[str] | None:
        """The characters a `char` tokenizer knows; None for `bpe`, which knows them all."""
        return frozenset(map(chr, self._codes)) if self.kind == "char" else None

    def __repr__(self) -> str:
        return f"Tokenizer(kind={self.kind!r}, vocab_size={self.vocab_size}, hash={self.hash[:12]!r})"

    def encode(self, text: str, *, unknown: Unknown = "error") -> list[int]:
        """Return the token ids of `text` (an empty text gives none).

        Args:
            text: any text; brought to NFC with `\\n` newlines first.
            unknown: what to do with characters outside the vocabulary: `"error"` or `"skip"` (leave out).
                For `"bpe"` only lone surrogates, which are not text at all, are unknown.

        Raises:
            ValueError: unknown characters (says which and where, in the normalised text), or an `unknown`
                that is neither of the two.
        """
        if unknown not in get_args(Unknown):
            raise ValueError(f"unknown must be one of {', '.join(get_args(Unknown))}; got {unknown!r}")
        text = normalise(text)
        strangers = self._strangers(text)
        if strangers and unknown == "error":
            raise UnknownCharactersError(strangers)
        text = text.translate(dict.fromkeys(map(ord, strangers)))
        ids: list[int] = self._ids(text).tolist()
        return ids

    def encode_chunks(self, chunks: Iterable[str]) -> Iterator[Ids]:
        """Encode a stream of text in bounded memory; yields arrays of ids.

        The ids joined equal `encode` of the joined text (for BPE, up to the rare hard cut of `pieces`).

        Raises:
            ValueError: characters outside the vocabulary.
        """
        text = normalised(chunks)
        position = 0
        for piece in pieces(text) if self.kind == "bpe" else text:
            strangers = self._strangers(piece, position)
            if strangers:
                raise UnknownCharactersError(strangers)
            position += len(piece)
            yield self._ids(piece)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of `ids`; bytes that are not UTF-8 become U+FFFD.

        Raises:
            ValueError: an id outside `0 … vocab_size - 1`.
        """
        return b"".join(self.token_bytes(index) for index in ids).decode("utf-8", errors="replace")

    def token_bytes(self, index: int) -> bytes:
        """Return the UTF-8 bytes of one token, perhaps only a part of a character.

        Raises:
            ValueError: an id outside `0 … vocab_size - 1`.
        """
        index = operator.index(index)
        if not 0 <= index < len(self._pieces):
            raise ValueError(
                f"token id {index} is outside the vocabulary: ids run from 0 to {self.vocab_size - 1}"
            )
        return self._pieces[index]

    def labels(self, ids: Iterable[int]) -> list[str]:
        """Return one readable label per token, for plots and tables (see `headwise.text.labels`)."""
        return [label(self.token_bytes(index)) for index in ids]

    def _strangers(self, text: str, start: int = 0) -> dict[str, list[int]]:
        """The characters of `text` that have no token, with their positions (counted from `start`)."""
        if self.kind == "bpe":
            positions = [found.start() for found in _SURROGATE.finditer(text)]
        else:
            codes = _code_points(text)
            nearest = np.searchsorted(self._codes, codes).clip(max=len(self._codes) - 1)
            positions = np.flatnonzero(self._codes[nearest] != codes).tolist()
        places: dict[str, list[int]] = {}
        for position in positions:
            places.setdefault(text[position], []).append(start + position)
        return places

    def _ids(self, text: str) -> Ids:
        """Encode normalised text in which every character is known."""
        if self.kind == "char":
            # A table look-up: the same ids as the engine gives, a hundred times faster.
            return self._order[np.searchsorted(self._codes, _code_points(text))]
        return np.array(self._engine.encode(text, add_special_tokens=False).ids, dtype=np.uint32)


class UnknownCharactersError(ValueError):
    """A text holds characters that have no token."""

    def __init__(self, places: dict[str, list[int]]) -> None:
        self.places = places
        super().__init__(
            f"{describe_unknown(places)}; change the text, or leave them out with unknown='skip' "
            "(--unknown skip)"
        )


def describe_unknown(places: dict[str, list[int]]) -> str:
    """Say which characters have no token and where: `places` maps each to its positions."""
    shown = []
    for character, positions in list(places.items())[:_MOST_SHOWN]:
        where = ", ".join(str(position) for position in positions[:3]) + (", …" if len(positions) > 3 else "")
        shown.append(f"{character!r} (U+{ord(character):04X}) at {where}")
    if len(places) > _MOST_SHOWN:
        shown.append(f"and {len(places) - _MOST_SHOWN} more")
    return (
        f"the text holds {len(places)} kind{'s' * (len(places) > 1)} of character outside the vocabulary: "
        f"{'; '.join(shown)} (positions count from 0)"
    )


def _code_points(text: str) -> npt.NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), dtype="<u4").astype(np.uint32)
