"""The weights of chosen heads and queries, computed apart from the output: they cost what they show.

Letters: B batch, H query heads, G key/value heads, T queries, S keys, K head width of q and k; h and t count
the heads and queries that were chosen.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from headwise.attention import reference
from headwise.attention.masks import Region
from headwise.attention.request import Request, sight_of


def chosen_weights(request: Request, heads: list[int], rows: list[int], keys: int) -> Tensor:
    """Return the weights (B, h, t, S) before dropout, in the dtype of q.

    rows count from the first query of the whole call and keys is its S, of which the request holds a region.
    """
    region, batch = request.region, request.q.shape[0]
    inside = [i for i, row in enumerate(rows) if region.row <= row < region.row + region.rows]
    if not heads or not inside:
        return request.q.new_zeros(batch, len(heads), len(rows), keys)
    weights = _within(
        request, heads, [rows[i] - region.row for i in inside]
    )  # (B, h, t inside, S of the region)
    weights = F.pad(weights, (region.key, keys - region.key - region.keys))  # (B, h, t inside, S)
    if len(inside) == len(rows):
        return weights
    where = torch.tensor(inside, dtype=torch.int64, device=weights.device)
    return weights.new_zeros(batch, len(heads), len(rows), keys).index_copy(2, where, weights)


def all_weights(request: Request) -> Tensor:
    """Return the weights (B, H, T, S) of the request's region before dropout, in the dtype of q."""
    return reference.weights(request, request.sight()).to(request.q.dtype)


def _within(request: Request, heads: list[int], rows: list[int]) -> Tensor:
    """Return the weights over the keys of the region; rows count from its first query."""
    q = _take(_take(request.q, 1, heads), 2, rows)  # (B, h, t, K)
    k = request.k
    if heads != list(range(request.q.shape[1])):
        k = _take(k, 1, [head // request.group for head in heads])  # (B, h, S, K)
    bias = request.bias
    if bias is not None:
        bias = bias if bias.shape[1] == 1 else _take(bias, 1, heads)
        bias = bias if bias.shape[2] == 1 else _take(bias, 2, rows)
    sink = None if request.sink is None else _take(request.sink, 0, heads)
    allowed = _allowed(request, rows)
    if allowed is not None and allowed.shape[1] != 1:
        allowed = _take(allowed, 1, heads)
    sight = sight_of(allowed, bias, groups=k.shape[1], keys=k.shape[2])
    part = replace(request, q=q, k=k, bias=bias, sink=sink)
    return reference.weights(part, sight).to(q.dtype)


def _allowed(request: Request, rows: list[int]) -> Tensor | None:
    """Return what the mask lets the rows see, (B|1, H|1, t, S), asked for by runs of rows; None for all."""
    mask, region = request.mask, request.region
    if mask is None:
        return None
    starts = [0, *(i + 1 for i, (a, b) in enumerate(pairwise(rows)) if b != a + 1), len(rows)]
    device = request.q.device
    everything = torch.ones(1, 1, 1, region.keys, dtype=torch.bool, device=device)
    parts = []
    for start, stop in pairwise(starts):
        run = Region(region.row + rows[start], stop - start, region.key, region.keys, region.offset)
        part = mask.allowed(run, device)
        part = everything if part is None else part
        parts.append(part.expand(*part.shape[:2], stop - start, region.keys))
    batch, heads = torch.broadcast_shapes(*(part.shape[:2] for part in parts))  # type: ignore[no-untyped-call]
    return torch.cat([part.expand(batch, heads, -1, -1) for part in parts], dim=2)


def _take(t: Tensor, axis: int, chosen: list[int]) -> Tensor:
    """Return the chosen entries of an axis: a view if they are neighbours, else a copy."""
    if chosen and chosen == list(range(chosen[0], chosen[0] + len(chosen))):
        return t.narrow(axis, chosen[0], len(chosen))
    return t.index_select(axis, torch.tensor(chosen, dtype=torch.int64, device=t.device))
