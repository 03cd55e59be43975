"""headwise compare-heads: two models head by head."""

from __future__ import annotations

from typing import Annotated

import typer

from headwise.cli.numbering import former_line, with_former, with_former_matches
from headwise.cli.options import Device, Json, Quiet, Unknown
from headwise.cli.result import print_json
from headwise.cli.subjects import (
    AnyModel,
    Data,
    Length,
    Plot,
    TableOut,
    Text,
    Texts,
    check_outputs,
    counted,
    open_model,
    progress_of,
    read_texts,
    tell_outputs,
    write_outputs,
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
    out: TableOut = None,
    plot: Plot = None,
    unknown: Unknown = "error",
    device: Device = "auto",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Compare two models head by head: what each head looks at, and what it adds.

    Both read the same texts. They must make the same tokens of them and have equally many layers, as two
    checkpoints of one model do. Run it under `torchrun` to share the texts out among processes.
    """
    check_outputs(out, plot, data, a, b)
    from headwise import heads

    first, second = (open_model(each, device, unknown) for each in (a, b))
    chosen = read_texts(first, a, text, data, texts, length)
    from headwise.heads.sharding import processes_of_torchrun

    with processes_of_torchrun() as shard, progress_of("comparing", quiet or shard.rank > 0) as progress:
        table = heads.compare(first, second, chosen, statistics=statistics, on_progress=progress)
    if shard.rank > 0:
        return

    import pandas as pd

    names = [(layer.index, head) for layer in second.layers for head in range(layer.n_head)]
    others = with_former(pd.DataFrame(names, columns=["layer", "head"]), b)
    table = with_former_matches(with_former(table, a), others)

    from headwise.report.head_grid import head_grid, print_grid
    from headwise.report.head_tables import change_lines

    grid = head_grid(table, "map_distance", title="how far each head's map moved", unit="Jensen–Shannon")
    written = write_outputs(table, grid, out, plot)
    if as_json:
        result = {
            "a": first.name,
            "b": second.name,
            "texts": len(chosen),
            "heads": table.to_dict("records"),
            **written,
        }
        print_json(result)
        return
    typer.echo(f"{first.name} and {second.name}: {len(table)} heads on {counted(chosen, 'text')}")
    columns = "map_match_before and output_match_before"
    former = (
        former_line(table, a, f"heads of {first.name}"),
        former_line(others, b, f"heads of {second.name}", columns),
    )
    for line in filter(None, former):
        typer.echo(line)
    if any(former):
        typer.echo("heads of the same number now are compared, whatever numbers they had")
    typer.echo()
    print_grid(grid)
    for line in change_lines(table, most=_LISTED):
        typer.echo(line)
    tell_outputs(out, plot)
