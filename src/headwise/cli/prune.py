"""headwise prune: heads taken out for good."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from headwise.cli.options import Device, Json, Quiet, Unknown, check_seed, options_given
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

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from torch import Tensor, nn

    from headwise.heads.head_ids import HeadId
    from headwise.hub import Subject

_ROWS = 4
"""Rows of text in a batch that is learned from."""


def prune(
    context: typer.Context,
    model: AnyModel,
    out: NewFolder,
    count: Annotated[int | None, typer.Option(help="How many heads to take out.")] = None,
    heads: Annotated[
        str | None, typer.Option(help="Or which: layer.head with commas, such as 0.3,2.1.")
    ] = None,
    by: Annotated[
        Literal["importance", "ablation", "greedy", "random"],
        typer.Option(
            help="What says which heads are dispensable: gradients; silencing each; silencing again and "
            "again the one that costs least, given those that are gone; or the lot, as a control."
        ),
    ] = "importance",
    steps: Annotated[int, typer.Option(help="Take them out in so many rounds, ranked anew in each.")] = 1,
    recover: Annotated[
        int | None,
        typer.Option(
            help="Tokens that the model learns on after each round, from text and from what it said with all "
            "heads. They are those of its training, or the --tokens of --data, again and again."
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(help="For the lot, and the order of what is learned.", callback=check_seed)
    ] = 0,
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
        typer.Option(
            help="Heads that stay, as for --heads. Default: all induction and retrieval heads; `none` for "
            "none."
        ),
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
    if heads is not None and steps != 1:
        raise ValueError("--steps ranks heads anew, so it goes with --count and not with --heads")
    idle = options_given(context, ("by", "rule", "uniform")) if heads is not None else []
    if idle:
        raise ValueError(f"{', '.join(idle)} is about which heads to choose; leave it out with --heads")
    if by != "random" and recover is None and options_given(context, ("seed",)):
        raise ValueError(
            "--seed is for --by random and for --recover; nothing else is drawn, so leave it out"
        )
    if recover is not None and recover < 1:
        raise ValueError(f"--recover must be at least 1, got {recover}")
    if count is not None and count < 1:
        raise ValueError(f"--count must be at least 1, got {count}")
    from headwise.cli.folders import write_like
    from headwise.files import check_new_folder

    check_new_folder(out)
    chosen = None if heads is None else _parsed(heads, "--heads")
    kept = None if protect is None else [] if protect == "none" else _parsed(protect, "--protect")
    subject = open_for_surgery(model, device, unknown)
    from headwise import compress
    from headwise.compress.rows import check_finite, losses
    from headwise.heads.head_ids import head_names
    from headwise.hub.dtypes import as_stored

    calibration, unseen = calibration_rows(subject, model, data, tokens, held_out)
    before = losses(subject.model, unseen)
    check_finite(subject.name, float(before.mean()))
    if kept is None:
        kept = [] if chosen is not None else _lookers(subject, calibration)
    learn = None if recover is None else _learner(subject, model, data, calibration, recover, seed)
    texts = [row[0].tolist() for row in calibration]
    with progress_of("choosing heads", quiet) as progress:

        def select(now: Subject, number: int, stay: Collection[HeadId]) -> list[HeadId]:
            if chosen is not None:
                return chosen
            return compress.select(
                now,
                texts,
                number,
                by,
                protect=stay,
                rule=rule,
                uniform=uniform,
                seed=seed,
                on_progress=progress,
            )

        made, stages = compress.prune_gradually(
            subject,
            count if count is not None else len(chosen or ()),
            steps=steps,
            select=select,
            recover=learn,
            protect=kept,
            rule=rule,
            uniform=uniform,
            on_stage=lambda model, _: float(losses(model, unseen).mean()),
        )
    slim = as_stored(made.model, subject.stored_dtype)
    after = losses(slim, unseen)
    told = write_like(subject, slim, out, made.removed)
    named = head_names(made.removed)
    if as_json:
        result = {
            "model": subject.name,
            "folder": str(out),
            "removed": named,
            "protected": head_names(kept),
            "n_head": [h for h, _ in made.after],
            "n_kv_head": [g for _, g in made.after],
            "cache_share": made.cache_share,
            "loss_before": float(before.mean()),
            "loss_after": float(after.mean()),
            "held_out_tokens": len(after),
            "rounds": [{"removed": head_names(stage.removed), "loss": stage.note} for stage in stages],
            "recovered_on": recover,
            "notes": told,
        }
        print_json(result)
        return
    typer.echo(f"{subject.name}: took out {len(named)} heads: {', '.join(named)}")
    if kept:
        typer.echo(f"protected: {', '.join(head_names(kept))}")
    learned = f" after learning on for {recover:,} tokens" if recover else ""
    for number, stage in enumerate(stages, 1):
        if steps > 1:
            gone = ", ".join(head_names(stage.removed))
            typer.echo(f"round {number}: took out {gone}; loss {stage.note:.4f}{learned}")
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
    twice = next((head for head in found if found.count(head) > 1), None)
    if twice is not None:
        raise ValueError(f"{option} names {twice[0]}.{twice[1]} twice; name each head once")
    return found


def _learner(
    subject: Subject, source: str, data: str | None, rows: list[Tensor], tokens: int, seed: int
) -> Callable[[nn.Module], nn.Module]:
    """Return what lets a model learn on from text and from what the subject says."""
    import torch

    from headwise import compress
    from headwise.hub.subject import OwnSubject
    from headwise.training.run_data import training_tokens

    recipe: dict[str, Any] = {"tokens": tokens, "seed": seed}
    if not isinstance(subject, OwnSubject):
        recipe["optimizer"] = "adamw"  # as such models were trained with
    learned: Any = training_tokens(source) if data is None else None
    if learned is None:
        whole = [row for row in rows if row.shape == rows[0].shape]
        batches = [torch.cat(whole[i : i + _ROWS]) for i in range(0, len(whole) - len(whole) % _ROWS, _ROWS)]
        if not batches:
            raise ValueError(
                f"--recover learns from {_ROWS} rows of {rows[0].shape[1]} tokens at once, and --tokens "
                f"gives {len(whole)}; give more"
            )
        learned = [(batch[:, :-1], batch[:, 1:]) for batch in batches]
    return lambda model: compress.uptrain(model, subject.model, learned, **recipe).model


def _lookers(subject: Subject, rows: list[Tensor]) -> list[HeadId]:
    """Return the induction heads and the retrieval heads, which losses alone do not tell the worth of."""
    from headwise import compress
    from headwise.heads import roles, statistics

    found = roles(statistics(subject, [row[0].tolist() for row in rows[:4]], repeated=True).table)
    found = found[found["role"] == "induction"]
    heads = {*zip(found["layer"].tolist(), found["head"].tolist(), strict=True)}
    if compress.why_no_recall(subject, longest=subject.max_tokens) is None:
        task = compress.recall_tasks(subject, powers=[1.0], rows=16, longest=subject.max_tokens)[0]
        heads |= {*compress.retrieval_heads(subject, task)}
    return sorted(heads)
