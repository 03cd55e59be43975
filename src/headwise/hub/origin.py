"""What a model was made of, in a small file in its folder, so that later steps find its parent."""

from __future__ import annotations

import json
import os
from pathlib import Path

from headwise.files import write_json

FILE = "made_from.json"


def write_origin(folder: Path, parent: str) -> None:
    """Keep the name of the model that the one in a folder was made of.

    A folder is kept as the way from one to the other, so that both can be moved together.
    """
    there = Path(parent)
    if there.exists():
        try:
            parent = Path(os.path.relpath(there.resolve(), folder.resolve())).as_posix()
        except ValueError:  # on another drive of Windows
            parent = str(there.resolve())
    write_json(folder / FILE, {"parent": parent})


def origin_of(folder: Path | str) -> str | None:
    """Return the folder or name of the model that the one in a folder was made of, None if none is kept.

    Raises:
        ValueError: the file is damaged.
    """
    path = Path(folder) / FILE
    if not path.is_file():
        return None
    try:
        parent = json.loads(path.read_text(encoding="utf-8"))["parent"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged: it should say what the parent is") from error
    there = Path(folder) / str(parent)
    if there.exists() or str(parent).startswith((".", "/")):
        return os.path.normpath(there)
    return str(parent)
