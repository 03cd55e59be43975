"""What a model expects of a text, untouched and with heads switched off.

Letters: T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headwise.heads.documents import NOTHING, make_batch, mask_id_of, masked
from headwise.heads.head_ids import HeadId
from headwise.hub import Subject
from headwise.report.server.requests import HowSilent
from headwise.report.server.switched import Switched, document_of

CANDIDATES = 8
"""Tokens that are named at a place, the likeliest of the untouched model and of the silenced one."""


@torch.no_grad()
def reading(
    subject: Subject, ids: Sequence[int], off: Sequence[HeadId], how: HowSilent, at: int | None
) -> dict[str, Any]:
    """Return losses and candidates as the page takes them.

    losses: per token, None where it is not predicted; of a model that predicts nothing, how far the output
    of each token turns (1 - cosine). loss: their means, and what the silence costs, as `heads.ablate`
    measures it. candidates: with their probabilities after token `at`, or in its place where tokens are
    filled in.

    Raises ValueError for heads that are not there, and for a token outside the text.
    """
    at = len(ids) - 1 if at is None else at
    if at >= len(ids):
        raise ValueError(f"at names token {at}, but the text has tokens 0 to {len(ids) - 1}")
    document = document_of(subject, ids)
    switched = Switched(subject, document, off, how)
    batch = make_batch(subject, [document], [0])
    plain = subject.run(batch.tokens)[0]  # (T, ·)
    if not bool(torch.isfinite(plain).all()):
        raise ValueError(
            f"{subject.name} gives numbers that are not finite (NaN or infinite): its weights are damaged, "
            "or too large for their dtype"
        )
    silent = None
    if switched.off:
        with switched.on():
            silent = subject.run(batch.tokens)[0]
    told: dict[str, Any] = {"predicts": subject.predicts, "at": at, "tokens": len(ids)}
    told["labels"] = subject.labels(ids)
    told["losses"], told["loss"] = _losses(subject, batch.targets[0], plain, silent)
    told["candidates"] = _candidates(subject, ids, at, switched, plain, silent)
    return told


def _losses(
    subject: Subject, targets: Tensor, plain: Tensor, silent: Tensor | None
) -> tuple[dict[str, Any], dict[str, float | None]]:
    there = targets != NOTHING  # (T,)
    if subject.causal and len(targets) < 2:  # nothing is predicted
        return {"plain": None, "silent": None}, {"plain": None, "silent": None, "delta": None}
    each: dict[str, Tensor] = {}
    if subject.predicts == "nothing":
        if silent is not None:
            each["silent"] = 1 - F.cosine_similarity(silent.float(), plain.float(), dim=-1)
    else:
        each = {
            name: F.cross_entropy(output[there].float(), targets[there], reduction="none")
            for name, output in (("plain", plain), ("silent", silent))
            if output is not None
        }
    where = there.nonzero()[:, 0].tolist()
    if subject.causal:
        where = [place + 1 for place in where]  # the loss of a token comes from the output before it
    losses: dict[str, Any] = {"plain": None, "silent": None}
    means: dict[str, float | None] = {"plain": None, "silent": None, "delta": None}
    for name, values in each.items():
        row: list[float | None] = [None] * len(targets)
        for place, value in zip(where, values.tolist(), strict=True):
            row[place] = value
        losses[name] = row
        means[name] = float(values.double().mean())
    if means["silent"] is not None:
        means["delta"] = means["silent"] - (means["plain"] or 0.0)
    return losses, means


def _candidates(
    subject: Subject,
    ids: Sequence[int],
    at: int,
    switched: Switched,
    plain: Tensor,
    silent: Tensor | None,
) -> list[dict[str, Any]]:
    if subject.predicts == "nothing":
        return []
    if not subject.causal:
        if mask_id_of(subject) is None or ids[at] in subject.special_ids:
            return []
        hidden = subject.batch([masked(subject, ids, {at})])
        plain = subject.run(hidden)[0]
        if silent is not None:
            with switched.on():
                silent = subject.run(hidden)[0]
    shares = [_probabilities(subject, output[at]) for output in (plain, silent) if output is not None]
    count = min(CANDIDATES, len(shares[0]))
    chosen = list(dict.fromkeys(index for share in shares for index in share.topk(count).indices.tolist()))
    labels = subject.labels(chosen)
    return [
        {
            "id": index,
            "label": label,
            "plain": float(shares[0][index]),
            "silent": float(shares[1][index]) if len(shares) > 1 else None,
        }
        for index, label in zip(chosen, labels, strict=True)
    ]


def _probabilities(subject: Subject, scores: Tensor) -> Tensor:
    """Return the probability of each id with a token, of all that the model has a score for."""
    return torch.softmax(scores.float().cpu().double(), dim=0)[: subject.vocab_size]
