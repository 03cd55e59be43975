"""The backends by name, and which of them runs a call: the rule of "auto" stands here and nowhere else.

"auto" takes the first of these to which nothing speaks against:

1. reference, if all weights are asked for: it forms them anyway.
2. sdpa, if PyTorch has a fused kernel for the call and no large table of the mask has to be made for it.
3. blockwise, if the scores are so many that its loop pays.
4. sdpa, if it can do the call at all.
5. reference, which can do every call.

flex is never taken unasked, as it compiles first. Each backend says itself what speaks against it: `refusals`
are reasons why it cannot run, `objections` reasons why another one would be better.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from headwise.attention import blockwise, flex, reference, sdpa
from headwise.attention.request import Request


class Backend(Protocol):
    """What a backend is: a module that says what it cannot do, what it does badly, and does the rest."""

    def refusals(self, request: Request) -> list[str]:
        """Return the reasons why this backend cannot run the request; none means it can."""

    def objections(self, request: Request) -> list[str]:
        """Return the reasons, given that it can, why another backend would be the better choice."""

    def run(self, request: Request) -> tuple[Tensor, Tensor | None]:
        """Return the output (B, H, T, V) and, if asked for, the weights (B, H, T, S) before dropout."""


BACKENDS: dict[str, Backend] = {"sdpa": sdpa, "blockwise": blockwise, "reference": reference, "flex": flex}
"""The backends by name."""


def check_backend(backend: str) -> None:
    """Raise ValueError if there is no backend of this name."""
    if backend != "auto" and backend not in BACKENDS:
        raise ValueError(
            f"unknown backend {backend!r}; there are {', '.join(map(repr, ('auto', *BACKENDS)))}"
        )


def choose(request: Request, backend: str) -> str:
    """Return the name of the backend to run; raise ValueError if the one asked for is unknown or refuses."""
    check_backend(backend)
    if backend == "auto":
        return _automatic(request)
    reasons = BACKENDS[backend].refusals(request)
    if reasons:
        raise ValueError(
            f"backend {backend!r} cannot run this call: {'; '.join(reasons)}; use backend='auto'"
        )
    return backend


def _automatic(request: Request) -> str:
    if request.return_weights:
        return "reference"
    if not sdpa.refusals(request):
        if not sdpa.objections(request) or blockwise.refusals(request) or blockwise.objections(request):
            return "sdpa"
        return "blockwise"
    if blockwise.refusals(request) or blockwise.objections(request):
        return "reference"
    return "blockwise"
