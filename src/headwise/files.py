"""Writing files so that a crash, a full disk or Ctrl-C never costs what was there before."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def _flush(path: Path) -> None:
    """Ask the system to put `path` (a file or a folder) on the disk."""
    if os.name == "nt" and path.is_dir():  # Windows cannot open a folder for fsync
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_place(path: Path, *, folder: bool = False) -> None:
    """Raise ValueError unless a file (or a folder) can be written at `path`; ask before long work.

    Folders that are not there yet will be made.
    """
    if path.is_dir() and not folder:
        raise ValueError(f"cannot write {path}: it is a folder")
    there = next(parent for parent in path.absolute().parents if os.path.lexists(parent))
    if not there.is_dir():
        raise ValueError(f"cannot write {path}: {there} is not a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ValueError(f"cannot write {path}: you may not write into {there}")


def check_new_folder(folder: Path) -> None:
    """Raise ValueError if there is something at the folder, or it cannot be made; ask before long work."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} is there already; remove it, or give another folder with --out")
    check_place(folder, folder=True)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success flush it and rename it over `path`.

    If the block raises, `path` is as it was and the temporary file is gone.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        _open_to_others(temporary)
        _flush(temporary)
        temporary.replace(path)
        _flush(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; on success flush its files and rename it to `path`.

    A folder already at `path` is removed only after the new one is complete. What is in it can be read by
    whom the umask lets read, whoever wrote it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent))
    try:
        yield temporary
        for item in (temporary, *sorted(temporary.rglob("*"))):
            _open_to_others(item)
            if item.is_file():
                _flush(item)
        _flush(temporary)
        if path.exists():
            shutil.rmtree(path)
        temporary.replace(path)
        _flush(path.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 `text` with `\\n` newlines to `path`, all or nothing."""
    with replacing(path) as temporary:
        temporary.write_bytes(text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Write `value` as readable JSON to `path`, all or nothing."""
    write_text(path, json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def _open_to_others(path: Path) -> None:
    """Give a file or folder the rights that it would have if it had been made under its own name.

    tempfile and safetensors make private ones; what a user keeps should follow their umask.
    """
    mask = os.umask(0o022)  # it can only be asked for by setting it
    os.umask(mask)
    path.chmod((0o777 if path.is_dir() else 0o666) & ~mask)
