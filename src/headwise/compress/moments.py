"""Second moments of activations, summed up in float64 batch by batch.

Letters: N numbers of one vector, M members, W width, P planes, D width of a layer's input.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.compress.planes import to_planes
from headwise.hub.surgery import Convention

SHRINK = 1e-4
"""What is added to the moments of every direction, as a share of the mean: a short text leaves some empty."""


class Moments:
    """E[x xᵀ] of vectors, as a running sum, kept on the CPU."""

    def __init__(self) -> None:
        self._sum: Tensor | None = None
        self.count = 0

    def update(self, x: Tensor) -> None:
        """Take in x (…, N)."""
        rows = x.reshape(-1, x.shape[-1]).cpu().double()
        product = rows.T @ rows
        self._sum = product if self._sum is None else self._sum + product
        self.count += len(rows)

    @property
    def mean(self) -> Tensor:
        """E[x xᵀ], (N, N).

        Raises:
            ValueError: nothing was taken in.
        """
        if self._sum is None:
            raise ValueError("there are no activations to calibrate on; give calibration text")
        return self._sum / self.count


def with_one(x: Tensor) -> Tensor:
    """Return (…, N + 1), a 1 behind every vector: its weight is a bias."""
    return torch.cat((x, torch.ones_like(x[..., :1])), dim=-1)


def shrunk(moments: Tensor) -> Tensor:
    """Return E[x xᵀ] (D + 1, D + 1), of x with a 1 behind it, with a little of every direction added."""
    extra = torch.full((len(moments),), float(moments.diagonal()[:-1].mean()) * SHRINK, dtype=moments.dtype)
    extra[-1] = 0.0
    return moments + torch.diag(extra).to(moments)


def centred(moments: Tensor) -> Tensor:
    """Return the covariance of x (with zeros for the 1 behind it), of E[x xᵀ] (D + 1, D + 1)."""
    mean = moments[:, -1]
    return moments - torch.outer(mean, mean)


def gram_of(rows: Tensor, moments: Tensor) -> Tensor:
    """Return E[a bᵀ] of the activations that rows (M, W, N) make of x, (M, W, M, W)."""
    count, width = rows.shape[:2]
    flat = rows.flatten(0, 1)
    return (flat @ moments @ flat.T).reshape(count, width, count, width)


def gram_of_planes(rows: Tensor, moments: Tensor, convention: Convention) -> Tensor:
    """Return E[a conj(b)] of the planes of the activations that rows (M, W, N) make of x, (P, M, M)."""
    planes = to_planes(rows, convention).transpose(0, 1)  # (P, M, N)
    return planes @ moments.to(planes.dtype) @ planes.mH
