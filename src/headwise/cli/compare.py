"""headwise compare: variants under equal conditions, and whether the difference is real."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headwise.cli.flags import Config, config_flags, given
from headwise.cli.interrupts import interruptible
from headwise.cli.options import Json, Quiet
from headwise.cli.result import print_json


@config_flags
def compare(
    rungs: Annotated[
        str | None,
        typer.Option(help="Presets to compare, for example single-head,multi-head; the first is the base."),
    ] = None,
    vary: Annotated[
        str | None,
        typer.Option(help="A field of model or training and its values, for example n_head=1,2,4,8."),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Runs per variant. Differences are paired by seed.")] = 5,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the runs. Default: runs/compare- and the variants' names.")
    ] = None,
    config: Config = None,
    as_json: Json = False,
    quiet: Quiet = False,
    **flags: Any,
) -> None:
    """Train variants under equal conditions and say whether the difference is real.

    Every variant sees the same batches for the same number of steps, once per seed. What is done is kept: the
    same command again goes on where it was stopped, and more `--seeds` add to it.
    """
    from headwise.training.comparison import compare as run
    from headwise.training.comparison import slug, variants

    if (rungs is None) == (vary is None):
        raise ValueError("say what to compare: either --rungs a,b or --vary field=1,2")
    field, _, values = ("preset", "", rungs) if rungs is not None else str(vary).partition("=")
    if not values:
        raise ValueError(f"--vary wants field=value,value, got {vary!r}")
    configs = variants(
        field.strip().replace("-", "_"), [value.strip() for value in values.split(",")], config, given(flags)
    )
    out = out or Path("runs") / slug(f"compare-{field}-{values}" if vary else f"compare-{values}")

    from headwise.cli.progress import observer_for

    with interruptible(f"stopped; {out} keeps what is done, and the same command goes on from there"):
        comparison = run(configs, out, seeds=seeds, observer=observer_for(quiet))

    from headwise.report.curves import comparison_plot
    from headwise.report.figures import save_figure

    save_figure(comparison_plot(comparison.to_json()), out / "comparison.png")
    if not quiet:
        _print(comparison, out)
    if as_json:
        print_json(comparison.to_json())


def _print(comparison: Any, out: Path) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        console = Console(width=120)
    columns, rows = comparison.table()
    table = Table(box=None, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left")
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)
    console.print()
    for sentence in [v.conclusion for v in comparison.variants[1:]] + comparison.notes:
        console.print(Text(sentence))
    console.print()
    samples = comparison.variants
    console.print(Text(f"samples after {comparison.prompt!r}:"))
    for start in range(0, len(samples), 3):  # three fit side by side
        part = samples[start : start + 3]
        beside = Table(box=None, pad_edge=False, padding=(0, 3, 1, 0), expand=False)
        for variant in part:
            beside.add_column(variant.name, ratio=1, overflow="fold")
        beside.add_row(*(Text(variant.sample) for variant in part))
        console.print(beside)
    console.print(Text(f"comparison.json, comparison.png and all runs in {out}"))
