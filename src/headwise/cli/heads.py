"""headwise heads: what every head of a model does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from headwise.cli.numbering import former_line, with_former
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

if TYPE_CHECKING:
    from headwise.report.head_grid import HeadGrid

_LISTED = 48  # heads up to which all are listed
_PER_ROLE = 5
_FEW = 100  # queries, on fewer of which many heads have a role by accident


def heads(
    model: AnyModel,
    text: Text = None,
    data: Data = None,
    texts: Texts = 16,
    length: Length = 256,
    by: Annotated[
        str,
        typer.Option(
            help="What colours the grid: strength (of the role), or a statistic; --columns lists them."
        ),
    ] = "strength",
    repeated: Annotated[
        bool,
        typer.Option(
            help="Also score induction and duplicate tokens, on repeated random tokens. "
            "Default: where the model can read them."
        ),
    ] = True,
    every: Annotated[
        int, typer.Option(min=1, help="Look at every n-th query only, which is about that much faster.")
    ] = 1,
    columns: Annotated[
        bool, typer.Option("--columns", help="Say what each statistic is, then exit.")
    ] = False,
    out: TableOut = None,
    plot: Plot = None,
    unknown: Unknown = "error",
    device: Device = "auto",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Say what every head of a model does: its role, how strong it is, and what speaks for it.

    The statistics are averages over the texts; no matrix of weights is held, so texts may be long. A role's
    strength counts from uniform attention (0) to all of the weight (1). Run it under `torchrun` to share the
    texts out among processes.
    """
    from headwise.heads.repeated import REPEATED_COLUMNS
    from headwise.heads.statistics_columns import COLUMNS

    if columns:
        for column in COLUMNS + REPEATED_COLUMNS:
            typer.echo(f"{column.name:<24} {column.meaning} [{column.unit}, over {column.over}]")
        return
    check_outputs(out, plot, data, model)
    if not repeated and by in [column.name for column in REPEATED_COLUMNS]:
        raise ValueError(f"--by {by} is scored on repeated random tokens; leave out --no-repeated")
    names = ["strength", *(column.name for column in COLUMNS + REPEATED_COLUMNS)]
    if by not in names:
        raise ValueError(f"--by {by!r} is not a statistic; there are {', '.join(names)}")

    subject = open_model(model, device, unknown)
    chosen = read_texts(subject, model, text, data, texts, length)
    from headwise.heads import roles, statistics
    from headwise.heads.sharding import processes_of_torchrun

    with (
        processes_of_torchrun() as shard,
        progress_of("texts", quiet or shard.rank > 0) as progress,
    ):
        found = statistics(subject, chosen, repeated=repeated, every=every, progress=progress)
    if shard.rank > 0:
        return
    table = found.table
    judged = roles(table)

    from headwise.heads.role_rules import INITIALS
    from headwise.report.head_grid import head_grid, print_grid

    places = zip(judged["layer"].tolist(), judged["head"].tolist(), strict=True)
    marks = dict(zip(places, judged["role"].map(INITIALS).tolist(), strict=True))
    whole = with_former(table.merge(judged.drop(columns="output_share"), on=["layer", "head"]), model)
    grid: HeadGrid = head_grid(whole, by, marks=marks, title=f"{by} of each head, marked by its role")
    written = write_outputs(whole, grid, out, plot)
    tokens, queries = sum(map(len, chosen)), int(found.counts["entropy"].max())
    if as_json:
        result = {
            "model": subject.name,
            "texts": len(chosen),
            "tokens": tokens,
            "every": every,
            "queries": queries,
            "heads": whole.to_dict("records"),
        }
        print_json(result | written)
        return
    looked = "" if every == 1 else f"; {queries:,} queries looked at, one in {every}"
    typer.echo(
        f"{subject.name}: {len(table)} heads in {len(subject.layers)} layers, on "
        f"{counted(chosen, 'text')} of {tokens:,} tokens in all{looked}"
    )
    typer.echo(former + "\n" if (former := former_line(whole, model)) else "")
    print_grid(grid)
    from headwise.report.head_tables import role_lines

    for line in role_lines(judged, most=None if len(judged) <= _LISTED else _PER_ROLE):
        typer.echo(line)
    if queries < _FEW:
        typer.echo(f"note: roles rest on what {queries} queries look at; give more text to be sure of them")
    tell_outputs(out, plot, "statistics")
