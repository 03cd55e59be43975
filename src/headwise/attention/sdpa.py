"""Attention by PyTorch's ``F.scaled_dot_product_attention``, which has fused kernels."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from headwise.attention import folding
from headwise.attention.request import Request, unseen_by_python

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
    if request.group > 1 and slow and not folding.folds(request):
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
    # below this many keys, the CPU kernel turns the row of a NaN query into zeros unless it is given a table
    short = request.q.device.type == "cpu" and request.k.shape[2] < 16
    causal = request.is_causal and not short
    sight = None if causal else request.sight()
    if sight is None:
        everything = torch.ones(1, 1, 1, request.k.shape[2], dtype=torch.bool, device=request.q.device)
        return _attend(request, request.k, request.v, everything if short else None, causal), None
    q = sight.blank_queries(request.q)
    request = replace(request, q=q)
    # blind rows may see everything here and are set to 0 below: no kernel meets a row without keys
    mask = sight.allowed | ~sight.alive if request.bias is None else sight.hide(request.bias.to(q.dtype))
    if not short and not request.needs_gradients and q.device.type == "cpu" and not unseen_by_python():
        # zeros for keys that nobody sees are a copy of the cache in each step, and matter only against NaN
        out = _attend(request, request.k, request.v, mask, causal)
        if not out.sum(dtype=torch.float32).isnan():
            return out.masked_fill_(~sight.alive, 0.0), None
    out = _attend(request, sight.blank_keys(request.k), sight.blank_keys(request.v), mask, causal)
    return out.masked_fill(~sight.alive, 0.0), None


def _attend(request: Request, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    q, dropout, scale = request.q, request.dropout, request.scale
    if folding.folds(request) and not causal:
        return folding.attend(q, k, v, mask, dropout=dropout, scale=scale)
    return F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=mask,
        dropout_p=dropout,
        is_causal=causal,
        scale=scale,
        enable_gqa=request.group > 1,
    )
