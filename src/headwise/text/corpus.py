"""Where text comes from: files, folders, patterns, the standard input, or the built-in corpora."""

from __future__ import annotations

import codecs
import glob
import os
import shutil
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from headwise.text.builtin import BUILT_IN
from headwise.text.normal import normalised

Document = Iterable[str]

CHUNK_BYTES = 1 << 18
BETWEEN_DOCUMENTS = "\n\n"
_TEXT_SUFFIXES = {".txt", ".md"}


class Corpus:
    """A text that can be read again and again in bounded memory.

    Documents follow each other with a blank line between; empty ones are left out.
    """

    def __init__(self, name: str, documents: Callable[[], Iterable[Document]]) -> None:
        """`documents` is called for every reading and returns the documents, each as pieces of text."""
        self.name = name
        self._documents = documents

    @classmethod
    def from_text(cls, text: str, name: str = "text") -> Corpus:
        """Make a corpus of one string."""
        return cls(name, lambda: [[text]])

    def chunks(self) -> Iterator[str]:
        """Read the text from its start, piece by piece; no piece is empty.

        The text is in NFC, its newlines are `\\n`, and a byte order mark at the start of a file is dropped.

        Raises:
            OSError: a file cannot be read.
            ValueError: a file is not UTF-8 (says which and the byte offset).
        """
        started = False
        for document in self._documents():
            fresh = True
            for chunk in normalised(document):
                if fresh and started:
                    yield BETWEEN_DOCUMENTS
                fresh = False
                started = True
                yield chunk

    def __repr__(self) -> str:
        return f"Corpus({self.name!r})"


def open_corpus(spec: str) -> Corpus:
    """Find the text that `spec` names.

    - `python-docs`, `python-source`, `shakespeare`: a built-in corpus. A file or folder of that name is
      reached as `./python-docs`.
    - a file: read as UTF-8, whatever its suffix.
    - a folder: every `.txt` and `.md` file below it, sorted by path; hidden files and folders are left out.
    - a pattern such as `books/**/*.txt`: every file that matches, sorted by path.
    - `-`: the standard input, kept in a temporary file until the corpus is no longer used.

    Raises:
        ValueError: nothing is there, or it is empty.
        OSError: it cannot be read.
    """
    if spec in BUILT_IN:
        return Corpus(spec, BUILT_IN[spec])
    if spec == "-":
        return _spooled("-", sys.stdin.buffer)
    if not spec:
        raise ValueError(f"the name of the text is empty; {_hint()}")
    path = Path(spec).expanduser()
    if path.is_dir():
        files = list(_text_files(path))
        if not files:
            raise ValueError(f"the folder {spec!r} holds no .txt or .md file; {_hint()}")
    elif path.is_file():
        files = [path]
    elif path.exists():  # a pipe, as in `--data <(zcat text.gz)`
        with path.open("rb") as pipe:
            return _spooled(spec, pipe)
    else:
        names = glob.glob(str(path), recursive=True)  # noqa: PTH207 — Path.glob takes no absolute pattern
        files = [Path(name) for name in sorted(names) if Path(name).is_file()]
        if not files and glob.has_magic(spec):
            raise ValueError(f"no file matches {spec!r}; {_hint()}")
        if not files:
            raise ValueError(f"there is no file or folder {spec!r}; {_hint()}")
    return _of_files(spec, files)


def _hint() -> str:
    return f"give a text file, a folder, a pattern in quotes, '-', or a built-in name ({', '.join(BUILT_IN)})"


def _of_files(name: str, files: list[Path], *, spooled: bool = False) -> Corpus:
    if not any(file.stat().st_size for file in files):
        raise ValueError(f"the text {name!r} is empty ({len(files)} file{'s' * (len(files) > 1)}, 0 bytes)")
    return Corpus(name, lambda: (read_text(file, name=name if spooled else None) for file in files))


def _spooled(name: str, source: BinaryIO) -> Corpus:
    """Copy a stream that can be read only once to a temporary file that lives as long as the corpus."""
    folder = tempfile.mkdtemp(prefix="headwise-")
    try:
        file = Path(folder) / "text"
        with file.open("wb") as copy:
            shutil.copyfileobj(source, copy, CHUNK_BYTES)
        corpus = _of_files(name, [file], spooled=True)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(corpus, shutil.rmtree, folder, ignore_errors=True)
    return corpus


def _text_files(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if Path(name).suffix.lower() in _TEXT_SUFFIXES and not name.startswith("."):
                yield Path(parent) / name


def read_text(path: Path, block: int = CHUNK_BYTES, *, name: str | None = None) -> Iterator[str]:
    """Read a UTF-8 file in pieces of at most `block` bytes, without its byte order mark.

    name: what errors call it, by default its path.

    Raises:
        ValueError: bytes that are not UTF-8, with their offset.
    """
    with path.open("rb") as file:
        offset = 0  # of the first byte of `held`
        held = b""
        while True:
            read = file.read(block)
            held += read
            try:
                text, used = codecs.utf_8_decode(held, "strict", not read)
            except UnicodeDecodeError as error:
                raise ValueError(
                    _not_utf8(name or str(path), offset + error.start, held[error.start])
                ) from error
            if offset == 0:
                text = text.removeprefix("\ufeff")
            offset += used
            held = held[used:]
            if text:
                yield text
            if not read:
                return


def _not_utf8(name: str, offset: int, byte: int) -> str:
    # UTF-16 files begin with FF FE or FE FF.
    encoding = "UTF-16" if offset == 0 and byte >= 0xFE else "ENCODING"
    return (
        f"{name} is not UTF-8: byte 0x{byte:02X} at offset {offset}; "
        f"convert it first, for example: iconv -f {encoding} -t UTF-8"
    )
