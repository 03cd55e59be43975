"""Several heads made one: how they enter the shared head, and how each is got back from it.

Letters: M heads that are merged (the members), W their width, N columns of a weight.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headwise.hub.surgery import LayerWeights


@dataclass(frozen=True, eq=False)
class Merge:
    """The shared head is Σ into[c] · member[c], and back[c] · shared stands in for member c."""

    into: Tensor
    """(M, W, W)."""
    back: Tensor
    """(M, W, W)."""

    def shared(self, members: Tensor) -> Tensor:
        """Return the rows (W, N) of the shared head, of members (M, W, N)."""
        return torch.einsum("mwu,mun->wn", self.into, members)


def side_by_side(first: Merge, second: Merge) -> Merge:
    """Return the merge of heads whose front is merged by the first and the rest by the second."""

    def joined(a: Tensor, b: Tensor) -> Tensor:
        width = a.shape[1]
        both = a.new_zeros(len(a), width + b.shape[1], width + b.shape[1])
        both[:, :width, :width], both[:, width:, width:] = a, b
        return both

    return Merge(joined(first.into, second.into), joined(first.back, second.back))


def merge_keys(weights: LayerWeights, merges: list[Merge]) -> LayerWeights:
    """Return the layer with the keys of neighbouring heads merged, one merge after the other.

    The queries that read a member take up its way back: q · (back k) = (backᵀ q) · k.
    The values stay as they are, so that there are as many of them as before.
    """
    size = weights.group_size
    keys, queries, start = [], [], 0
    for merge in merges:
        count = len(merge.into)
        keys.append(merge.shared(weights.k[start : start + count]))
        readers = weights.q[start * size : (start + count) * size]
        readers = readers.reshape(count, size, *readers.shape[1:])
        queries.append(torch.einsum("mwu,mswn->msun", merge.back, readers).flatten(0, 1))
        start += count
    return replace(weights, k=torch.stack(keys), q=torch.cat(queries))


def merge_values(weights: LayerWeights, merges: list[Merge], size: int) -> LayerWeights:
    """Return the layer with the values of neighbouring heads merged; size: query heads per member.

    The output projection takes up the way back: W_O (back v) = (W_O back) v.
    """
    values, outputs, start = [], [], 0
    for merge in merges:
        count = len(merge.into)
        values.append(merge.shared(weights.v[start : start + count]))
        mixers = weights.o[start * size : (start + count) * size]
        mixers = mixers.reshape(count, size, *mixers.shape[1:])
        outputs.append(torch.einsum("msov,mvu->msou", mixers, merge.back).flatten(0, 1))
        start += count
    return replace(weights, v=torch.stack(values), o=torch.cat(outputs))
