"""headwise prune: heads taken out for good."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Annotated, Literal

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
    open_model,
    progress_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from headwise.hub import Subject

Order = Literal["importance", "ablation"]


def prune(
    model: AnyModel,
    out: NewFolder,
    count: Annotated[int | None, typer.Option(help="How many heads to take out.")] = None,
    heads: Annotated[
        str | None, typer.Option(help="Or which: layer.head with commas, such as 0.3,2.1.")
    ] = None,
    by: Annotated[
        Order,
        typer.Option(help="What says which heads are dispensable: gradients, or silencing each."),
    ] = "importance",
    rule: Annotated[
        Literal["groups", "within"],
        typer.Option(
            help="Where query heads share key/value heads: whole groups, which makes the cache smaller, or "
            "one head of each group."
        ),
    ] = "groups",
    uniform: Annotated[
        bool, typer.Option(help="As many from each layer, as stock Hugging Face classes need.")
    ] = False,
    protect: Annotated[
        str | None,
        typer.Option(help="Heads that stay, as for --heads. Default: all induction heads; `none` for none."),
    ] = None,
    data: Data = None,
    tokens: Calibration = 20_000,
    held_out: HeldOut = 4_000,
    unknown: Unknown = "error",
    device: Device = "auto",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Take heads out of a model, the dispensable ones first.

    The weights become smaller; what is left computes what the model does with those heads silent. It takes a
    GPT of headwise or a Llama-shaped Hugging Face model, and writes the same kind of folder.
    """
    if (count is None) == (heads is None):
        raise ValueError("say what to take out: either --count 8, or --heads 0.3,2.1")
    if count is not None and count < 1:
        raise ValueError(f"--count must be at least 1, got {count}")
    from headwise.cli.folders import check_new_folder, write_like

    check_new_folder(out)
    chosen = None if heads is None else _parsed(heads, "--heads")
    kept = None if protect is None else [] if protect == "none" else _parsed(protect, "--protect")
    subject = open_model(model, device, unknown)
    from headwise import compress
    from headwise.compress.rows import losses

    calibration, unseen = calibration_rows(subject, model, data, tokens, held_out)
    if kept is None:
        kept = [] if chosen is not None else _induction_heads(subject, calibration)
    if chosen is None:
        with progress_of("ranking heads", quiet) as progress:
            order = _order(subject, calibration, by, progress)
        chosen = compress.choose(subject.model, order, count or 0, protect=kept, rule=rule, uniform=uniform)
    before = losses(subject.model, unseen)
    made = compress.prune(subject.model, chosen, protect=kept)
    after = losses(made.model, unseen)
    told = write_like(subject, made.model, out, made.removed)
    named = [f"{layer}.{head}" for layer, head in made.removed]
    if as_json:
        result = {
            "model": subject.name,
            "folder": str(out),
            "removed": named,
            "protected": [f"{layer}.{head}" for layer, head in kept],
            "n_head": [h for h, _ in made.after],
            "n_kv_head": [g for _, g in made.after],
            "cache_share": made.cache_share,
            "loss_before": float(before.mean()),
            "loss_after": float(after.mean()),
            "held_out_tokens": len(after),
            "notes": told,
        }
        print_json(result)
        return
    typer.echo(f"{subject.name}: took out {len(named)} heads: {', '.join(named)}")
    if kept:
        typer.echo(f"protected: {', '.join(f'{layer}.{head}' for layer, head in kept)}")
    typer.echo(
        f"loss on {len(after):,} unseen tokens: {before.mean():.4f} → {after.mean():.4f} nats (perplexity "
        f"{math.exp(before.mean()):.1f} → {math.exp(after.mean()):.1f}); the cache is "
        f"{100 * made.cache_share:.0f} % of what it was"
    )
    for line in told:
        typer.echo(f"note: {line}")
    typer.echo(f"wrote {out}")


def _parsed(text: str, option: str) -> list[tuple[int, int]]:
    parts = [re.fullmatch(r"\s*(\d+)\.(\d+)\s*", part) for part in text.split(",")]
    found = [(int(part[1]), int(part[2])) for part in parts if part]
    if len(found) < len(parts):
        raise ValueError(f"{option} must name heads as layer.head with commas, such as 0.3,2.1, got {text!r}")
    return found


def _order(
    subject: Subject, rows: list[Tensor], by: Order, progress: Callable[[int, int], None] | None
) -> list[tuple[int, int]]:
    """Return all heads, the dispensable ones first."""
    from headwise import heads

    texts = [row[0].tolist() for row in rows]
    if by == "ablation":
        table = heads.ablate(subject, texts, retrieval=None, on_progress=progress).table
        ranked = table.sort_values("delta", kind="stable")
    else:
        ranked = heads.importance(subject, texts).sort_values("importance", kind="stable")
    return list(zip(ranked["layer"].tolist(), ranked["head"].tolist(), strict=True))


def _induction_heads(subject: Subject, rows: list[Tensor]) -> list[tuple[int, int]]:
    from headwise.heads import roles, statistics

    found = roles(statistics(subject, [row[0].tolist() for row in rows[:4]], repeated=True).table)
    found = found[found["role"] == "induction"]
    return list(zip(found["layer"].tolist(), found["head"].tolist(), strict=True))
