"""The one attention function: checks its arguments once, chooses a backend, puts the pieces back in place."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Literal, Protocol, overload

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from headwise.attention import reference, sdpa
from headwise.attention.masks import Mask
from headwise.attention.request import Request, make_request


class Backend(Protocol):
    """What a backend is: a module that says what it cannot do, and does the rest."""

    def refusals(self, request: Request) -> list[str]:
        """Return the reasons why this backend cannot run the request; none means it can."""

    def run(self, request: Request) -> tuple[Tensor, Tensor | None]:
        """Return the output (B, H, T, V) and, if asked for, the weights (B, H, T, S) before dropout."""


BACKENDS: dict[str, Backend] = {"sdpa": sdpa, "reference": reference}
"""The backends by name, in the order in which "auto" tries them."""


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
    return_weights: Literal[True],
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
    return_weights: bool,
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
    return_weights: bool = False,
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
    return_weights: also return the weights, before dropout.
    backend: "auto", "reference" or "sdpa".

    Returns the output (B, H, T, V), with return_weights also the weights (B, H, T, S), in the dtype of q. A
    query that sees no key gives exactly 0 in both, and gradients of exactly 0. What stands in keys and values
    hidden from every query, NaN included, has no effect.

    Raises TypeError for arguments of the wrong kind or dtype (a bare tensor as mask among them), ValueError
    for shapes, devices or numbers that do not fit, an unknown backend, or one that cannot do this call.
    """
    request = make_request(
        q,
        k,
        v,
        mask=mask,
        bias=bias,
        scale=scale,
        dropout=dropout,
        offset=offset,
        return_weights=return_weights,
    )
    with _as_given(q.device.type):
        out, weights = choose(request, backend).run(request)
    region = request.region
    above, below = region.row, q.shape[2] - region.row - region.rows
    if above or below:
        out = F.pad(out, (0, 0, above, below))
    if not return_weights:
        return out
    if weights is None:
        raise RuntimeError("the chosen backend returned no weights although it did not refuse to")
    left, right = region.key, k.shape[2] - region.key - region.keys
    if above or below or left or right:
        weights = F.pad(weights, (left, right, above, below))
    return out, weights


def check_backend(backend: str) -> None:
    """Raise ValueError if there is no backend of this name."""
    if backend != "auto" and backend not in BACKENDS:
        raise ValueError(
            f"unknown backend {backend!r}; there are {', '.join(map(repr, ('auto', *BACKENDS)))}"
        )


def choose(request: Request, backend: str) -> Backend:
    """Return the named backend, for "auto" the first that does not refuse; raise ValueError if it refuses."""
    check_backend(backend)
    if backend == "auto":
        return next(candidate for candidate in BACKENDS.values() if not candidate.refusals(request))
    reasons = BACKENDS[backend].refusals(request)
    if reasons:
        raise ValueError(
            f"backend {backend!r} cannot run this call: {'; '.join(reasons)}; use backend='auto'"
        )
    return BACKENDS[backend]


def _as_given(device_type: str) -> AbstractContextManager[object]:
    """Switch autocast off: it did its work in the projections, and softmax must not lose precision."""
    if torch.amp.is_autocast_available(device_type):
        return torch.autocast(device_type, enabled=False)
    return nullcontext()
