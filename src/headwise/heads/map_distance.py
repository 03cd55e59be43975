"""How far apart the attention maps of heads are, strip by strip, so that no whole map is ever held.

Letters: B texts, T queries, S keys, H query heads, n and m heads of two sides, t queries of a strip.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from headwise.attention import WeightsOf
from headwise.heads.seam import AttentionCall
from headwise.heads.weights import weights_of

STRIP = 2**22
"""How many weights of one side a strip may hold, roughly."""


def map_distances(a: AttentionCall, b: AttentionCall, queries: Tensor, *, strip: int = STRIP) -> Tensor:
    """Sum the distance between the maps of each head of one call and each of another, over queries.

    The Jensen–Shannon distance of two queries' weights p and q, √(JS / ln 2) with
    JS = H((p + q) / 2) - (H(p) + H(q)) / 2, which is a metric from 0 (the same) to 1 (nothing in common)
    (Endres and Schindelin 2003). A learned sink counts as one more key.

    a, b: of the same texts, so that T and S agree; heads may differ in number.
    queries: (B, T) bool, those to count.

    Returns the sums (n, m) in float64.
    """
    size, length = queries.shape
    rows = max(1, strip // (size * max(a.q.shape[1], b.q.shape[1]) * (a.k.shape[2] + 1)))
    sink = a.sink is not None or b.sink is not None
    sums = torch.zeros(a.q.shape[1], b.q.shape[1], dtype=torch.float64)
    for start in range(0, length, rows):
        counted = queries[:, start : start + rows]  # (B, t)
        if not bool(counted.any()):
            continue
        some = list(range(start, start + counted.shape[1]))
        one = _rows(a, some, sink)[:, counted]  # (n, queries, S)
        two = one if b is a else _rows(b, some, sink)[:, counted]  # (m, queries, S)
        entropy = torch.special.entr(two).sum(2)  # (m, queries)
        for head, weights in enumerate(one):
            first = head if b is a else 0  # what comes before is known: distances are symmetric
            mixed = torch.special.entr((weights + two[first:]) / 2).sum(2)
            divergence = mixed - (torch.special.entr(weights).sum(1) + entropy[first:]) / 2
            distance = (divergence / math.log(2)).clamp(0, 1).sqrt().double().sum(1).cpu()
            if b is a:
                distance[0] = 0.0
                sums[first:, head] += distance
            sums[head, first:] += distance
    return sums


def _rows(call: AttentionCall, rows: list[int], sink: bool) -> Tensor:
    """Return the weights of some queries, (H, B, t, S) in float32 or wider.

    sink: whether what a sink takes is shown as a last key, also where there is none.
    """
    weights = weights_of(call, WeightsOf(rows=rows))
    if sink:
        weights = torch.cat([weights, (1 - weights.sum(3, keepdim=True)).clamp(min=0)], dim=3)
    return weights.transpose(0, 1)
