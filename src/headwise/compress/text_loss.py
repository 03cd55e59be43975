"""What a parent and its children lose on a text.

Letters: N rows, L tokens of a row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headwise.compress.rows import losses
from headwise.heads.intervals import per_token


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
    return list(each_text_loss(models, rows))


def each_text_loss(models: Sequence[nn.Module], rows: Sequence[Tensor]) -> Iterator[TextLoss]:
    """Do what `text_losses` does, one model after the other."""
    rows = [row for batch in rows for row in torch.split(batch, 1)]
    if len(rows) < 2:
        told = f"{len(rows)}, of {rows[0].shape[1]} tokens" if rows else "none"
        raise ValueError(f"an interval needs at least 2 rows of text, got {told}; give more text")
    recurring = torch.cat([completes_bigram(row).flatten() for row in rows]).cpu()
    sizes = [row.shape[1] - 1 for row in rows]
    parent = torch.empty(0)
    for number, model in enumerate(models):
        found = losses(model, rows)
        parent = found if number == 0 else parent
        sums = torch.stack([part.sum() for part in torch.split(found - parent, sizes)])
        more = per_token(sums, torch.tensor(sizes))
        yield TextLoss(
            loss=float(found.mean()),
            recurring=float(found[recurring].mean()),
            other=float(found[~recurring].mean()),
            more=more.mean,
            low=more.low,
            high=more.high,
        )


def completes_bigram(ids: Tensor) -> Tensor:
    """Say of each token but the first of rows (N, L) whether it follows as it did before: (N, L - 1) bool.

    True where the pair of the token before and this one stood earlier in the row (Arora et al. 2023 call it
    an associative recall hit).
    """
    before, after = ids[:, :-1], ids[:, 1:]
    same = (before.unsqueeze(2) == before.unsqueeze(1)) & (after.unsqueeze(2) == after.unsqueeze(1))
    return same.tril(-1).any(dim=2)
