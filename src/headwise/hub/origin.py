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


def write_origin(
    folder: Path,
    parent: str,
    heads: Mapping[int, Sequence[int]] | None = None,
    learned_from: str | None = None,
) -> None:
    """Keep the name of the model that the one in a folder was made of.

    A folder is kept as the way from one to the other, so that both can be moved together. heads: by layer,
    the numbers of the heads that are left of those that there once were; None where none was taken out.
    learned_from: the model whose predictions it learned from, where it did.
    """
    told: dict[str, object] = {"parent": _way(folder, parent)}
    if heads is not None:
        told["heads"] = {str(layer): list(numbers) for layer, numbers in heads.items()}
    if learned_from is not None:
        told["learned_from"] = _way(folder, learned_from)
    write_json(folder / FILE, told)


def carry_origin(source: Path, folder: Path, *, renumbered: bool = False) -> None:
    """Keep in a folder what another says of the same model, if it says anything; raises as `origin_of`.

    renumbered: its heads have other numbers now, so that theirs are left out.
    """
    told = _read(source)
    if told is None:
        return
    if renumbered:
        told["heads"] = None
    for name in ("parent", "learned_from"):
        kept = told[name]
        if kept is not None and ((source / kept).exists() or _is_folder(kept)):
            told[name] = _between(folder, source / kept)
    write_json(folder / FILE, {name: value for name, value in told.items() if value is not None})


def _way(folder: Path, source: str) -> str:
    """Return the way from a folder to another, or the name of a model as it is."""
    there = Path(source)
    return _between(folder, there) if there.exists() else source


def _between(folder: Path, there: Path) -> str:
    try:
        return Path(os.path.relpath(there.resolve(), folder.resolve())).as_posix()
    except ValueError:  # on another drive of Windows
        return str(there.resolve())


def origin_of(folder: Path | str) -> str | None:
    """Return the folder or name of the model that the one in a folder was made of, None if none is kept.

    Raises:
        ValueError: the file is damaged.
    """
    told = _read(folder)
    return None if told is None else _found(folder, told["parent"])


def teacher_of(folder: Path | str) -> str | None:
    """Return the folder or name of the model that the one in a folder is to learn from, None if none is kept.

    That is the one it learned from before, and for one that never did the one that it was made of. Raises
    ValueError as `origin_of`.
    """
    told = _read(folder)
    return None if told is None else _found(folder, told["learned_from"] or told["parent"])


def is_gone(folder: Path | str) -> bool:
    """Return whether the model in a folder is to learn from that in another, which is not there any more."""
    told = _read(folder)
    teacher = None if told is None else told["learned_from"] or told["parent"]
    return teacher is not None and _is_folder(teacher) and not (Path(folder) / teacher).exists()


def _found(folder: Path | str, kept: str) -> str:
    there = Path(folder) / kept
    return os.path.normpath(there) if there.exists() or _is_folder(kept) else kept


def _is_folder(kept: str) -> bool:
    """Return whether `write_origin` kept the way to a folder, not the name of a model."""
    return kept.startswith((".", "/"))


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


def numbered_by(folder: Path | str) -> str:
    """Return the folder or name of the model whose numbers `head_numbers` gives; raises as `origin_of`."""
    source, seen = str(folder), set[str]()
    while source not in seen and head_numbers(source) is not None:
        seen.add(source)
        source = origin_of(source) or source
    return source


def _read(folder: Path | str) -> dict[str, Any] | None:
    path = Path(folder) / FILE
    if not path.is_file():
        return None
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        learned_from = told.get("learned_from")
        for kept in (told["parent"], *([] if learned_from is None else [learned_from])):
            if not isinstance(kept, str) or not kept:
                raise TypeError(kept)
        return {"parent": told["parent"], "heads": told.get("heads"), "learned_from": learned_from}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is damaged: it should say what the parent is") from error
