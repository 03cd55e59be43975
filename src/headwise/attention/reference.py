"""Attention written out step by step: the meaning that every other backend must match.

Softmax runs in float32 or wider. The heads of a group are folded into the query axis, so that keys and values
are never repeated.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from headwise.attention.request import Request, Sight


def refusals(request: Request) -> list[str]:
    """Return the reasons why this backend cannot run the request: there are none."""
    del request
    return []


def objections(request: Request) -> list[str]:
    """Return the reasons why another backend would be the better choice: the matrix of all scores."""
    if request.return_weights:
        return []
    wide = torch.promote_types(request.q.dtype, torch.float32)
    size = request.pairs * wide.itemsize
    return [f"it forms all scores, {size / 2**20:.1f} MiB, several times over"]


def run(request: Request) -> tuple[Tensor, Tensor]:
    """Return the output (B, H, T, V) and the weights before dropout (B, H, T, S), both in the dtype of q."""
    dtype = request.q.dtype
    sight = request.sight()
    weight = weights(request, sight)
    v = request.v.to(weight.dtype)
    if sight is not None:
        v = sight.blank_keys(v)
    out = weigh(F.dropout(weight, request.dropout) if request.dropout > 0.0 else weight, v)
    if sight is not None:
        out = out.masked_fill(~sight.alive, 0.0)
    return out.to(dtype), weight.to(dtype)


def weights(request: Request, sight: Sight | None) -> Tensor:
    """Return the softmax over visible keys (B, H, T, S), in float32 or wider; blind rows are exactly 0."""
    wide = torch.promote_types(request.q.dtype, torch.float32)
    q, k = request.q.to(wide), request.k.to(wide)
    if sight is not None:
        q, k = sight.blank_queries(q), sight.blank_keys(k)
    score = scores(q, k, request.scale)
    if request.softcap is not None:
        score = request.softcap * (score / request.softcap).tanh()
    if request.bias is not None:
        score = score + request.bias.to(wide)
    if sight is not None:
        score = sight.hide(score)
    if request.sink is None:
        weight = score.softmax(dim=-1)
    else:  # one more key per head, whose weight is left out
        sink = request.sink.to(wide)[:, None, None].expand(*score.shape[:3], 1)  # (B, H, T, 1)
        weight = torch.cat((score, sink), dim=-1).softmax(dim=-1)[..., :-1]
    return weight if sight is None else weight.masked_fill(~sight.alive, 0.0)


def scores(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """Return scale · q kᵀ, (B, H, T, S), from q (B, H, T, K) and k (B, G, S, K)."""
    batch, heads, queries, width = q.shape
    groups, keys = k.shape[1:3]
    q = (q * scale).reshape(batch, groups, heads // groups * queries, width)  # (B, G, H/G·T, K)
    return (q @ k.mT).reshape(batch, heads, queries, keys)  # (B, H, T, S)


def weigh(weight: Tensor, v: Tensor) -> Tensor:
    """Return the weighted sums of values, (B, H, T, V), from weights (B, H, T, S) and v (B, G, S, V)."""
    batch, heads, queries, keys = weight.shape
    groups, _, width = v.shape[1:]
    weight = weight.reshape(batch, groups, heads // groups * queries, keys)  # (B, G, H/G·T, S)
    return (weight @ v).reshape(batch, heads, queries, width)  # (B, H, T, V)
