"""Attention by PyTorch's FlexAttention: a kernel compiled for the kind of mask, which skips hidden blocks.

It is run compiled only: uncompiled, PyTorch forms the whole T × S matrix, as the reference does. Compiling
takes seconds to a minute, once per kind of mask, bias, dtype and width; therefore "auto" never chooses it.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

from headwise.attention import reference
from headwise.attention.flex_lowering import plan, score_mod, unknown_rules
from headwise.attention.request import Request

_CUDA_NARROWEST = 16
_MOST_KERNELS = 64  # kept at a time; PyTorch's own limit of 8 would be an error after a few kinds of mask


def refusals(request: Request) -> list[str]:
    """Return the reasons why this backend cannot run the request as the reference would, compiled."""
    reasons = []
    if request.return_weights:
        reasons.append("it never forms the weights, so it cannot return them")
    if request.dropout > 0.0:
        reasons.append("FlexAttention has no dropout")
    if request.sink is not None:
        reasons.append("FlexAttention has no sink")
    if request.q.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        reasons.append(f"its kernels take float32, bfloat16 and float16, not {request.q.dtype}")
    if request.mask is not None and (unknown := unknown_rules(request.mask.rules)):
        reasons.append(f"it does not know masks of kind {', '.join(unknown)}")
    if torch.compiler.is_compiling():
        reasons.append("inside torch.compile its plan of blocks cannot be made")
    return reasons + _refusals_of_device(request)


def objections(request: Request) -> list[str]:
    """Return the reasons why another backend would be the better choice."""
    del request
    return ["it compiles for each kind of call, so it runs only if asked for by name"]


def run(request: Request) -> tuple[Tensor, None]:
    """Return the output (B, H, T, V) in the dtype of q, and no weights."""
    q, k, v = request.q, request.k, request.v
    if 0 in (q.shape[0], q.shape[2], *v.shape[2:]):  # no kernel takes nothing
        return reference.run(request)[0], None
    if not torch.is_grad_enabled():
        q, k, v = q.detach(), k.detach(), v.detach()  # FlexAttention asks the tensors, not the mode
    alive: Tensor | None = None
    planned = plan(request)
    if planned is not None:
        alive = planned.alive
        q = q.masked_fill(~alive, 0.0)
        k, v = k.masked_fill(~planned.seen, 0.0), v.masked_fill(~planned.seen, 0.0)
    out = _kernel()(
        q,
        k,
        v,
        score_mod=score_mod(request),
        block_mask=None if planned is None else planned.blocks,
        scale=request.scale,
        enable_gqa=request.group > 1,
    )
    # the kernel looks for a row's maximum in a way that can lose a NaN
    out = out.masked_fill(q.isnan().any(dim=-1, keepdim=True), torch.nan)
    return (out if alive is None else out.masked_fill(~alive, 0.0)), None


def _refusals_of_device(request: Request) -> list[str]:
    kind = request.q.device.type
    if kind == "cpu":
        return _refusals_of_cpu(request)
    if kind != "cuda":
        return [f"it is used on cpu and cuda only, not on {kind}"]
    reasons = []
    if min(request.q.shape[3], request.v.shape[3]) < _CUDA_NARROWEST:
        reasons.append(f"its CUDA kernels need d_head and d_value of at least {_CUDA_NARROWEST}")
    if request.bias is not None and request.bias.requires_grad and torch.is_grad_enabled():
        reasons.append("a bias would get no dependable gradient")
    return reasons


def _refusals_of_cpu(request: Request) -> list[str]:
    reasons = []
    inputs = (request.q, request.k, request.v, request.bias)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs):
        reasons.append("FlexAttention has no backward on CPU (under torch.no_grad() it runs)")
    if sys.platform == "darwin" or not torch.backends.cpu.get_cpu_capability().startswith("AVX"):
        reasons.append("its CPU kernels need AVX2, and not macOS")
    if not _has_compiler():
        reasons.append("there is no C++ compiler to compile it with (install g++, or name one in CXX)")
    return reasons


@functools.cache
def _has_compiler() -> bool:
    names = (os.environ.get("CXX"), "g++", "clang++", "cl")
    return any(name and shutil.which(name) for name in names)


@functools.cache
def _kernel() -> Callable[..., Any]:
    compiled = torch.compile(flex_attention, fullgraph=True)

    def run_compiled(*tensors: Tensor, **options: Any) -> Any:
        with torch._dynamo.config.patch(recompile_limit=_MOST_KERNELS):
            return compiled(*tensors, **options)  # type: ignore[arg-type]  # the rest is named

    return run_compiled
