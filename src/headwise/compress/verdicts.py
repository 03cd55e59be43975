"""What a parent and its children answer in a probe, and whether it says anything.

Letters: N rows, L tokens of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headwise.compress.passkeys import PassKeys, passkey_answers
from headwise.compress.recall import Recall, Score, by_gap, recall_answers
from headwise.heads.intervals import Estimate, per_token
from headwise.hub.subject import Subject

CANNOT_JUDGE = "cannot judge"

GATE = 0.95
"""What the parent must reach in a probe for it to say anything about its children."""


@dataclass(frozen=True)
class Verdict:
    """What a parent and its children answer in one probe."""

    scores: list[Score]
    """The parent's first."""
    more: list[Estimate]
    """How much larger the share of right answers is than the parent's, with the 95 % interval over rows."""
    chance: float
    """The share of whoever guesses."""
    pairs: int | None = None
    power: float | None = None
    gaps: tuple[int, int] | None = None
    """For recall: pairs of a row, how questions are spread (see `recall_rows`), and from which gap to below
    which, None for all."""
    depth: float | None = None
    """For pass keys."""

    @property
    def shares(self) -> list[float]:
        """The shares of right answers."""
        return [score.share for score in self.scores]

    @property
    def asked(self) -> int:
        """How many questions there are."""
        return self.scores[0].asked

    @property
    def can_judge(self) -> bool:
        """Whether the parent reaches the gate; if not, the shares of its children say nothing."""
        return self.scores[0].share >= GATE

    @property
    def remark(self) -> str:
        """`cannot judge` where the parent misses the gate, else empty."""
        return "" if self.can_judge else CANNOT_JUDGE


def recall_verdict(models: Sequence[nn.Module], task: Recall) -> Verdict:
    """Return what a parent and its children recall of a task."""
    return recall_verdicts(models, task)[0]


def recall_verdicts(models: Sequence[nn.Module], task: Recall, buckets: Sequence[int] = ()) -> list[Verdict]:
    """Return what a parent and its children recall of a task: of all of it, then by the gap.

    buckets: as for `recall_scores`; ranges in which nothing is asked are left out.
    """
    buckets = [edge for edge in buckets if edge <= task.ids.shape[1]]
    found = [recall_answers(model, task) for model in models]
    whole = task.ids.shape[1] + 1
    parts: list[tuple[tuple[int, int] | None, Tensor]] = [(None, by_gap(task, ())[0, whole])]
    if buckets:
        parts += by_gap(task, buckets).items()
    return [
        _verdict(found, here, task.chance, pairs=task.pairs, power=task.power, gaps=gaps)
        for gaps, here in parts
        if here.any()
    ]


def _verdict(found: Sequence[Tensor], asked: Tensor, chance: float, **what: Any) -> Verdict:
    """Sum up answers (N, L) of several models, rows being the sample."""
    counts = asked.sum(1)
    rights = [(right & asked).sum(1) for right in found]
    return Verdict(
        scores=[Score(int(right.sum()), int(counts.sum())) for right in rights],
        more=[per_token(right - rights[0], counts) for right in rights],
        chance=chance,
        **what,
    )


def passkey_verdicts(subjects: Sequence[Subject], task: PassKeys) -> list[Verdict]:
    """Return by depth how often a parent and its children find a pass key; raises as `passkey_scores`."""
    found = [passkey_answers(subject, task) for subject in subjects]  # each (tries, depths)
    return [
        _verdict(
            [right[:, [place]] for right in found],
            torch.ones(task.tries, 1, dtype=torch.bool),
            10.0**-task.digits,
            depth=depth,
        )
        for place, depth in enumerate(task.depths)
    ]
