"""The pass over the scores of a call, its heads shared out among threads.

Tiles are small, and each of their operations would wait for every thread of PyTorch's own. On a CPU that is
busy with something else that wait is long: so each thread takes heads of its own, from beginning to end.

Letters: B batch, H query heads, G key/value heads, S keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from headwise.attention.request import Request
from headwise.heads.kernel import kernel
from headwise.heads.streaming import Sweep
from headwise.heads.streaming_compiled import WORTH_COMPILING, spans_for_kernel, sweep_compiled
from headwise.heads.streaming_rows import Marks, Rows, Swept
from headwise.heads.threads import in_threads, shares_of
from headwise.heads.visibility import Visible

_WORTH_A_THREAD = 2**23  # scores per thread; with fewer, threads wait for Python more than they help


def sweep_heads(
    request: Request, marks: Marks, key_norms: Tensor | None, *, near: int, received: bool
) -> Swept:
    """Run the pass; see `Sweep` for the arguments."""
    if request.pairs >= WORTH_COMPILING and (spans := spans_for_kernel(request)) is not None:
        library = kernel()
        if library is not None:
            return sweep_compiled(library, request, spans, marks, key_norms, near=near, received=received)
    return sweep_tiles(request, marks, key_norms, near=near, received=received)


def sweep_tiles(
    request: Request, marks: Marks, key_norms: Tensor | None, *, near: int, received: bool
) -> Swept:
    """Run the pass with PyTorch's operations, tile by tile."""

    def run(share: slice) -> tuple[Sweep, Visible]:
        norms = None if key_norms is None else key_norms[:, _queries(request, share)]
        sweep = Sweep(_of_heads(request, share), marks, norms, near=near, received=received)
        return sweep, sweep.run()

    shares = _shares(request)
    done = in_threads(run, shares) if request.q.device.type == "cpu" else [run(shares[0])]
    sweeps = [sweep for sweep, _ in done]
    found = [sweep.received for sweep in sweeps if sweep.received is not None]
    return Swept(
        _joined([sweep.rows for sweep in sweeps]),
        done[0][1],
        torch.cat(found, dim=1) if found else None,
        sweeps[0].census.received,
    )


def _shares(request: Request) -> list[slice]:
    """Cut the key/value heads into one part for each thread; one part where heads cannot be told apart."""
    groups = request.k.shape[1]
    by_head = (request.mask is not None and request.mask.varies_by_head()) or (
        request.bias is not None and request.bias.shape[1] != 1
    )
    if by_head or request.q.device.type != "cpu":
        return [slice(0, groups)]
    return shares_of(groups, request.pairs // _WORTH_A_THREAD)


def _queries(request: Request, share: slice) -> slice:
    """Return the query heads that read these key/value heads."""
    return slice(share.start * request.group, share.stop * request.group)


def _of_heads(request: Request, share: slice) -> Request:
    queries = _queries(request, share)
    return replace(
        request,
        q=request.q[:, queries],
        k=request.k[:, share],
        v=request.v[:, share],
        sink=None if request.sink is None else request.sink[queries],
    )


def _joined(parts: Sequence[Rows]) -> Rows:
    """Put the rows of heads (B, h, T) side by side."""
    if len(parts) == 1:
        return parts[0]

    joined: dict[str, Any] = {}
    for name in (field.name for field in fields(Rows)):
        values = [getattr(part, name) for part in parts]
        joined[name] = (
            {offset: torch.cat([value[offset] for value in values], dim=1) for offset in values[0]}
            if isinstance(values[0], dict)
            else torch.cat(values, dim=1)
        )
    return Rows(**joined)
