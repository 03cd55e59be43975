"""headwise train: text in, model folder out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headwise.cli.flags import Config, config_flags, given
from headwise.cli.interrupts import interruptible
from headwise.cli.options import Json, Quiet
from headwise.cli.result import print_json


@config_flags
def train(
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the run. Default: runs/, then preset and a new number."),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Go on with the run in --out where it was left, bit for bit on the CPU."
        ),
    ] = False,
    config: Config = None,
    as_json: Json = False,
    quiet: Quiet = False,
    **flags: Any,
) -> None:
    """Train a language model made of attention heads on your own text.

    The run folder becomes a model folder with the best weights, for `headwise generate` and `headwise show`.
    Ctrl-C finishes the step, saves, and exits with 130; `--resume` goes on from there. When resuming, the
    run's own configuration holds, and only some fields may change: max_steps (the learning rate then follows
    the new schedule), eval_every, checkpoint_every, keep_checkpoints, early_stop_patience, device, compile,
    tensorboard.
    """
    from headwise.training.config import RunConfig

    if resume and out is None:
        raise ValueError("--resume needs --out RUN, the folder of the run to go on with")
    if resume and config is None and out is not None:
        config = out / "config.toml"
        if not config.is_file():
            raise ValueError(f"there is no run to resume in {out} (it has no config.toml)")
    run = RunConfig.from_toml(config, given(flags))
    out = out or _next_free(Path("runs"), run.preset)

    from headwise.cli.progress import observer_for
    from headwise.training import Interrupted, NonFiniteError, loop

    with interruptible():
        try:
            result = loop.train(run, out, resume=resume, observer=observer_for(quiet))
        except (Interrupted, NonFiniteError):  # what is done is worth a look
            _draw_losses(out)
            raise
    _draw_losses(out)
    if not quiet:
        if result.val_loss is None:
            typer.echo("validation loss: none, no text was held out")
        else:
            typer.echo(
                f"validation loss: {result.val_loss:.4f} over all {result.validation_tokens:,} held-out "
                f"tokens, weights of step {result.best_step}"
            )
        speed = f"; {result.tokens_per_second:,.0f} tokens/s" if result.tokens_per_second else ""
        typer.echo(f"{result.parameters:,} parameters; {result.steps:,} steps{speed}")
        typer.echo(f"model, metrics and loss.png in {out}; next: headwise generate {out}")
    if as_json:
        print_json(result.to_json())


def _draw_losses(run: Path) -> None:
    from headwise.report.curves import loss_curves
    from headwise.report.figures import save_figure
    from headwise.training.metrics import read_metrics

    records = read_metrics(run)
    if records:
        save_figure(loss_curves({"": records}), run / "loss.png")


def _next_free(folder: Path, preset: str) -> Path:
    number = 1
    while (folder / f"{preset}-{number}").exists():
        number += 1
    return folder / f"{preset}-{number}"
