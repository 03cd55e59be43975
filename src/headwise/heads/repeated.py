"""Scores on repeated random tokens: what a head does where the text leaves nothing else to go by.

Olsson et al. 2022 (In-context Learning and Induction Heads); Elhage et al. 2021.

Letters: B sequences, H heads, T tokens, s tokens of a period; i a query, j a key, A the weights of a head.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from headwise.attention.request import WeightsOf
from headwise.heads.seam import AttentionCall, observe
from headwise.heads.statistics_columns import EQUAL, Column
from headwise.heads.weights import weights_of
from headwise.hub.subject import Subject, require_subject

if TYPE_CHECKING:
    import pandas as pd

_LATER = "queries of the second copy and later"

REPEATED_COLUMNS = (
    Column(
        "repeated_previous",
        "on random tokens repeated once, the mass on the position before",
        "share",
        "queries but the first",
        EQUAL,
    ),
    Column(
        "duplicate",
        "on random tokens repeated once, the mass on earlier copies of the query's own token",
        "share",
        _LATER,
        EQUAL,
    ),
    Column(
        "induction",
        "on random tokens repeated once, the mass on what followed earlier copies of the query's own token",
        "share",
        _LATER,
        EQUAL,
    ),
    Column(
        "prefix_matching",
        "the same on 25 random tokens four times over, summed over the earlier copies (Olsson et al. 2022)",
        "share",
        _LATER,
        EQUAL,
    ),
    Column(
        "loss_drop",
        "how much better the model, not the head, predicts the second copy than the first; NaN if it does "
        "not predict the next token",
        "nats per token",
        "predictions within the copies",
    ),
)


@dataclass(frozen=True, eq=False)
class RepeatedScores:
    """By head (H,), for one layer."""

    previous: Tensor
    duplicate: Tensor
    induction: Tensor


def score_repeated(weights: Tensor, period: int) -> RepeatedScores:
    """Score weights (B, H, T, T) on sequences that repeat their first `period` tokens, all different.

    A query may have several earlier copies: their masses are summed, and the sums averaged over the queries
    from the second copy on, so that a perfect head scores 1 however many copies there are. The last query of
    the first copy stands on the same diagonal as the induction targets, but has none: it does not count.
    """
    tokens = weights.shape[2]
    index = torch.arange(tokens, device=weights.device)
    query, key = index[:, None], index[None, :]
    same = ((query - key) % period == 0) & (key < query)
    after = ((query - key + 1) % period == 0) & (key >= 1) & (key - 1 < query) & (key <= query)
    later = weights[:, :, period:].double()  # (B, H, T - s, T)
    before = weights.diagonal(-1, dim1=2, dim2=3).double()  # (B, H, T - 1)
    return RepeatedScores(
        before.mean(dim=(0, 2)),
        (later * same[period:]).sum(dim=3).mean(dim=(0, 2)),
        (later * after[period:]).sum(dim=3).mean(dim=(0, 2)),
    )


def repeated_tokens(subject: Subject, period: int, copies: int, sequences: int, seed: int) -> Tensor:
    """Return (sequences, copies · period) random ids: a copy's are all different, and none is special.

    Raises ValueError if the vocabulary or the model's length is too small.
    """
    usable = [index for index in range(subject.vocab_size) if index not in subject.special_ids]
    if len(usable) < period:
        raise ValueError(
            f"period={period} needs as many different tokens, but the vocabulary has {len(usable)} that are "
            "not special"
        )
    if subject.max_tokens is not None and period * copies > subject.max_tokens:
        raise ValueError(
            f"{copies} copies of {period} tokens are {period * copies}, but {subject.name} reads at most "
            f"{subject.max_tokens}"
        )
    source = torch.Generator().manual_seed(seed)
    ids = torch.tensor(usable)
    rows = [ids[torch.randperm(len(usable), generator=source)[:period]] for _ in range(sequences)]
    return torch.stack(rows).repeat(1, copies)


def induction_scores(
    subject: Subject, *, period: int | None = None, sequences: int = 10, seed: int = 0
) -> pd.DataFrame:
    """Return scores on repeated random tokens, one row per layer and head.

    Columns: layer, head and those of `REPEATED_COLUMNS`, each with what equal weights on the visible keys
    score (`…_uniform`). No token is put before the sequences. period: how
    many tokens are repeated once; default 50, or as many as the vocabulary and the model's length allow,
    which for prefix matching cut the period of 25 in the same way. Where they allow fewer than 3, scores are
    NaN: on so few tokens heads cannot be told apart.

    Raises ValueError for a period below 3, or larger than vocabulary and length allow.
    """
    import pandas

    require_subject(subject)
    once = _fitting(subject, 50, 2) if period is None else period
    if period is not None and period < 3:
        raise ValueError(f"period must be 3 tokens or more to tell heads apart, got {period}")
    if sequences < 1:
        raise ValueError(f"sequences must be at least 1, got {sequences}")
    scores, drop = _run(subject, once, 2, sequences, seed) if once >= 3 else ({}, math.nan)
    four = _fitting(subject, 25, 4)
    matching = _run(subject, four, 4, sequences, seed)[0] if four >= 3 else {}
    rows = []
    for layer in subject.layers:
        nothing = torch.full((layer.n_head,), math.nan)
        unknown = (RepeatedScores(nothing, nothing, nothing),) * 2
        found, prefix = (of.get(layer.index, unknown) for of in (scores, matching))
        columns: dict[str, Tensor] = {}
        for end, once_only, four_times in zip(("", "_uniform"), found, prefix, strict=True):
            columns[f"repeated_previous{end}"] = once_only.previous
            columns[f"duplicate{end}"] = once_only.duplicate
            columns[f"induction{end}"] = once_only.induction
            columns[f"prefix_matching{end}"] = four_times.induction
        for head in range(layer.n_head):
            numbers = {name: float(column[head]) for name, column in columns.items()}
            rows.append({"layer": layer.index, "head": head} | numbers | {"loss_drop": drop})
    return pandas.DataFrame(rows)


def _fitting(subject: Subject, period: int, copies: int) -> int:
    usable = subject.vocab_size - len(subject.special_ids)
    most = usable if subject.max_tokens is None else min(usable, subject.max_tokens // copies)
    return min(period, most)


@torch.no_grad()
def _run(
    subject: Subject, period: int, copies: int, sequences: int, seed: int
) -> tuple[dict[int, tuple[RepeatedScores, RepeatedScores]], float]:
    """Return by layer the scores and those of equal weights, and how many nats later copies are easier by."""
    ids = repeated_tokens(subject, period, copies, sequences, seed)
    scores: dict[int, tuple[RepeatedScores, RepeatedScores]] = {}

    def look(call: AttentionCall) -> None:
        if call.q.shape[2] == call.k.shape[2] and not (call.cross or call.layer.cross):
            which = WeightsOf(heads=list(range(call.layer.n_head)))
            equal = replace(call, q=torch.zeros_like(call.q), bias=None, sink=None)
            scores[call.layer.index] = (
                score_repeated(weights_of(call, which), period),
                score_repeated(weights_of(equal, which), period),
            )

    with observe(subject.model, look):
        logits = subject.run(subject.batch(ids.tolist()))
    if not subject.causal:
        return scores, math.nan
    targets = ids[:, 1:].to(logits.device)
    loss = F.cross_entropy(logits[:, :-1].transpose(1, 2).float(), targets, reduction="none")  # (B, T - 1)
    return scores, float(loss[:, : period - 1].mean() - loss[:, period:].mean())
