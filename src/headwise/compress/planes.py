"""Rotary positions as complex numbers: what a head turns together is one number per plane.

A rotation commutes with the rotary positions if and only if it multiplies each plane by a complex number
(frequencies being distinct). With k = t · k' in a plane, the score Re(conj(q) k) stays when q is multiplied
by conj(t), which is what the transpose of t's real matrix does.

Letters: W elements of a head that are turned, P = W / 2 planes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.hub.surgery import Convention


def to_planes(rows: Tensor, convention: Convention) -> Tensor:
    """Return rows (…, W, N) as complex numbers (…, P, N)."""
    if convention == "interleaved":
        return torch.complex(rows[..., 0::2, :], rows[..., 1::2, :])
    first, second = rows.chunk(2, dim=-2)
    return torch.complex(first, second)


def plane_matrix(factors: Tensor, convention: Convention) -> Tensor:
    """Return the real matrices (…, W, W) that multiply each plane by its complex factor (…, P)."""
    count = factors.shape[-1]
    plane = torch.arange(count, device=factors.device)
    first, second = (2 * plane, 2 * plane + 1) if convention == "interleaved" else (plane, plane + count)
    made = factors.real.new_zeros(*factors.shape[:-1], 2 * count, 2 * count)
    made[..., first, first] = factors.real
    made[..., second, second] = factors.real
    made[..., first, second] = -factors.imag
    made[..., second, first] = factors.imag
    return made
