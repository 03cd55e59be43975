"""Token ids on disk: a checked header, then the ids as little-endian integers of 2 or 4 bytes.

| bytes | what |
| --- | --- |
| 0–7 | `HEADWISE` |
| 8–11 | format version, 1 |
| 12–15 | bytes per id: 2 or 4 |
| 16–23 | number of ids |
| 24–55 | sha256 of the tokenizer |
| 56–63 | zero |
"""

from __future__ import annotations

import struct
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

_MAGIC = b"HEADWISE"
_VERSION = 1
_HEADER = struct.Struct("<8sIIQ32s8x")
_TYPES: dict[int, np.dtype[np.uint16] | np.dtype[np.uint32]] = {2: np.dtype("<u2"), 4: np.dtype("<u4")}


class Vocabulary(Protocol):
    """What a token file knows of the tokenizer that wrote it, such as a `Tokenizer`."""

    @property
    def vocab_size(self) -> int:
        """Ids run from 0 to one less."""

    @property
    def hash(self) -> str:
        """A sha256 in hexadecimal, which two tokenizers share only if they are the same."""


def write_tokens(path: Path, arrays: Iterable[npt.NDArray[Any]], tokenizer: Vocabulary) -> int:
    """Write arrays of ids to `path` as one token file, in bounded memory; return how many ids there are."""
    width = 2 if tokenizer.vocab_size <= 1 << 16 else 4
    count = 0
    with path.open("wb") as file:
        file.write(bytes(_HEADER.size))
        for array in arrays:
            file.write(array.astype(_TYPES[width]).tobytes())
            count += len(array)
        # The header goes in last, so that a file cut short is never taken for a whole one.
        file.seek(0)
        file.write(_HEADER.pack(_MAGIC, _VERSION, width, count, bytes.fromhex(tokenizer.hash)))
    return count


class TokenFile:
    """A token file opened for reading: `path`, `count` ids, and the `tokenizer_hash` they belong to."""

    def __init__(self, path: Path | str, tokenizer: Vocabulary | None = None) -> None:
        """Open and check a token file.

        Args:
            path: the file.
            tokenizer: when given, the file must have been written with this tokenizer.

        Raises:
            OSError: the file cannot be read.
            ValueError: it is no token file, of another version, damaged, or from another tokenizer.
        """
        self.path = Path(path)
        # Kept open, so that a file of the same name written later cannot slip in between two reads.
        self._file = self.path.open("rb")
        weakref.finalize(self, self._file.close)
        header = self._file.read(_HEADER.size)
        size = self._file.seek(0, 2)
        if len(header) < _HEADER.size or not header.startswith(_MAGIC):
            raise ValueError(f"{path} is not a token file: it does not begin with a {_MAGIC.decode()} header")
        _, version, width, self.count, digest = _HEADER.unpack(header)
        if version != _VERSION:
            raise ValueError(
                f"{path} has token file version {version}, but this headwise reads version {_VERSION}; "
                "write it anew from its text"
            )
        if width not in _TYPES:
            raise ValueError(f"{path} is damaged: {width} bytes per token, but only 2 and 4 are possible")
        expected = _HEADER.size + width * self.count
        if size != expected:
            raise ValueError(
                f"{path} is damaged: {self.count} tokens make {expected} bytes, but it has {size} bytes; "
                "write it anew from its text"
            )
        self.tokenizer_hash: str = digest.hex()
        if tokenizer is not None and self.tokenizer_hash != tokenizer.hash:
            raise ValueError(
                f"{path} was written with another tokenizer ({self.tokenizer_hash[:12]}…) than the one given "
                f"({tokenizer.hash[:12]}…); write it anew from its text"
            )
        self._dtype = _TYPES[width]

    @property
    def tokens(self) -> np.memmap[Any, Any]:
        """The ids, `(count,)`, as a read-only view of the file.

        Each access maps the file anew. Pages that were read stay counted as this process's memory until the
        view is dropped (they are the system's file cache, not a leak), so let go of it after each batch.
        """
        return np.memmap(self._file, dtype=self._dtype, mode="r", offset=_HEADER.size, shape=(self.count,))

    def __repr__(self) -> str:
        return f"TokenFile({str(self.path)!r}, count={self.count})"
