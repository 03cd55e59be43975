"""What a model was made of, in a small file in its folder, so that later steps find its parent and know by
which numbers its heads went there."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headwise.files import write_json

FILE = "made_from.json"


def write_origin(folder: Path, parent: str, heads: Mapping[int, Sequence[int]] | None = None) -> None:
    """Keep the name of the model that the one in a folder was made of.

    A folder is kept as the way from one to the other, so that both can be moved together. heads: by layer,
    the numbers of the heads that are left of those that there once were; None where none was taken out.
    """
    there = Path(parent)
    if there.exists():
        try:
            parent = Path(os.path.relpath(there.resolve(), folder.resolve())).as_posix()
        except ValueError:  # on another drive of Windows
            parent = str(there.resolve())
    told: dict[str, object] = {"parent": parent}
    if heads is not None:
        told["heads"] = {str(layer): list(numbers) for layer, numbers in heads.items()}
    write_json(folder / FILE, told)


def origin_of(folder: Path | str) -> str | None:
    """Return the folder or name of the model that the one in a folder was made of, None if none is kept.

    Raises:
        ValueError: the file is damaged.
    """
    parent = _parent(folder)
    if parent is None:
        return None
    there = Path(folder) / parent
    return os.path.normpath(there) if there.exists() or _is_folder(parent) else parent


def is_gone(folder: Path | str) -> bool:
    """Return whether the model in a folder was made of that in another, which is not there any more."""
    parent = _parent(folder)
    return parent is not None and _is_folder(parent) and not (Path(folder) / parent).exists()


def _is_folder(parent: str) -> bool:
    """Return whether `write_origin` kept the way to a folder, not the name of a model."""
    return parent.startswith((".", "/"))


def _parent(folder: Path | str) -> str | None:
    told = _read(folder)
    return None if told is None else str(told["parent"])


def head_numbers(folder: Path | str) -> dict[int, list[int]] | None:
    """Return by layer the numbers that the heads of a folder's model had before others were taken out.

    None for a model of which none was taken out, or of which nothing is known. Raises ValueError as
    `origin_of`.
    """
    told = _read(folder)
    if told is None or told.get("heads") is None:
        return None
    try:
        return {int(layer): [int(number) for number in numbers] for layer, numbers in told["heads"].items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"{Path(folder) / FILE} is damaged: its heads should be numbers by layer") from error


def _read(folder: Path | str) -> dict[str, Any] | None:
    path = Path(folder) / FILE
    if not path.is_file():
        return None
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(told["parent"], str) or not told["parent"]:
            raise TypeError(told["parent"])
        return {"parent": told["parent"], "heads": told.get("heads")}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is damaged: it should say what the parent is") from error
