"""Heads turned to lie on one another before they are averaged: generalised Procrustes analysis (Gower 1975).

Letters: M members, W width, P planes of two elements.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.compress.merge import Merge
from headwise.compress.planes import plane_matrix
from headwise.hub.surgery import Convention

SWEEPS = 10


def aligned(gram: Tensor) -> Merge:
    """Turn each member by the orthogonal matrix that brings it nearest to the mean of all.

    gram: the second moments E[x_a x_bᵀ] of the members' activations, (M, W, M, W).
    """
    count, width = gram.shape[:2]
    # the first member stays; the others start from where they are nearest to it
    turns = torch.stack([_nearest_orthogonal(gram[c, :, 0]) for c in range(count)])
    turns[0] = torch.eye(width, dtype=gram.dtype, device=gram.device)
    for _ in range(SWEEPS):
        with_mean = torch.einsum("awbu,buv->awv", gram, turns)  # M · E[x_a meanᵀ]
        turns = torch.stack([_nearest_orthogonal(block) for block in with_mean])
    return Merge(turns.transpose(1, 2) / count, turns)


def aligned_planes(gram: Tensor, convention: Convention) -> Merge:
    """Turn each plane of each member by the angle that brings it nearest to the mean of all.

    gram: E[z_a conj(z_b)] of the members in each plane, complex (P, M, M).
    """
    count = gram.shape[-1]
    turns = _phase(gram[:, :, 0])  # (P, M), the first member stays
    for _ in range(SWEEPS):
        turns = _phase(torch.einsum("pab,pb->pa", gram, turns))
    factors = turns.T  # (M, P)
    return Merge(plane_matrix(factors.conj(), convention) / count, plane_matrix(factors, convention))


def _nearest_orthogonal(matrix: Tensor) -> Tensor:
    u, _, vh = torch.linalg.svd(matrix)
    nearest: Tensor = u @ vh
    return nearest


def _phase(z: Tensor) -> Tensor:
    return torch.where(z.abs() > 0, z / z.abs().clamp(min=1e-300), torch.ones_like(z))
