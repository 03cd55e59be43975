"""Removing heads a few at a time, the model learning on in between."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from torch import nn

from headwise.compress.pruning import PruneResult, Rule, prune
from headwise.heads.head_ids import HeadId, check_heads
from headwise.hub.subject import Subject
from headwise.hub.surgery import head_counts

Select = Callable[[Subject, int, Collection[HeadId]], list[HeadId]]
"""Gets a model, how many heads are to go and those that stay; returns those that go."""


@dataclass(frozen=True)
class Stage:
    """One round of removing heads and learning on."""

    removed: list[HeadId]
    """By their numbers in the model at first."""
    note: Any
    """What `on_stage` returned."""


def prune_gradually(
    subject: Subject,
    count: int,
    *,
    steps: int,
    select: Select,
    recover: Callable[[nn.Module], nn.Module] | None = None,
    protect: Collection[HeadId] = (),
    rule: Rule = "groups",
    uniform: bool = False,
    on_stage: Callable[[nn.Module, int], Any] | None = None,
) -> tuple[PruneResult, list[Stage]]:
    """Remove heads in several rounds, each time those that are dispensable by then.

    select: chooses the heads of a round; `compress.select` with what it is to be chosen by.
    recover: returns the model after it has learned on, such as `uptrain` gives it; it must keep its heads.
    rule, uniform: as `select` takes them, so that each round gets a number that can be met.
    on_stage: gets the model after each round, and the number of heads gone; may measure.

    The heads in the result are named by their numbers in the model at first.

    Raises:
        ValueError: as `choose`; no round, or more rounds than parts that can go.
    """
    before = head_counts(subject.model)
    protect = check_heads([h for h, _ in before], protect, "protect")
    rounds = _rounds(before, count, steps, rule, uniform)
    names = [list(range(h)) for h, _ in before]  # by layer, what each head was called at first
    model = subject.model
    gone: list[HeadId] = []
    stages: list[Stage] = []
    for number in rounds:
        kept = [(layer, names[layer].index(head)) for layer, head in protect]
        chosen = select(subject.with_model(model), number, kept)
        model = prune(model, chosen, protect=kept).model
        removed = [(layer, names[layer][head]) for layer, head in chosen]
        names = [
            [head for head in heads if (layer, head) not in removed] for layer, heads in enumerate(names)
        ]
        gone += removed
        if recover is not None:
            model = recover(model)
        stages.append(Stage(sorted(removed), None if on_stage is None else on_stage(model, len(gone))))
    return PruneResult(model, sorted(gone), before, head_counts(model)), stages


def _rounds(counts: list[tuple[int, int]], count: int, steps: int, rule: Rule, uniform: bool) -> list[int]:
    """Return how many heads go in each round, in whole parts."""
    sizes = [(h // g if rule == "groups" else 1 if h == g else g) for h, g in counts if h]
    unit = math.lcm(*sizes) * (len(sizes) if uniform else 1)
    whole = count // unit
    if not 1 <= steps <= max(1, whole):
        raise ValueError(
            f"steps must lie in 1 … {max(1, whole)}, got {steps}: heads go in parts of {unit}, and {count} "
            f"are to go"
        )
    ends = [unit * (whole * (i + 1) // steps) for i in range(steps - 1)]
    ends.append(count)
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]
