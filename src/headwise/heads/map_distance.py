"""How far apart the attention maps of heads are, strip by strip, so that no whole map is ever held.

Letters: B texts, T queries, S keys, H query heads, n and m heads of two sides, t queries of a strip.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.attention.chosen import chosen_weights
from headwise.attention.functional import checked_request
from headwise.attention.request import Request
from headwise.heads.seam import AttentionCall

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
    one_of = _Maps.of(a, sink)
    two_of = one_of if b is a else _Maps.of(b, sink)
    sums = torch.zeros(a.q.shape[1], b.q.shape[1], dtype=torch.float64)
    for start in range(0, length, rows):
        counted = queries[:, start : start + rows]  # (B, t)
        if not bool(counted.any()):
            continue
        some = list(range(start, start + counted.shape[1]))
        one = one_of.rows(some)[:, counted]  # (n, queries, S)
        two = one if b is a else two_of.rows(some)[:, counted]  # (m, queries, S)
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


@dataclass(frozen=True, eq=False)
class _Maps:
    """The maps of one call, asked for by queries."""

    request: Request
    keys: int
    sink: bool
    """Whether the sink is shown as a key, also where there is none."""

    @classmethod
    def of(cls, call: AttentionCall, sink: bool) -> _Maps:
        wide = torch.promote_types(call.q.dtype, torch.float32)
        request, _ = checked_request(
            call.q.to(wide),
            call.k.to(wide),
            call.v.to(wide),
            mask=call.mask,
            bias=call.bias,
            scale=call.scale,
            dropout=0.0,
            offset=None,
            softcap=call.softcap,
            sink=call.sink,
            gate=None,
            return_weights=False,
        )
        return cls(request, call.k.shape[2], sink)

    def rows(self, rows: list[int]) -> Tensor:
        """Return the weights of some queries, (H, B, t, S) in float32 or wider, those of a sink last."""
        weights = chosen_weights(self.request, list(range(self.request.q.shape[1])), rows, self.keys)
        if self.sink:
            weights = torch.cat([weights, (1 - weights.sum(3, keepdim=True)).clamp(min=0)], dim=3)
        return weights.transpose(0, 1)
