"""Options that several verbs share."""

from __future__ import annotations

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
