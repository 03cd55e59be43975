"""Attention in tiles of queries × keys, with a running maximum and sum: memory linear in T, both ways.

The scores of a tile are never kept; backward makes them again from q, k and the logarithm of the softmax's
denominator (Dao et al. 2022, FlashAttention; Dao 2023). It runs eagerly: torch.compile breaks its graph here.

Letters: B batch, H query heads, G key/value heads, T queries, S keys, K head width of q and k, V that of v.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from headwise.attention.blockwise_passes import Backward, Forward
from headwise.attention.chosen import all_weights
from headwise.attention.dropout import PairDropout
from headwise.attention.request import Request, transforming

_PAYS_FROM = 2**20


def refusals(request: Request) -> list[str]:
    """Return the reasons why this backend cannot run the request as the reference would."""
    del request
    return ["its loop cannot be transformed by torch.func (vmap, grad, jvp …)"] if transforming() else []


def objections(request: Request) -> list[str]:
    """Return the reasons why another backend would be the better choice."""
    reasons = []
    if torch.compiler.is_compiling():
        reasons.append("it would break the graph of torch.compile")
    if request.pairs < _PAYS_FROM:
        reasons.append(f"its loop pays from {_PAYS_FROM:,} scores on, here are {request.pairs:,}")
    return reasons


@torch.compiler.disable  # type: ignore[untyped-decorator]
def run(request: Request) -> tuple[Tensor, Tensor | None]:
    """Return the output (B, H, T, V) in the dtype of q, and, if asked for, the weights (B, H, T, S)."""
    dropout = None
    if request.dropout > 0.0:
        dropout = PairDropout.draw(
            request.dropout, (*request.q.shape[:3], request.k.shape[2]), request.q.device
        )
    out = run_with(request, dropout)
    return out, all_weights(request) if request.return_weights else None


def run_with(request: Request, dropout: PairDropout | None) -> Tensor:
    """Return the output (B, H, T, V) in the dtype of q, with just these pairs dropped."""
    tensors = request.q, request.k, request.v, request.bias, request.sink
    marks = (None, None) if dropout is None else (dropout.queries, dropout.keys)
    out: Tensor = _Blockwise.apply(*tensors, *marks, request)  # type: ignore[no-untyped-call]
    return out


class _Blockwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        *tensors, request = given
        q: Tensor = request.q
        work = Forward(request, _dropout(request, *tensors[5:]))
        # wide also for backward, which takes differences of sums over it
        out = torch.empty(*q.shape[:3], request.v.shape[3], dtype=work.wide, device=q.device)
        log_sum = torch.empty(*q.shape[:3], 1, dtype=work.wide, device=q.device)
        for part in work.parts():
            out[part.where], log_sum[part.where] = work.attend(part)
        ctx.save_for_backward(*tensors, out, log_sum)
        # all tensors are saved the one way, so that whoever watches saved tensors (checkpointing) sees them
        nothing = q.new_empty(0)
        ctx.request = replace(request, q=nothing, k=nothing, v=nothing, bias=None, sink=None)
        return out.to(q.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # PyTorch's once_differentiable would let some cases pass as constants
            raise RuntimeError(
                "blockwise attention has no second derivatives, which create_graph=True asks for; "
                "use backend='reference'"
            )
        *tensors, out, log_sum = ctx.saved_tensors
        q, k, v, bias, sink = tensors[:5]
        request = replace(ctx.request, q=q, k=k, v=v, bias=bias, sink=sink)
        work = Backward(request, _dropout(request, *tensors[5:]), ctx.needs_input_grad[:5])
        for part in work.parts():
            work.add(part, grad[part.where], out[part.where], log_sum[part.where])
        return (*work.gradients(), None, None, None)


def _dropout(request: Request, queries: Tensor | None, keys: Tensor | None) -> PairDropout | None:
    if queries is None or keys is None:
        return None
    return PairDropout(request.dropout, queries, keys)
