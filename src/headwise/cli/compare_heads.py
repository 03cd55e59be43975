"""headwise compare-heads: two models head by head."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from headwise.cli.options import Device, Json, Quiet, Unknown
from headwise.cli.result import print_json
from headwise.cli.subjects import (
    AnyModel,
    Data,
    Length,
    Text,
    Texts,
    check_spared,
    open_model,
    progress_of,
    read_texts,
)

_LISTED = 10


def compare_heads(
    a: AnyModel,
    b: AnyModel,
    text: Text = None,
    data: Data = None,
    texts: Texts = 16,
    length: Length = 256,
    statistics: Annotated[
        bool, typer.Option(help="Also say how each statistic of a head changed; in --out and --json.")
    ] = True,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Write the table to this .csv, .json or .parquet file."),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the grid to this .png or .svg file.")] = None,
    unknown: Unknown = "error",
    device: Device = "auto",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Compare two models head by head: what each head looks at, and what it adds.

    Both read the same texts. They must make the same tokens of them and have equally many layers, as two
    checkpoints of one model do.
    """
    from headwise.report.figures import check_picture, save_figure
    from headwise.report.tables import check_table_file, save_table

    if out is not None:
        check_table_file(out)
        check_spared(out, data, a, b)
    if plot is not None:
        check_picture(plot)
    from headwise import heads

    first, second = (open_model(each, device, unknown) for each in (a, b))
    chosen = read_texts(first, a, text, data, texts, length)
    with progress_of("comparing", quiet) as progress:
        table = heads.compare(first, second, chosen, statistics=statistics, on_progress=progress)

    from headwise.report.head_grid import grid_figure, head_grid, print_grid
    from headwise.report.head_tables import change_lines

    grid = head_grid(table, "map_distance", title="how far each head's map moved", unit="Jensen–Shannon")
    if out is not None:
        save_table(table, out)
    if plot is not None:
        save_figure(grid_figure(grid), plot)
    if as_json:
        result = {
            "a": first.name,
            "b": second.name,
            "texts": len(chosen),
            "heads": json.loads(table.to_json(orient="records", double_precision=15)),
            "file": None if out is None else str(out),
            "plot": None if plot is None else str(plot),
        }
        print_json(result)
        return
    typer.echo(f"{first.name} and {second.name}: {len(table)} heads on {len(chosen)} texts\n")
    print_grid(grid)
    for line in change_lines(table, most=_LISTED):
        typer.echo(line)
    for path, what in ((out, "table"), (plot, "grid")):
        if path is not None:
            typer.echo(f"wrote the {what} to {path}")
