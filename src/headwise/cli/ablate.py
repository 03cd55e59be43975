"""headwise ablate: what each head is worth."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from headwise.cli.interrupts import interruptible
from headwise.cli.numbering import former_line, with_former
from headwise.cli.options import Device, Json, Quiet, Seed, Unknown
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


def ablate(
    model: AnyModel,
    text: Text = None,
    data: Data = None,
    texts: Texts = 16,
    length: Length = 256,
    how: Annotated[
        Literal["zero", "mean", "resample"],
        typer.Option(
            help="What takes the place of a silent head's output: nothing, its mean over the texts, or its "
            "output on another text."
        ),
    ] = "zero",
    measure: Annotated[
        Literal["loss", "output"],
        typer.Option(help="Loss per token, or how far the output turns, for models that predict nothing."),
    ] = "loss",
    retrieval: Annotated[
        Literal["repeat", "pairs", "none"] | None,
        typer.Option(
            help="Random sequences on which tokens can only be looked up, or none. "
            "Default: repeat; none with --measure output."
        ),
    ] = None,
    importance: Annotated[
        bool | None,
        typer.Option(
            "--importance/--no-importance",
            help="Also rank heads by gradients of the loss, and say how far the two orders agree. "
            "Default: yes; no with --measure output.",
        ),
    ] = None,
    seed: Seed = 0,
    work: Annotated[
        Path | None,
        typer.Option(help="Folder in which progress is kept; the same command goes on from there."),
    ] = None,
    out: TableOut = None,
    plot: Plot = None,
    unknown: Unknown = "error",
    device: Device = "auto",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Measure what each head of a model is worth: what is lost when it alone is silenced.

    Losses are in nats per token, with the 95 % interval over the texts. Below 0 the model is better off
    without the head. Run it under `torchrun` to share the texts out among processes.
    """
    check_outputs(out, plot, data, model)
    if importance and measure == "output":
        raise ValueError(
            "--importance is of the loss, which --measure output does not measure; leave out --importance"
        )
    retrieval = retrieval or ("repeat" if measure == "loss" else "none")
    from headwise import heads

    subject = open_model(model, device, unknown)
    chosen = read_texts(subject, model, text, data, texts, length)
    from headwise.heads.sharding import processes_of_torchrun

    told = (
        f"interrupted; the same command goes on from {work}" if work else "interrupted; --work keeps progress"
    )
    with processes_of_torchrun() as shard, interruptible(told):
        with progress_of("heads on texts", quiet or shard.rank > 0) as progress:
            found = heads.ablate(
                subject,
                chosen,
                how=how,
                measure=measure,
                retrieval=None if retrieval == "none" else retrieval,
                seed=seed,
                folder=work,
                on_progress=progress,
            )
        table = found.table
        agreement = None
        if importance is not False and measure == "loss":
            with progress_of("gradients on texts", quiet or shard.rank > 0) as progress:
                gradients = heads.importance(subject, chosen, how=how, seed=seed, on_progress=progress)
            table = table.merge(gradients, on=["layer", "head"])
            agreement = found.agreement(gradients)
        if shard.rank > 0:
            return
    table = with_former(table, model)

    from headwise.report.head_grid import head_grid, print_grid
    from headwise.report.head_tables import worth_lines

    unit = "nats per token" if measure == "loss" else "1 - cosine"
    title = f"what is lost without each head, {how} ablation"
    grid = head_grid(table, "delta", title=title, unit=unit, signed=measure == "loss")
    written = write_outputs(table, grid, out, plot)
    if as_json:
        result = {
            "model": subject.name,
            "how": how,
            "measure": measure,
            "texts": len(chosen),
            "baseline": found.baseline,
            "agreement": None if agreement is None else vars(agreement),
            "heads": table.to_dict("records"),
            "notes": list(found.notes),
            **written,
        }
        print_json(result)
        return
    base = found.baseline["all"]
    typer.echo(
        f"{subject.name}: {len(table)} heads, {how} ablation on {counted(chosen, 'text')}"
        + (f"; loss with all heads {base:.4f} nats per token" if measure == "loss" else "")
    )
    typer.echo(former + "\n" if (former := former_line(table, model)) else "")
    print_grid(grid)
    for line in worth_lines(table, unit, most=_LISTED):
        typer.echo(line)
    if agreement is not None:
        typer.echo(
            f"\nrank correlation with gradients: {agreement.importance:.2f} (importance with the size of "
            f"what is lost), {agreement.predicted:.2f} (what it predicts to first order with what is lost)"
        )
    for note in found.notes:
        typer.echo(f"note: {note}")
    tell_outputs(out, plot)
