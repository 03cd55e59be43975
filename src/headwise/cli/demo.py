"""headwise demo: the whole tour."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from headwise.cli.interrupts import interruptible
from headwise.cli.options import Json, Quiet


def demo(
    data: Annotated[
        str,
        typer.Option(help="Text to learn: built-in, a file, a folder or a glob; see headwise train --help."),
    ] = "python-docs",
    tokenizer: Annotated[
        Literal["char", "bpe"], typer.Option(help="One token per character, or byte-level BPE.")
    ] = "char",
    max_steps: Annotated[int, typer.Option(help="Steps of the main training.")] = 1000,
    compare_steps: Annotated[int, typer.Option(help="Steps of each run of the comparison.")] = 300,
    seeds: Annotated[int, typer.Option(help="Runs per variant of the comparison.")] = 3,
    out: Annotated[Path, typer.Option(help="Folder for the page and the runs.")] = Path("report"),
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train, compare, look and report on built-in text: the whole tour in a few minutes.

    What is done is kept: the same command again only fills in what is missing.
    """
    from headwise.cli.progress import observer_for
    from headwise.report.demo import DemoSettings, run_demo

    settings = DemoSettings(data, tokenizer, max_steps, compare_steps, seeds)
    with interruptible("stopped; the same command goes on from there"):
        page = run_demo(out, settings, observer_for(quiet))
    if not quiet:
        typer.echo(f"the report is {page.resolve()}")
    if as_json:
        typer.echo(json.dumps({"report": str(page.resolve()), "model": str((out / "model").resolve())}))
