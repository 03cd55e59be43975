"""Which backend runs a call of `attention`, and why not another one."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from headwise.attention.backends import BACKENDS, check_backend, choose
from headwise.attention.functional import checked_request
from headwise.attention.masks import Mask
from headwise.attention.request import WeightsOf


@dataclass(frozen=True)
class Explanation:
    """What `explain` found; `str()` shows it as a table."""

    call: str
    """The call in words: shapes, dtype, device."""
    backend: str | None
    """The backend that runs, None if the one asked for refuses."""
    refused: dict[str, list[str]]
    """For each backend that cannot run the call, why not."""
    passed_over: dict[str, list[str]]
    """For each backend that could run the call but does not, why not."""

    def __str__(self) -> str:
        lines = [self.call]
        for name in BACKENDS:
            if name == self.backend:
                says = "runs"
            elif name in self.refused:
                says = f"cannot: {'; '.join(self.refused[name])}"
            else:
                says = f"could: {'; '.join(self.passed_over[name])}"
            lines.append(f"  {name:<10} {says}")
        return "\n".join(lines)


def explain(
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
    return_weights: bool | WeightsOf = False,
    backend: str = "auto",
) -> Explanation:
    """Say which backend `attention` would run for these arguments, and what speaks against the others.

    Takes the arguments of `attention` and raises what it raises, except that a backend which refuses is told
    about instead. Nothing is computed.

    Example: ``print(explain(q, k, v, mask=Mask.causal(), dropout=0.1))``.
    """
    check_backend(backend)
    request, _ = checked_request(
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
    refused = {name: reasons for name, each in BACKENDS.items() if (reasons := each.refusals(request))}
    running = None if backend in refused else choose(request, backend)
    passed_over = {}
    for name, each in BACKENDS.items():
        if name not in refused and name != running:
            if backend != "auto":
                passed_over[name] = [f"{backend} was asked for"]
            else:
                passed_over[name] = each.objections(request) or [f"{running} is preferred"]
    shapes = ", ".join(f"{name} {tuple(t.shape)}" for name, t in (("q", q), ("k", k), ("v", v)))
    return Explanation(f"{shapes}, {q.dtype}, {q.device}", running, refused, passed_over)
