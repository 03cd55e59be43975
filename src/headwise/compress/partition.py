"""Which heads share keys and values: neighbours, or those that are most alike once turned to one another.

Letters: G key/value heads.
"""

from __future__ import annotations

from functools import cache
from itertools import combinations

import torch
from torch import Tensor

EXACT_UP_TO = 16
"""The most heads for which every partition is weighed."""

Partition = list[list[int]]
"""The heads of each group; every head is in one group, and all groups have the same size."""


def neighbours(heads: int, groups: int) -> Partition:
    """Return groups of heads that stand side by side."""
    size = heads // groups
    return [list(range(start, start + size)) for start in range(0, heads, size)]


def most_alike(similarity: Tensor, groups: int) -> Partition:
    """Return the groups within which heads are most alike in sum; exact for at most 16 heads.

    similarity: (G, G), symmetric. Beyond 16 heads a greedy choice is improved by swaps of two heads.
    """
    table = similarity.tolist()
    size = len(table) // groups
    if size == 1 or groups == 1:
        return neighbours(len(table), groups)
    found = _exact(table, size) if len(table) <= EXACT_UP_TO else _by_swaps(table, size)
    return sorted(sorted(group) for group in found)


def aligned_similarity(gram: Tensor) -> Tensor:
    """Return the cosine of every two heads after the best orthogonal alignment, of E[a bᵀ] (G, W, G, W)."""
    blocks = gram.permute(0, 2, 1, 3)  # (G, G, W, W)
    return _cosine(torch.linalg.svdvals(blocks).sum(dim=-1), torch.einsum("cwcw->c", gram))


def aligned_plane_similarity(gram: Tensor) -> Tensor:
    """Return the cosine of every two heads after the best turn of each plane, of E[a conj(b)] (P, G, G)."""
    return _cosine(gram.abs().sum(dim=0), gram.diagonal(dim1=1, dim2=2).real.sum(dim=0))


def _cosine(products: Tensor, energies: Tensor) -> Tensor:
    norms = energies.clamp(min=0.0).sqrt()
    return products / torch.outer(norms, norms).clamp(min=1e-300)


def _within(table: list[list[float]], group: tuple[int, ...]) -> float:
    return sum(table[a][b] for a, b in combinations(group, 2))


def _exact(table: list[list[float]], size: int) -> Partition:
    """Take the first free head, try all companions, and go on with the rest; each rest is solved once."""

    @cache
    def best(free: int) -> tuple[float, tuple[tuple[int, ...], ...]]:
        if not free:
            return 0.0, ()
        heads = [h for h in range(len(table)) if free >> h & 1]
        choices = []
        for others in combinations(heads[1:], size - 1):
            group = (heads[0], *others)
            value, rest = best(free & ~sum(1 << h for h in group))
            choices.append((value + _within(table, group), (group, *rest)))
        return max(choices)

    return [list(group) for group in best((1 << len(table)) - 1)[1]]


def _by_swaps(table: list[list[float]], size: int) -> Partition:
    free = set(range(len(table)))
    groups: Partition = []
    while free:
        group = [min(free)]
        free -= set(group)
        while len(group) < size:
            nearest = max(sorted(free), key=lambda h: sum(table[h][g] for g in group))
            group.append(nearest)
            free.remove(nearest)
        groups.append(group)
    while _swapped(table, groups):
        pass
    return groups


def _swapped(table: list[list[float]], groups: Partition) -> bool:
    """Swap two heads of different groups if that makes the sum larger; False if no swap does."""
    for one, other in combinations(groups, 2):
        for i, a in enumerate(one):
            for j, b in enumerate(other):
                gain = sum(table[b][x] - table[a][x] for x in one if x != a)
                gain += sum(table[a][x] - table[b][x] for x in other if x != b)
                if gain > 1e-12:
                    one[i], other[j] = b, a
                    return True
    return False
