"""Heads silenced together: what pairs share, and which many can go.

Letters: M documents.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from itertools import combinations
from typing import TYPE_CHECKING

from headwise.heads.documents import CLASSES, Text, make_documents
from headwise.heads.head_ids import HeadId
from headwise.heads.intervals import per_token
from headwise.heads.silencing import How, Silencing
from headwise.heads.sweep import Costs, OnProgress, Sweep, checked_heads, tokens_at_once
from headwise.hub import Subject

if TYPE_CHECKING:
    from pandas import DataFrame

_ALL = CLASSES.index("all")


def pairs(
    subject: Subject,
    texts: Sequence[Text],
    heads: Collection[HeadId],
    *,
    how: How = "zero",
    seed: int = 0,
    tokens: int | None = None,
    on_progress: OnProgress | None = None,
) -> DataFrame:
    """Measure what two heads cost together and apart, for every pair of some heads.

    Columns: layer_a, head_a, layer_b, head_b; delta_a and delta_b, each alone; joint, both at once;
    interaction = joint - (delta_a + delta_b) with low and high, its 95 % interval over texts. Above 0 the two
    stand in for each other (losing both costs more than the sum); below 0 they work as one.

    texts, how, seed, tokens: as for `ablate`. on_progress: as (done, total) in pairs and heads.

    Raises ValueError as `ablate`, and for fewer than two heads.
    """
    from pandas import DataFrame

    chosen = checked_heads(subject, heads)
    if len(chosen) < 2:
        raise ValueError(f"a pair needs two heads, got {len(chosen)}")
    sweep = sweep_on(subject, texts, how, seed, tokens)
    total = len(chosen) + len(list(combinations(chosen, 2)))
    alone = sweep.run(chosen)
    done = len(chosen)
    together: dict[tuple[HeadId, HeadId], tuple[Costs, int]] = {}
    for i, first in enumerate(chosen[:-1]):
        later = chosen[i + 1 :]
        costs = sweep.run(later, silenced=[first])
        together |= {(first, second): (costs, j) for j, second in enumerate(later)}
        done += len(later)
        if on_progress is not None:
            on_progress(done, total)
    rows = []
    counts = alone.counts[:, _ALL]
    for (first, second), (costs, j) in together.items():
        base = alone.base[:, _ALL]
        one, two = (alone.sums[chosen.index(head), :, _ALL] - base for head in (first, second))
        joint = costs.sums[j, :, _ALL] - base
        interaction = per_token(joint - one - two, counts)
        rows.append(
            {
                "layer_a": first[0],
                "head_a": first[1],
                "layer_b": second[0],
                "head_b": second[1],
                "delta_a": per_token(one, counts).mean,
                "delta_b": per_token(two, counts).mean,
                "joint": per_token(joint, counts).mean,
                "interaction": interaction.mean,
                "low": interaction.low,
                "high": interaction.high,
            }
        )
    return DataFrame(rows)


def greedy(
    subject: Subject,
    texts: Sequence[Text],
    *,
    budget: int | None = None,
    most: float | None = None,
    heads: Collection[HeadId] | None = None,
    how: How = "zero",
    seed: int = 0,
    tokens: int | None = None,
    on_progress: OnProgress | None = None,
) -> DataFrame:
    """Silence again and again the head that costs least, given those that are silent already.

    budget: how many heads to silence. most: stop before the loss has risen by more than this many nats per
    token. At least one of the two is needed.
    heads: those that may be silenced; default all.

    Columns, one row per step: step from 1; layer, head, the head that went; delta, how much the loss is above
    that of the whole model by now, with low and high, its 95 % interval over texts; cost, what this
    head added.

    Each step measures every head that is left, exactly. texts, how, seed, tokens: as for `ablate`.
    on_progress: as (done, total) in heads measured, with budget steps or until no head is left.

    Raises ValueError as `ablate`, for neither budget nor most, and for a budget that the heads do not fill.
    """
    from pandas import DataFrame

    left = checked_heads(subject, heads)
    if budget is None and most is None:
        raise ValueError("give budget, how many heads to silence, or most, how much loss to allow, or both")
    if most is not None and math.isnan(most):
        raise ValueError("most must be a number of nats per token, got NaN")
    if budget is not None and not 1 <= budget <= len(left):
        raise ValueError(f"budget must lie in 1 … {len(left)}, the heads there are, got {budget}")
    steps = len(left) if budget is None else budget
    sweep = sweep_on(subject, texts, how, seed, tokens)
    total, done = sum(range(len(left), len(left) - steps, -1)), 0
    silent: list[HeadId] = []
    rows: list[dict[str, float]] = []
    start = None
    for step in range(1, steps + 1):
        costs = sweep.run(left, silenced=silent)
        start = costs.base[:, _ALL] if start is None else start
        counts = costs.counts[:, _ALL]
        risen = [per_token(costs.sums[i, :, _ALL] - start, counts) for i in range(len(left))]
        best = min(range(len(left)), key=lambda i: risen[i].mean)
        if most is not None and risen[best].mean > most:
            break
        before = rows[-1]["delta"] if rows else 0.0
        layer, head = left.pop(best)
        silent.append((layer, head))
        now = risen[best]
        rows.append(
            {
                "step": step,
                "layer": layer,
                "head": head,
                "delta": now.mean,
                "low": now.low,
                "high": now.high,
                "cost": now.mean - before,
            }
        )
        done += len(left) + 1
        if on_progress is not None:
            on_progress(done, total)
    return DataFrame(rows, columns=["step", "layer", "head", "delta", "low", "high", "cost"])


def sweep_on(
    subject: Subject, texts: Sequence[Text], how: How = "zero", seed: int = 0, tokens: int | None = None
) -> Sweep:
    """Return a sweep over the tokens of texts; arguments and errors as for `ablate`."""
    tokens = tokens_at_once(subject, tokens)
    documents = make_documents(subject, texts, seed=seed)
    silencing = Silencing.make(subject, [documents], how, reference=documents, tokens=tokens, seed=seed)
    return Sweep(subject, documents, silencing, tokens=tokens)
