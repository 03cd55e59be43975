"""The best shared head in closed form: what several heads have in common, found by an eigenvalue problem.

Each member x_c is to be replaced by back_c · s with one shared s = Σ into_c · x_c of the width of one head.
What an error of member c costs is measured by a matrix Q_c: for keys the second moments of the queries that
read them, for values W_Oᵀ W_O of the heads that do. Then Σ E[(x_c - back_c s)ᵀ Q_c (x_c - back_c s)] is least
for the leading eigenvectors of L G L, with L = diag(Q_c^½) and G = E[x xᵀ] of all members side by side
(Eckart and Young 1936). For one plane under rotary positions the same holds with complex numbers.

Letters: M members, W width, P planes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.compress.merge import Merge
from headwise.compress.planes import plane_matrix
from headwise.hub.surgery import Convention

FLOOR = 1e-6
"""The least cost of an error in any direction, as a share of the mean: none is free on other texts."""


def shared_subspace(gram: Tensor, costs: Tensor) -> Merge:
    """Return the merge of least cost.

    gram: E[x_a x_bᵀ] of the members, (M, W, M, W), about any origin. costs: Q_c, (M, W, W).
    """
    count, width = costs.shape[:2]
    roots = torch.stack([_root(cost) for cost in _floored(costs)])
    both = torch.einsum("awx,axby,byz->awbz", roots, gram, roots).reshape(count * width, -1)
    values, vectors = torch.linalg.eigh(both)
    kept = vectors[:, -width:]  # (M·W, W), of the largest eigenvalues
    parts = kept.reshape(count, width, width)
    into = torch.einsum("cxw,cxy->cwy", parts, roots)
    # back = E[x sᵀ] E[s sᵀ]⁻¹, where E[s sᵀ] = diag(values)
    inverse = _inverse(values[-width:])
    back = torch.einsum("awbx,bvx->awv", gram, into) * inverse
    energy = values[-width:].sum()
    scale = _scale(torch.einsum("cwcw->", gram) / count, energy)
    return Merge(into * scale, back / scale)


def shared_planes(gram: Tensor, costs: Tensor, convention: Convention) -> Merge:
    """Return the merge of least cost that commutes with rotary positions: one complex number per plane.

    gram: E[z_a conj(z_b)], complex (P, M, M). costs: E|q|² of the queries that read each member, (P, M).
    """
    floor = FLOOR * costs.mean()
    roots = (costs + floor if floor > 0 else torch.ones_like(costs)).sqrt().to(gram.dtype)
    values, vectors = torch.linalg.eigh(roots.unsqueeze(2) * gram * roots.unsqueeze(1))
    leading = vectors[:, :, -1]  # (P, M)
    into = leading.conj() * roots
    back = torch.einsum("pab,pb->pa", gram, into.conj()) * _inverse(values[:, -1:])
    scale = _scale(gram.diagonal(dim1=1, dim2=2).real.mean(dim=1), values[:, -1]).unsqueeze(1)
    into, back = into * scale, back / scale
    return Merge(plane_matrix(into.T, convention), plane_matrix(back.T, convention))


def lost_share(gram: Tensor, costs: Tensor, merge: Merge) -> float:
    """Return the cost of a merge as a share of that of dropping the members altogether."""
    count, width = costs.shape[:2]
    left = torch.eye(count * width, dtype=gram.dtype, device=gram.device)
    left -= merge.back.flatten(0, 1) @ merge.into.transpose(0, 1).flatten(1)  # x - back · into · x
    flat = gram.reshape(count * width, -1)
    errors = (left @ flat @ left.T).reshape(gram.shape)
    cost = torch.einsum("cwx,cxcw->", costs, errors)
    whole = torch.einsum("cwx,cxcw->", costs, gram)
    return float(cost / whole) if whole > 0 else 0.0


def _floored(costs: Tensor) -> Tensor:
    width = costs.shape[-1]
    level = costs.diagonal(dim1=1, dim2=2).mean()
    one = torch.eye(width, dtype=costs.dtype, device=costs.device)
    return costs + (FLOOR * level if level > 0 else 1.0) * one


def _root(matrix: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(matrix)
    root: Tensor = (vectors * values.clamp(min=0.0).sqrt()) @ vectors.T
    return root


def _scale(wanted: Tensor, found: Tensor) -> Tensor:
    """Return what gives the shared head the mean energy of its members, where there is any."""
    there = (wanted > 0) & (found > 0)
    return torch.where(there, wanted / found.clamp(min=1e-300), torch.ones_like(found)).sqrt()


def _inverse(values: Tensor) -> Tensor:
    """Invert eigenvalues; those that are nothing but rounding become 0."""
    least = values.max() * 1e-13
    return torch.where(values > least, 1.0 / values.clamp(min=1e-300), torch.zeros_like(values))
