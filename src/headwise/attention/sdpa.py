"""Attention by PyTorch's ``F.scaled_dot_product_attention``, which has fused kernels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from headwise.attention.request import Request

_LARGE_TABLE = 2**23
"""Scores from which blockwise attention, which needs no table of the mask, is faster on CPU than a table."""


def refusals(request: Request) -> list[str]:
    """Return the reasons why this backend cannot run the request as the reference would."""
    reasons = []
    if request.return_weights:
        reasons.append("it never forms the weights, so it cannot return them")
    if request.softcap is not None:
        reasons.append("its kernels know no softcap")
    if request.sink is not None:
        reasons.append("its kernels know no sink")
    if request.scale <= 0.0:
        reasons.append("its kernels scale after the maximum and give NaN for a scale of 0 or below")
    slow = unfused(request)
    if request.group > 1 and slow and not _folds(request):
        reasons.append(f"keys and values would be copied {request.group} times ({', '.join(slow)})")
    return reasons


def unfused(request: Request) -> list[str]:
    """Return the reasons why the CPU kernel would not be fused; for other devices this is not known."""
    if request.q.device.type != "cpu":
        return []
    reasons = []
    if request.dropout > 0.0:
        reasons.append("the fused CPU kernel has no dropout")
    if request.v.shape[3] != request.q.shape[3]:
        reasons.append("the fused CPU kernel needs d_value = d_head")
    if request.bias is not None and request.bias.requires_grad and torch.is_grad_enabled():
        reasons.append("the fused CPU kernel gives no gradient to a bias")
    return reasons


def objections(request: Request) -> list[str]:
    """Return the reasons why another backend would be the better choice."""
    reasons = [f"PyTorch would form all scores: {reason}" for reason in unfused(request)]
    if request.pairs >= _LARGE_TABLE and not request.is_causal and _hides(request):
        reasons.append("it needs a table of all queries × keys, and computes the hidden ones too")
    return reasons


def _hides(request: Request) -> bool:
    """Whether there is something that can only be said by a table."""
    if request.bias is not None:
        return False  # the bias is such a table already
    return request.mask is not None and not request.mask.hides_nothing(request.region)


def run(request: Request) -> tuple[Tensor, None]:
    """Return the output (B, H, T, V) in the dtype of q, and no weights."""
    q, k, v = request.q, request.k, request.v
    batch, heads, queries, width = q.shape
    groups = k.shape[1]
    # below this many keys, the CPU kernel turns the row of a NaN query into zeros unless it is given a table
    short = q.device.type == "cpu" and k.shape[2] < 16
    causal = request.is_causal and not short
    sight = None if causal else request.sight()
    mask = torch.ones(1, 1, 1, k.shape[2], dtype=torch.bool, device=q.device) if short else None
    if sight is not None:
        q, k, v = sight.blank_queries(q), sight.blank_keys(k), sight.blank_keys(v)
        # blind rows may see everything here and are set to 0 below: no kernel meets a row without keys
        mask = sight.allowed | ~sight.alive if request.bias is None else sight.hide(request.bias.to(q.dtype))
    folded = _folds(request)
    if folded:
        q = q.reshape(batch, groups, request.group, width)  # (B, G, H/G, K): a query row per head
    out = F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=mask,
        dropout_p=request.dropout,
        is_causal=causal,
        scale=request.scale,
        enable_gqa=heads != groups and not folded,
    )
    if folded:
        out = out.reshape(batch, heads, queries, v.shape[3])  # (B, H, 1, V)
    return (out if sight is None else out.masked_fill(~sight.alive, 0.0)), None


def _folds(request: Request) -> bool:
    """Whether the heads of a group can be rows of one head: one query, and nothing that differs by head."""
    if request.group == 1 or request.region.rows != 1:
        return False
    if request.bias is not None and request.bias.shape[1] != 1:
        return False
    return request.mask is None or not request.mask.varies_by_head()
