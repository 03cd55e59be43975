"""Which heads are dispensable: by gradients, by silencing each, by silencing one after the other, by lot."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from typing import Literal

from headwise.compress.pruning import (
    Rule,
    check_evenly,
    check_exactly,
    choose,
    free_parts,
    removable_parts,
    share_of_layer,
    sums_of,
    without_one,
)
from headwise.heads.ablation import ablate
from headwise.heads.documents import CLASSES
from headwise.heads.gate_gradients import importance
from headwise.heads.head_ids import HeadId, check_heads
from headwise.heads.sets import sweep_on
from headwise.heads.sweep import OnProgress, Sweep, all_heads
from headwise.hub.subject import Subject
from headwise.hub.surgery import head_counts

Way = Literal["importance", "ablation", "greedy", "random"]
"""importance: gradients, in one pass. ablation: what silencing each alone costs. greedy: again and again the
one that costs least, given those that are gone. random: by lot, to hold the others against."""


def rank(
    subject: Subject,
    texts: Sequence[Sequence[int]],
    by: Way = "importance",
    *,
    seed: int = 0,
    on_progress: OnProgress | None = None,
) -> list[HeadId]:
    """Return all heads, the dispensable ones first, each looked at alone.

    texts: ids of tokens. seed: for the lot.

    Raises:
        ValueError: an unknown way, or `greedy`, which looks at no head alone; as `ablate`.
    """
    if by == "random":
        heads = all_heads(subject)
        return random.Random(seed).sample(heads, len(heads))
    if by == "ablation":
        table = ablate(subject, texts, retrieval=None, on_progress=on_progress).table
        ranked = table.sort_values("delta", kind="stable")
    elif by == "importance":
        found = importance(subject, texts, on_progress=on_progress)
        ranked = found.sort_values("importance", kind="stable")
    else:
        raise ValueError(f"heads can be ranked by importance, ablation or random, got {by!r}")
    return list(zip(ranked["layer"].tolist(), ranked["head"].tolist(), strict=True))


def select(
    subject: Subject,
    texts: Sequence[Sequence[int]],
    count: int,
    by: Way = "importance",
    *,
    protect: Collection[HeadId] = (),
    rule: Rule = "groups",
    uniform: bool = False,
    seed: int = 0,
    on_progress: OnProgress | None = None,
) -> list[HeadId]:
    """Return which `count` heads to remove; the rest as for `rank` and `choose`.

    greedy measures each step all that may still go, exactly; of grouped heads it takes whole parts, by what a
    head of them costs.
    """
    if by == "greedy":
        return sorted(
            greedy_order(
                subject, texts, count, protect=protect, rule=rule, uniform=uniform, on_progress=on_progress
            )
        )
    order = rank(subject, texts, by, seed=seed, on_progress=on_progress)
    return choose(subject.model, order, count, protect=protect, rule=rule, uniform=uniform)


def greedy_order(
    subject: Subject,
    texts: Sequence[Sequence[int]],
    count: int,
    *,
    protect: Collection[HeadId] = (),
    rule: Rule = "groups",
    uniform: bool = False,
    on_progress: OnProgress | None = None,
) -> list[HeadId]:
    """Return which heads to remove, in the order in which they go; see `select`."""
    counts = head_counts(subject.model)
    shielded = set(check_heads([h for h, _ in counts], protect, "protect"))
    shared = rule == "within" and any(h != g for h, g in counts)
    order = rank(subject, texts, "importance") if shared else all_heads(subject)
    layers = removable_parts(subject.model, order, rule)
    left, room = free_parts(layers, shielded, least=1)
    if uniform:
        each = share_of_layer(layers, count)
        check_evenly(each, layers, room, bool(shielded))
        room = [(size, min(number, each // size)) for size, number in room]
    check_exactly(count, room, bool(shielded))
    sweep = sweep_on(subject, texts)
    gone: list[HeadId] = []
    while len(gone) < count:
        fitting = {
            layer
            for layer, (size, number) in enumerate(room)
            if number and count - len(gone) - size in sums_of(without_one(room, layer), count)
        }
        candidates = [(layer, part) for layer, parts in enumerate(left) for part in parts if layer in fitting]
        costs = _costs(sweep, [part for _, part in candidates], gone)
        layer, part = candidates[min(range(len(costs)), key=costs.__getitem__)]
        gone += part
        left[layer].remove(part)
        room = without_one(room, layer)
        if on_progress is not None:
            on_progress(len(gone), count)
    return gone


def _costs(sweep: Sweep, parts: Sequence[Sequence[HeadId]], gone: Sequence[HeadId]) -> list[float]:
    """Return what silencing each part costs beside what is silent already, in nats per head."""
    place = CLASSES.index("all")
    if all(len(part) == 1 for part in parts):  # what comes before their layers is computed once
        costs = sweep.run([part[0] for part in parts], silenced=gone)
        order = {head: i for i, head in enumerate(costs.heads)}
        base = float(costs.base[:, place].sum())
        return [float(costs.sums[order[part[0]], :, place].sum()) - base for part in parts]
    found = []
    for first, *others in parts:
        costs = sweep.run([first], silenced=[*gone, *others])
        found.append(float(costs.sums[0, :, place].sum()))
    base = float(sweep.run([parts[0][0]], silenced=gone).base[:, place].sum())
    return [(total - base) / len(part) for total, part in zip(found, parts, strict=True)]
