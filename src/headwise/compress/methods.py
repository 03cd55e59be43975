"""Merges of keys and of values by each method, from the second moments of what a layer reads.

Letters: M members, W width, D width of the layer's input.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from headwise.compress import averages
from headwise.compress.merge import Merge, side_by_side
from headwise.compress.moments import centred, gram_of, gram_of_planes
from headwise.compress.planes import to_planes
from headwise.compress.procrustes import aligned, aligned_planes
from headwise.compress.subspace import shared_planes, shared_subspace
from headwise.hub.surgery import LayerHandle


def averaged(method: str, members: Tensor) -> Merge:
    """Merge heads by `mean`, `first` or `mean+renorm`, of their rows (M, W, D + 1)."""
    if method == "first":
        return averages.first(members)
    merge = averages.mean(members)
    return averages.renormed(merge, members) if method == "mean+renorm" else merge


def aligned_values(members: Tensor, moments: Tensor) -> Merge:
    """Merge the values (M, V, D + 1) by turning them to one another."""
    return aligned(gram_of(members, moments))


def aligned_keys(members: Tensor, moments: Tensor, handle: LayerHandle) -> Merge:
    """Merge the keys (M, K, D + 1) by turning them to one another as their positions allow."""
    return _front_and_rest(
        handle,
        lambda turned: aligned_planes(
            gram_of_planes(members[:, turned], moments, handle.rotary or "half-split"),
            handle.rotary or "half-split",
        ),
        lambda free: aligned(gram_of(members[:, free], moments)),
    )


def shared_keys(members: Tensor, readers: Tensor, moments: Tensor, handle: LayerHandle) -> Merge:
    """Merge the keys (M, K, D + 1) in closed form; readers: the queries of each, (M, R, K, D + 1)."""
    convention = handle.rotary or "half-split"

    def planes(turned: slice) -> Merge:
        q = to_planes(readers[:, :, turned], convention)  # (M, R, P, D + 1)
        costs = torch.einsum("mrpn,nk,mrpk->pm", q, moments.to(q.dtype), q.conj()).real
        return shared_planes(gram_of_planes(members[:, turned], moments, convention), costs, convention)

    def freely(free: slice) -> Merge:
        q = readers[:, :, free]
        costs = torch.einsum("mrwn,nk,mrvk->mwv", q, moments, q)
        about = moments if handle.key_bias_matters else centred(moments)
        return shared_subspace(gram_of(members[:, free], about), costs)

    return _front_and_rest(handle, planes, freely)


def _front_and_rest(
    handle: LayerHandle, planes: Callable[[slice], Merge], freely: Callable[[slice], Merge]
) -> Merge:
    """Merge the elements that positions turn by planes, and the rest freely."""
    turned, free = slice(0, handle.rotary_width), slice(handle.rotary_width, handle.d_head)
    if handle.rotary_width == 0:
        return freely(free)
    if handle.rotary_width == handle.d_head:
        return planes(turned)
    return side_by_side(planes(turned), freely(free))
