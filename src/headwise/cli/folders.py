"""Where verbs that make a new model put it."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from headwise.files import check_new_folder

if TYPE_CHECKING:
    from torch import nn

    from headwise.hub import Subject


def write_like(
    subject: Subject, model: nn.Module, folder: Path, removed: Collection[tuple[int, int]] = ()
) -> list[str]:
    """Write a model made of a subject's, in the same kind of folder and the dtype; return what is to be
    told.

    removed: the heads that it no longer has. The folder keeps what the model was made of, and the numbers
    that its heads had there.
    """
    from headwise.hub.dtypes import in_dtype
    from headwise.hub.export import save_transformers
    from headwise.hub.origin import write_origin
    from headwise.hub.subject import OwnSubject
    from headwise.model import GPT, save_model

    check_new_folder(folder)
    model = in_dtype(model, subject.stored_dtype)
    if isinstance(subject, OwnSubject) and isinstance(model, GPT):
        save_model(folder, model, subject.tokenizer)
        write_origin(folder, subject.name, _left(subject, removed))
        return []
    model, notes = levelled(model)
    save_transformers(folder, model, subject.tokenizer)
    write_origin(folder, subject.name, None if notes else _left(subject, removed))
    return notes


def levelled(model: nn.Module) -> tuple[nn.Module, list[str]]:
    """Return a model with numbers of heads that stock classes hold, and what is to be told if it had others.

    Then its heads are numbered as never before.
    """
    from headwise.compress import level
    from headwise.hub.surgery import head_counts, is_level

    if is_level(model):
        return model, []
    made = level(model)
    h, g = head_counts(made)[0]
    return made, [
        "stock classes hold one number of heads for all layers, and Llama's only one that divides the width, "
        f"so each layer was filled up to {h} query heads and {g} key/value heads with repeated ones and ones "
        "that give zero: it computes the same, but its cache is that large"
    ]


def _left(subject: Subject, removed: Collection[tuple[int, int]]) -> dict[int, list[int]] | None:
    """Return by layer the numbers of the heads that are left, None where none was ever taken out."""
    from headwise.hub.origin import head_numbers

    before = head_numbers(subject.name)
    if before is None:
        if not removed:
            return None
        before = {layer.index: list(range(layer.n_head)) for layer in subject.layers}
    return {
        layer: [number for at, number in enumerate(numbers) if (layer, at) not in removed]
        for layer, numbers in before.items()
    }
