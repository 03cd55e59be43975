"""Where verbs that make a new model put it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

    from headwise.hub import Subject


def check_new_folder(folder: Path) -> None:
    """Raise ValueError if there is something at the folder; ask before long work."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} is there already; remove it, or give another folder with --out")


def write_like(subject: Subject, model: nn.Module, folder: Path) -> list[str]:
    """Write a model made of a subject's, in the same kind of folder; return what is to be told.

    The folder keeps what the model was made of.
    """
    from headwise.compress import level
    from headwise.hub.export import save_transformers
    from headwise.hub.origin import write_origin
    from headwise.hub.subject import OwnSubject
    from headwise.hub.surgery import head_counts
    from headwise.model import GPT, save_model

    check_new_folder(folder)
    if isinstance(subject, OwnSubject) and isinstance(model, GPT):
        save_model(folder, model, subject.tokenizer)
        write_origin(folder, subject.name)
        return []
    notes = []
    if len(set(head_counts(model))) > 1:
        model = level(model)
        counts = head_counts(model)[0]
        notes.append(
            f"stock classes hold one number of heads for all layers, so heads were repeated to {counts[1]} "
            "key/value heads in each: it computes the same, but its cache is that large"
        )
    save_transformers(folder, model, getattr(subject, "tokenizer", None))
    write_origin(folder, subject.name)
    return notes
