"""Two models on one text: what the second loses, with an interval, and where.

Letters: R rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headwise.compress.probes import Recall, completes_bigram, recall_scores
from headwise.compress.rows import losses
from headwise.student_t import mean_interval

GATE = 0.95
"""What the parent must reach in a probe for it to say anything about its children."""


@dataclass(frozen=True)
class TextLoss:
    """Losses of a model on a text, in nats per token."""

    loss: float
    recurring: float
    """On tokens that complete a pair of tokens that stood earlier in the row; nan if there are none."""
    other: float
    """On all other tokens."""
    more: float
    """How much more than the parent's; 0 for the parent."""
    low: float
    high: float
    """The 95 % interval of `more`, from the differences row by row."""

    @property
    def perplexity(self) -> float:
        return math.exp(self.loss)

    def bits_per_byte(self, tokens: int, text_bytes: int) -> float:
        """Return the loss in bits per byte of a text of so many predicted tokens and bytes."""
        return self.loss * tokens / text_bytes / math.log(2)


def text_losses(models: Sequence[nn.Module], rows: Sequence[Tensor]) -> list[TextLoss]:
    """Return the losses of a parent and its children on the same rows of tokens (1, T).

    Rows are taken for independent of one another, which tokens are not.

    Raises:
        ValueError: fewer than two rows.
    """
    rows = [row for batch in rows for row in torch.split(batch, 1)]
    if len(rows) < 2:
        raise ValueError(f"an interval needs at least 2 rows of text, got {len(rows)}")
    recurring = torch.cat([completes_bigram(row).flatten() for row in rows]).cpu()
    sizes = [row.shape[1] - 1 for row in rows]
    results: list[TextLoss] = []
    parent = torch.empty(0)
    for number, model in enumerate(models):
        found = losses(model, rows)
        parent = found if number == 0 else parent
        differences = [float(part.mean()) for part in torch.split(found - parent, sizes)]
        low, high = mean_interval(differences) if number else (0.0, 0.0)
        results.append(
            TextLoss(
                loss=float(found.mean()),
                recurring=float(found[recurring].mean()),
                other=float(found[~recurring].mean()),
                more=float((found - parent).mean()),
                low=low,
                high=high,
            )
        )
    return results


@dataclass(frozen=True)
class RecallVerdict:
    """What models recall of one task."""

    shares: list[float]
    """The share of right answers, the parent's first."""
    asked: int
    can_judge: bool
    """Whether the parent reaches the gate; if not, the shares of its children say nothing."""


def recall_verdict(models: Sequence[nn.Module], task: Recall) -> RecallVerdict:
    """Return the shares of right answers of a parent and its children, and whether they can be judged by."""
    scores = [next(iter(recall_scores(model, task).values())) for model in models]
    return RecallVerdict([s.share for s in scores], scores[0].asked, scores[0].share >= GATE)
