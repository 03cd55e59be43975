"""headwise uptrain: what a smaller model lost, learned back."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headwise.cli.interrupts import interruptible
from headwise.cli.options import Device, Json, Quiet, Unknown
from headwise.cli.result import print_json
from headwise.cli.subjects import NewFolder

if TYPE_CHECKING:
    from headwise.compress import UptrainOutcome


def uptrain(
    child: Annotated[
        str, typer.Argument(help="The model that lost heads: a folder of headwise or of Hugging Face.")
    ],
    out: NewFolder,
    parent: Annotated[
        str | None,
        typer.Option(
            help="The model it was made of, or learned from before. Default: the one that its folder names."
        ),
    ] = None,
    share: Annotated[
        float | None,
        typer.Option(
            help="How much to learn from, as a share of the tokens that the parent was trained on "
            "(0.05 if neither this nor --tokens is given)."
        ),
    ] = None,
    tokens: Annotated[int | None, typer.Option(help="Or how many tokens to learn from.")] = None,
    kl: Annotated[
        float | None,
        typer.Option(
            help="Weight of KL(parent ‖ child) beside the cross-entropy, 1 if not given; 0 for text alone."
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="The text: a file, a folder, a pattern in quotes, `-`, or a built-in name (python-docs, "
            "python-source, shakespeare). Default: the tokens that the parent's run folder holds."
        ),
    ] = None,
    held_out: Annotated[
        int | None,
        typer.Option(help="Most tokens at the end of --data to measure on (20000 or a tenth if not given)."),
    ] = None,
    length: Annotated[
        int | None,
        typer.Option(help="Tokens of a window (if not given, block_size; 512 for Hugging Face models)."),
    ] = None,
    control: Annotated[
        Literal["parent", "scratch", "both"] | None,
        typer.Option(
            help="Also let the parent itself learn on, or the child's shape learn from random weights, on as "
            "many tokens."
        ),
    ] = None,
    evaluations: Annotated[int | None, typer.Option(help="Points of the curve, 10 if not given.")] = None,
    optimizer: Annotated[
        Literal["muon", "adamw"] | None,
        typer.Option(help="If not given that of the parent's run, else muon; adamw for Hugging Face models."),
    ] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option(help="Peak rate of AdamW (if not given half of that of the parent's run, or 0.0003)."),
    ] = None,
    matrix_learning_rate: Annotated[
        float | None,
        typer.Option(help="Peak rate of Muon (if not given half of that of the parent's run, or 0.01)."),
    ] = None,
    warmup_steps: Annotated[
        int | None, typer.Option(help="Steps to the peak rate (if not given a tenth, at most 50).")
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(help="Windows of a forward pass (if not given that of the parent's run, or 4)."),
    ] = None,
    grad_accumulation: Annotated[int | None, typer.Option(help="Forward passes of a step.")] = None,
    seed: Annotated[int | None, typer.Option(help="Order of the text, dropout; 0 if not given.")] = None,
    unknown: Unknown = "error",
    device: Device = "auto",
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with the uptraining in --out, bit for bit on the CPU."),
    ] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Let a model that lost heads learn on, for a small share of what its parent learned from.

    What is made small is the cross-entropy on text plus the divergence from what the parent predicts. The
    learning rate falls to 0 over the tokens. The best weights go to a new folder of the same kind; the
    child's stays as it is. Ctrl-C finishes the step, saves, and exits with 130; `--resume` goes on.
    """
    from headwise.cli.progress import observer_for
    from headwise.compress import UptrainConfig, uptrain_folder

    given = {
        "parent": parent,
        "share": share,
        "tokens": tokens,
        "data": data,
        "held_out": held_out,
        "length": length,
        "evaluations": evaluations,
        "controls": {"both": {"parent", "scratch"}, None: None}.get(control, {control}),
        "optimizer": optimizer,
        "learning_rate": learning_rate,
        "matrix_learning_rate": matrix_learning_rate,
        "warmup_steps": warmup_steps,
        "batch_size": batch_size,
        "grad_accumulation": grad_accumulation,
        "seed": seed,
        "kl": kl,
        "unknown": None if unknown == "error" else unknown,
        "device": None if device == "auto" else device,
    }
    config = UptrainConfig.of({name: value for name, value in given.items() if value is not None})
    with interruptible():
        outcome = uptrain_folder(child, out, config, resume=resume, observer=observer_for(quiet))
    if not quiet:
        _tell(outcome)
    if as_json:
        print_json(outcome.to_json())


def _tell(outcome: UptrainOutcome) -> None:
    from headwise.report.tables import aligned

    child = outcome.child
    size = child.tokens / child.steps
    rows = [["tokens", "share", "loss"]] if outcome.original_tokens else [["tokens", "loss"]]
    for tokens, loss in child.curve:
        shares = [f"{100 * tokens / outcome.original_tokens:.2f} %"] if outcome.original_tokens else []
        rows.append([f"{tokens:,}", *shares, f"{loss:.4f}"])
    typer.echo("\n".join([*aligned(rows, left=()), ""]))
    rows = [["model", "loss", "perplexity", "learned from"]]

    def row(name: str, loss: float, tokens: float) -> None:
        rows.append([name, f"{loss:.4f}", f"{math.exp(loss):.2f}", f"{round(tokens):,}" if tokens else ""])

    row("parent", outcome.parent_loss, 0)
    row("child before", child.loss_before, 0)
    row("child after", child.loss_after, child.best_step * size)
    names = {"parent": "control: parent trained on", "scratch": "control: child's shape from random weights"}
    for name, learnt in outcome.controls.items():
        row(names[name], learnt.loss_after, learnt.best_step * size)
    typer.echo("\n".join([*aligned(rows, left=(0,)), ""]))
    lost, back = child.loss_before - outcome.parent_loss, child.loss_before - child.loss_after
    if lost > 0 and child.best_step:
        typer.echo(
            f"of {lost:.4f} nats that the child had lost, {back:.4f} are back ({100 * back / lost:.0f} %)"
        )
    best = child.best_step
    of = f"losses over all {outcome.held_out_tokens:,} held-out tokens; parent: {outcome.parent}"
    if best == 0:
        typer.echo(
            f"it did not help: the start was better than all {len(child.curve) - 1} evaluations after it; "
            f"{outcome.folder} holds the child's weights as they came. Try more tokens (--tokens) or "
            f"lower rates (--learning-rate)\n{of}"
        )
    else:
        typer.echo(
            f"{of}; wrote the weights of step {best} of {child.steps} ({round(best * size):,} tokens) "
            f"to {outcome.folder}"
        )
