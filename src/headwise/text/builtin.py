"""Text that is there without asking the user for a file."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from headwise.text.shakespeare import plays

_NO_LIBRARY_SOURCE = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}


def python_docs() -> Iterator[list[str]]:
    """The reference prose that `help()` shows, one document per topic, sorted by topic."""
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise ValueError("this Python comes without pydoc_data.topics; use your own text file") from error
    for name in sorted(topics):
        yield [topics[name]]


def python_source() -> Iterator[list[str]]:
    """The standard library's own modules, sorted by path.

    Left out: installed packages, tests, and files that are not UTF-8.
    """
    library = Path(sysconfig.get_path("stdlib"))
    found = False
    for parent, folders, names in os.walk(library):
        folders[:] = sorted(set(folders) - _NO_LIBRARY_SOURCE)
        for name in sorted(names):
            file = Path(parent) / name
            if file.suffix != ".py" or not file.is_file():  # a dangling link is no file
                continue
            try:
                text = file.read_bytes().decode("utf-8-sig")
            except UnicodeDecodeError:
                continue
            found = True
            yield [text]
    if not found:
        raise ValueError(f"this Python carries no sources in {library}; use your own text file")


BUILT_IN: dict[str, Callable[[], Iterable[Iterable[str]]]] = {
    "python-docs": python_docs,
    "python-source": python_source,
    "shakespeare": plays,
}
