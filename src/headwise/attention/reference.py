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


def run(request: Request) -> tuple[Tensor, Tensor]:
    """Return the output (B, H, T, V) and the weights before dropout (B, H, T, S), both in the dtype of q."""
    dtype = request.q.dtype
    wide = torch.promote_types(dtype, torch.float32)
    q, k, v = request.q.to(wide), request.k.to(wide), request.v.to(wide)
    sight = request.sight()
    if sight is not None:
        q, k, v = sight.blank(q, k, v)
    score = scores(q, k, request.scale)
    if request.bias is not None:
        score = score + request.bias.to(wide)
    weight = weights(score, sight)
    out = weigh(F.dropout(weight, request.dropout) if request.dropout > 0.0 else weight, v)
    if sight is not None:
        out = out.masked_fill(~sight.alive, 0.0)
    return out.to(dtype), weight.to(dtype)


def scores(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """Return scale · q kᵀ, (B, H, T, S), from q (B, H, T, K) and k (B, G, S, K)."""
    batch, heads, queries, width = q.shape
    groups, keys = k.shape[1:3]
    q = q.reshape(batch, groups, heads // groups * queries, width)  # (B, G, H/G·T, K)
    return (q @ k.mT * scale).reshape(batch, heads, queries, keys)  # (B, H, T, S)


def weights(score: Tensor, sight: Sight | None = None) -> Tensor:
    """Return the softmax of the scores over the visible keys, (B, H, T, S); blind rows are exactly 0."""
    if sight is None:
        return score.softmax(dim=-1)
    return sight.hide(score).softmax(dim=-1).masked_fill(~sight.alive, 0.0)


def weigh(weight: Tensor, v: Tensor) -> Tensor:
    """Return the weighted sums of values, (B, H, T, V), from weights (B, H, T, S) and v (B, G, S, V)."""
    batch, heads, queries, keys = weight.shape
    groups, _, width = v.shape[1:]
    weight = weight.reshape(batch, groups, heads // groups * queries, keys)  # (B, G, H/G·T, S)
    return (weight @ v).reshape(batch, heads, queries, width)  # (B, H, T, V)
