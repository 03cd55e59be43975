"""headwise group: fewer key/value heads, a smaller cache."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from typing import Annotated, Any, Literal

import typer

from headwise.cli.options import Device, Json, Quiet, Unknown
from headwise.cli.result import print_json
from headwise.cli.subjects import (
    AnyModel,
    Calibration,
    Data,
    HeldOut,
    NewFolder,
    calibration_rows,
    open_for_surgery,
    progress_of,
)


def group(
    model: AnyModel,
    out: NewFolder,
    kv_heads: Annotated[
        str | None,
        typer.Option(help="Key/value heads to leave: one number, or one per layer, such as 4,4,2,2."),
    ] = None,
    cache: Annotated[
        float | None,
        typer.Option(help="Or the share of the cache to leave, such as 0.25; each layer gets what it needs."),
    ] = None,
    method: Annotated[
        Literal["auto", "mean", "first", "mean+renorm", "aligned", "aligned+renorm", "closed", "fitted"],
        typer.Option(help="How heads are merged; auto measures all and keeps the best."),
    ] = "auto",
    groups: Annotated[
        Literal["contiguous", "similar", "auto"],
        typer.Option(help="Which heads are merged: neighbours, those most alike, or the better of both."),
    ] = "contiguous",
    data: Data = None,
    tokens: Calibration = 20_000,
    held_out: HeldOut = 4_000,
    unknown: Unknown = "error",
    device: Device = "auto",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Give a model fewer key/value heads, without training, so that it computes nearly the same.

    It takes a GPT of headwise or a Llama-shaped Hugging Face model (Llama, Mistral, Qwen2) and writes the
    same kind of folder. The methods are fitted to what the model computes on a text, auto chooses by the last
    fifth of it; the loss on the text that follows, which neither has seen, tells what was lost.
    """
    if (kv_heads is None) == (cache is None):
        raise ValueError("say how far to go: either --kv-heads 2, or --cache 0.25")
    counts = None if kv_heads is None else _counts(kv_heads)
    from headwise.cli.folders import write_like
    from headwise.files import check_new_folder

    check_new_folder(out)
    subject = open_for_surgery(model, device, unknown)
    from headwise.compress import counts_for_cache
    from headwise.compress import group as grouped
    from headwise.compress.grouping import wanted_counts
    from headwise.compress.rows import check_finite, losses
    from headwise.hub.dtypes import as_stored

    if counts is not None:
        wanted_counts(subject.model, counts)  # refuse before texts are read
    calibration, unseen = calibration_rows(subject, model, data, tokens, held_out)
    before = losses(subject.model, unseen)
    check_finite(subject.name, float(before.mean()))
    wanted: Any = counts if cache is None else counts_for_cache(subject, cache, calibration)
    # auto chooses by a part of the calibration text, so that nothing has seen what the loss is told of
    with _Told(quiet) as told_of:
        made = grouped(
            subject,
            wanted,
            method,
            calibration,
            groups=groups,
            on_layer=told_of.layer,
            on_candidate=told_of.candidate,
        )
    slim = as_stored(made.model, subject.stored_dtype)
    after = losses(slim, unseen)
    told = write_like(subject, slim, out)
    result = {
        "model": subject.name,
        "folder": str(out),
        "method": made.method,
        "groups": made.groups,
        "n_kv_head": [g for _, g in made.after],
        "n_kv_head_before": [g for _, g in made.before],
        "cache_share": made.cache_share,
        "loss_before": float(before.mean()),
        "loss_after": float(after.mean()),
        "held_out_tokens": len(after),
        "candidates": {f"{way}, {which}": loss for (way, which), loss in made.candidates.items()},
        "notes": told,
    }
    if as_json:
        print_json(result)
        return
    from headwise.report.tables import aligned

    if made.candidates:
        ranked = sorted(made.candidates.items(), key=lambda item: item[1])
        rows = [["method", "groups", "loss", "perplexity"]]
        rows += [[way, which, f"{loss:.4f}", f"{math.exp(loss):.1f}"] for (way, which), loss in ranked]
        typer.echo("What auto chose by, on the last fifth of the calibration text:")
        typer.echo("\n".join([*aligned(rows, left=(0, 1)), ""]))
    heads = [sorted({g for _, g in pairs}) for pairs in (made.before, made.after)]
    typer.echo(
        f"{subject.name}: {_numbers(heads[0])} → {_numbers(heads[1])} key/value heads by {made.method}; "
        f"the cache is {100 * made.cache_share:.0f} % of what it was"
    )
    typer.echo(
        f"loss on {len(after):,} unseen tokens: {before.mean():.4f} → {after.mean():.4f} nats "
        f"(perplexity {math.exp(before.mean()):.1f} → {math.exp(after.mean()):.1f})"
    )
    for line in told:
        typer.echo(f"note: {line}")
    typer.echo(f"wrote {out}")


class _Told(ExitStack):
    """Shows on stderr how far each candidate has got, and leaves a line for each that is measured."""

    def __init__(self, quiet: bool) -> None:
        super().__init__()
        self._quiet = quiet
        self._progress: Callable[[int, int], None] | None = None

    def layer(self, method: str, groups: str, done: int, total: int) -> None:
        if done == 1:
            self.close()
            self._progress = self.enter_context(progress_of(f"{method}, {groups}: layers", self._quiet))
        if self._progress is not None:
            self._progress(done, total)

    def candidate(self, method: str, groups: str, loss: float) -> None:
        self.close()
        if not self._quiet:
            typer.echo(f"{method}, {groups}: loss {loss:.4f}", err=True)


def _counts(text: str) -> int | list[int]:
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--kv-heads must be a number or numbers with commas, got {text!r}") from None
    return counts[0] if len(counts) == 1 else counts


def _numbers(counts: list[int]) -> str:
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} … {counts[-1]}"
