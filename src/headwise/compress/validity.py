"""Whether a recall task asks for what retrieval heads do: without them it fails, without others it does not.

Letters: B rows of a batch, N rows, L tokens of a row; H query heads.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from headwise.compress.recall import Recall, recall_scores
from headwise.compress.retrieval import retrieval_scores
from headwise.compress.verdicts import GATE
from headwise.heads.head_ids import HeadId
from headwise.heads.seam import observe
from headwise.heads.sweep import OnProgress, all_heads
from headwise.hub.subject import Subject

if TYPE_CHECKING:
    from pandas import DataFrame

OTHERS = 0.25
"""A task is valid if as many random heads cost at most this share of what the retrieval heads cost."""


@dataclass(frozen=True)
class Silenced:
    """The shares of right answers with so many heads silent."""

    heads: int
    top: float
    """With the first heads by retrieval score."""
    random: list[float]
    """With as many of the other heads, draw by draw."""

    @property
    def median(self) -> float:
        """The median of the draws: one that hits a head on which the others build is no typical one."""
        return median(self.random)


@dataclass(frozen=True)
class ProbeCheck:
    """What silencing heads does to a recall task."""

    full: float
    """The share of right answers with all heads."""
    chance: float
    order: list[HeadId]
    """All heads, those that look most at the value asked for first."""
    scores: list[float]
    """How much of its weight each of them puts there, on average."""
    steps: list[Silenced]
    """With 1, 2, 4 … heads silent, until the top ones cost half of what there is to lose."""

    @property
    def can_judge(self) -> bool:
        """Whether the model solves the task in the first place."""
        return self.full >= GATE

    @property
    def valid(self) -> bool:
        """Whether the top heads cost at least half of what there is to lose, and others far less."""
        last = self.steps[-1]
        cost = self.full - last.top
        others = self.full - last.median
        return self.can_judge and 2 * cost >= self.full - self.chance and others <= OTHERS * cost

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "can_judge": self.can_judge, "valid": self.valid}

    @property
    def table(self) -> DataFrame:
        """One row per number of silent heads: heads, top; of the draws random (their median), random_least,
        random_most.
        """
        from pandas import DataFrame

        return DataFrame(
            [
                {
                    "heads": step.heads,
                    "top": step.top,
                    "random": step.median,
                    "random_least": min(step.random),
                    "random_most": max(step.random),
                }
                for step in self.steps
            ]
        )


def check_probe(
    subject: Subject,
    task: Recall,
    *,
    draws: int = 9,
    seed: int = 0,
    on_progress: OnProgress | None = None,
) -> ProbeCheck:
    """Silence the heads that look most at the values asked for, and as many others drawn at random.

    Heads are ranked by the weight that they put, from a question, on the value that is asked for (after Wu et
    al. 2024, arXiv:2404.15574). 1, 2, 4 … of them are silenced, at most half, until half of the share of
    right answers beyond chance is lost.

    Raises:
        ValueError: a model of a single head; no draw.
    """
    heads = all_heads(subject)
    if len(heads) < 2 or draws < 1:
        raise ValueError(
            f"the check needs at least 2 heads to tell apart and 1 draw, got {len(heads)} and {draws}"
        )
    scores = retrieval_scores(subject, task)
    order = sorted(heads, key=lambda head: -scores[head])
    full = _share(subject, task, ())
    chance = task.chance
    draw = random.Random(seed)
    counts = [2**i for i in range(len(heads)) if 2 * 2**i <= len(heads)]
    steps: list[Silenced] = []
    for done, number in enumerate(counts, 1):
        top = _share(subject, task, order[:number])
        others = [_share(subject, task, draw.sample(order[number:], number)) for _ in range(draws)]
        steps.append(Silenced(number, top, others))
        if on_progress is not None:
            on_progress(done, len(counts))
        if 2 * (full - top) >= full - chance:
            break
    return ProbeCheck(full, chance, order, [scores[head] for head in order], steps)


def _share(subject: Subject, task: Recall, silent: Sequence[HeadId]) -> float:
    """Return the share of right answers with heads silent."""
    gates = {
        layer.index: torch.ones(layer.n_head, device=subject.device)
        for layer in subject.layers
        if any(layer.index == index for index, _ in silent)
    }
    for index, head in silent:
        gates[index][head] = 0.0
    with observe(subject.model, gates=gates):
        (score,) = recall_scores(subject.model, task).values()
    return score.share
