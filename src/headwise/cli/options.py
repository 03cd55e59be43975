"""Options that several verbs share."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

import typer

Model = Annotated[Path, typer.Argument(help="A model folder, as `headwise train --out` writes it.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")]
Unknown = Annotated[
    Literal["error", "skip"], typer.Option(help="What to do with characters never seen in training.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing on the way.")]
Json = Annotated[bool, typer.Option("--json", help="End stdout with one line that is a JSON object.")]


def check_seed(seed: int | None) -> int | None:
    """Return a seed; raise ValueError for one that PyTorch cannot start from."""
    if seed is not None and not 0 <= seed < 2**63:
        raise ValueError(f"--seed must be from 0 to 2^63 - 1, got {seed}")
    return seed


Seed = Annotated[int, typer.Option(help="For what is drawn at random.", callback=check_seed)]


def is_given(context: typer.Context, name: str) -> bool:
    """Return whether the user named a parameter of a verb, be it with its default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def options_given(context: typer.Context, names: Iterable[str]) -> list[str]:
    """Return those of a verb's options that the user named, as they are written."""
    return [f"--{name.replace('_', '-')}" for name in names if is_given(context, name)]
