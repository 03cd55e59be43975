"""Retrieval heads: those that look, from a question, at the value that is asked for.

Letters: B rows of a batch, L tokens of a row; H query heads.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.attention import WeightsOf
from headwise.compress.recall import IGNORED, Recall
from headwise.heads.head_ids import HeadId
from headwise.heads.seam import AttentionCall, observe
from headwise.heads.weights import weights_of
from headwise.hub.modes import evaluating
from headwise.hub.subject import Subject
from headwise.hub.surgery import next_token_logits

RETRIEVAL = 0.4
"""The weight on the value asked for that makes a head a retrieval head."""


@torch.no_grad()
def retrieval_scores(subject: Subject, task: Recall, *, batch: int = 8) -> dict[HeadId, float]:
    """Return for each head how much weight it puts, from a question, on the value asked for, on average."""
    sums: dict[int, Tensor] = {}
    for ids, wanted, gap in zip(
        *(torch.split(t, batch) for t in (task.ids, task.wanted, task.gap)), strict=True
    ):
        row, question = (wanted != IGNORED).nonzero(as_tuple=True)
        value = question - gap[row, question] + 1

        def add(call: AttentionCall, where: tuple[Tensor, ...] = (row, question, value)) -> None:
            weights = weights_of(call, WeightsOf()).cpu()  # (B, H, L, L)
            row, question, value = where
            found = weights[row, :, question, value].double().sum(0)  # (H,)
            sums[call.layer.index] = sums.get(call.layer.index, 0) + found

        with evaluating(subject.model), observe(subject.model, add):
            next_token_logits(subject.model, ids.to(subject.device))
    asked = int((task.wanted != IGNORED).sum())
    return {
        (layer, head): float(each) / asked for layer, found in sums.items() for head, each in enumerate(found)
    }


def retrieval_heads(subject: Subject, task: Recall) -> list[HeadId]:
    """Return the heads that put at least 0.4 of their weight on the value asked for, on average.

    The threshold is that of the role of induction heads, and ours.
    """
    return [head for head, score in retrieval_scores(subject, task).items() if score >= RETRIEVAL]
