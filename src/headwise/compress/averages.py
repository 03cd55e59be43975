"""Heads merged as they are: their mean, or the first of them, and the norm that a mean loses.

Letters: M members, W width, N columns of a weight.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.compress.merge import Merge


def mean(members: Tensor) -> Merge:
    """Every head reads the mean of the members (M, W, N) (Ainslie et al. 2023, arXiv:2305.13245)."""
    count, width = members.shape[:2]
    one = torch.eye(width, dtype=members.dtype, device=members.device).expand(count, -1, -1)
    return Merge(one / count, one)


def first(members: Tensor) -> Merge:
    """Every head reads the first member; the others are dropped."""
    merge = mean(members)
    into = torch.zeros_like(merge.into)
    into[0] = merge.back[0]
    return Merge(into, merge.back)


def renormed(merge: Merge, members: Tensor) -> Merge:
    """Give the shared head the mean norm (Frobenius) of its members.

    A mean of M unrelated heads is √M times smaller than they are, which flattens the softmax.
    """
    shared = merge.shared(members).norm()
    wanted = members.flatten(1).norm(dim=1).mean()
    return Merge(merge.into * (wanted / shared) if shared > 0 else merge.into, merge.back)
