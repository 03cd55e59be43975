"""The one attention function: checks its arguments once, chooses a backend, puts the pieces back in place."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Literal, overload

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from headwise.attention.backends import BACKENDS as BACKENDS
from headwise.attention.backends import check_backend as check_backend
from headwise.attention.backends import choose
from headwise.attention.chosen import chosen_weights
from headwise.attention.masks import Mask
from headwise.attention.request import Request, WeightsOf, check_gate, make_request


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    offset: int | None = None,
    softcap: float | None = None,
    sink: Tensor | None = None,
    gate: Tensor | None = None,
    return_weights: Literal[False] = False,
    backend: str = "auto",
) -> Tensor: ...
@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    offset: int | None = None,
    softcap: float | None = None,
    sink: Tensor | None = None,
    gate: Tensor | None = None,
    return_weights: Literal[True] | WeightsOf,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]: ...
@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    offset: int | None = None,
    softcap: float | None = None,
    sink: Tensor | None = None,
    gate: Tensor | None = None,
    return_weights: bool | WeightsOf,
    backend: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]: ...
def attention(
    q: Float[Tensor, "B H T K"],
    k: Float[Tensor, "B G S K"],
    v: Float[Tensor, "B G S V"],
    *,
    mask: Mask | None = None,
    bias: Float[Tensor, "*scores"] | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    offset: int | None = None,
    softcap: float | None = None,
    sink: Float[Tensor, " H"] | None = None,
    gate: Float[Tensor, "*B H"] | None = None,
    return_weights: bool | WeightsOf = False,
    backend: str = "auto",
) -> Float[Tensor, "B H T V"] | tuple[Float[Tensor, "B H T V"], Float[Tensor, "B H T S"]]:
    """Scaled dot-product attention, softmax(scale · q kᵀ + bias) v (Vaswani et al. 2017, eq. 1), per head.

    Query head h reads key/value head h // (H // G) (Ainslie et al. 2023), without repeating keys or values.

    q, k, v: (B, H, T, K), (B, G, S, K), (B, G, S, V), one dtype and device, H a multiple of G.
    mask: a `Mask`; None lets every query see every key.
    bias: float tensor added to the scores, broadcastable to (B, H, T, S), so that three axes are (H, T, S);
        it gets gradients. -inf hides the key.
    scale: default 1 / √K.
    dropout: probability with which a weight is dropped, always applied: pass 0 outside training.
    offset: position of query 0 for masks that depend on positions; default S - T.
    softcap: c > 0 bounds the scaled scores smoothly, c · tanh(score / c), before bias and mask (Gemma 2).
    sink: (H,), per query head a learned score that takes part in the softmax as one more key of value 0 would
        (gpt-oss), so that the weights of the keys sum to less than 1; it gets gradients.
    gate: (H,) or (B, H), multiplies the output of each head, not its weights; it gets gradients.
    return_weights: also return the weights, before dropout; a `WeightsOf` names the heads and queries whose
        weights are wanted, at the cost of those only.
    backend: "auto", "reference", "sdpa", "blockwise" or "flex"; `explain` says what "auto" takes, and why.

    Returns the output (B, H, T, V), with return_weights also the weights (B, H, T, S), with a `WeightsOf`
    those of (B, heads asked for, queries asked for, S), in the dtype of q. A query that sees no key gives
    exactly 0 in both, and gradients of exactly 0. What stands in keys and values hidden from every query, NaN
    included, has no effect.

    Raises TypeError for arguments of the wrong kind or dtype (a bare tensor as mask among them), ValueError
    for shapes, devices or numbers that do not fit, an unknown backend, or one that cannot do this call.
    """
    request, picked = checked_request(
        q,
        k,
        v,
        mask=mask,
        bias=bias,
        scale=scale,
        dropout=dropout,
        offset=offset,
        softcap=softcap,
        sink=sink,
        gate=gate,
        return_weights=return_weights,
    )
    with _as_given(q.device.type):
        out, weights = BACKENDS[choose(request, backend)].run(request)
        if picked is not None:
            weights = chosen_weights(request, *picked, keys=k.shape[2])
    region = request.region
    above, below = region.row, q.shape[2] - region.row - region.rows
    if above or below:
        out = F.pad(out, (0, 0, above, below))
    if gate is not None:
        out = (out * gate.unsqueeze(-1).unsqueeze(-1)).to(q.dtype)  # (H, 1, 1) or (B, H, 1, 1)
    if return_weights is False:
        return out
    if weights is None:
        raise RuntimeError("the chosen backend returned no weights although it did not refuse to")
    left, right = region.key, k.shape[2] - region.key - region.keys
    if picked is None and (above or below or left or right):
        weights = F.pad(weights, (left, right, above, below))
    return out, weights


def checked_request(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask | None,
    bias: Tensor | None,
    scale: float | None,
    dropout: float,
    offset: int | None,
    softcap: float | None,
    sink: Tensor | None,
    gate: Tensor | None,
    return_weights: bool | WeightsOf,
) -> tuple[Request, tuple[list[int], list[int]] | None]:
    """Return the arguments of `attention` as a request, and the heads and queries of a `WeightsOf`."""
    if not isinstance(return_weights, (bool, WeightsOf)):
        raise TypeError(
            "return_weights must be True, False or a WeightsOf(heads=…, rows=…), "
            f"got {type(return_weights).__name__}"
        )
    request = make_request(
        q,
        k,
        v,
        mask=mask,
        bias=bias,
        scale=scale,
        dropout=dropout,
        offset=offset,
        softcap=softcap,
        sink=sink,
        return_weights=return_weights is True,
    )
    if gate is not None:
        check_gate(gate, q)
    if isinstance(return_weights, bool):
        return request, None
    return request, return_weights.resolve(q.shape[1], q.shape[2])


def _as_given(device_type: str) -> AbstractContextManager[object]:
    """Switch autocast off: it did its work in the projections, and softmax must not lose precision."""
    if torch.amp.is_autocast_available(device_type):
        return torch.autocast(device_type, enabled=False)
    return nullcontext()
