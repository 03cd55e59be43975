"""Muon: momentum whose matrices are made orthogonal before they are added (Jordan et al. 2024,
https://kellerjordan.github.io/posts/muon/), in float32 throughout.

`torch.optim.Muon` iterates in bfloat16, which most CPUs only emulate.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import torch
from torch import Tensor

# p(s) = a·s + b·s³ + c·s⁵ drives every singular value in (0, 1] towards 1; these coefficients (from the
# source above) trade exactness (the end lies between 0.7 and 1.2) for the steepest rise near 0.
A, B, C = 3.4445, -4.7750, 2.0315


def orthogonalise(matrices: Tensor, steps: int = 5) -> Tensor:
    """Bring the singular values of each matrix in `(N, rows, columns)` near 1, keeping its directions.

    A Newton–Schulz iteration of `steps` steps; a zero matrix stays zero.
    """
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp_min(1e-7)
    for _ in range(steps):
        gram = x @ x.mT  # (N, short side, short side)
        x = A * x + (B * gram + C * gram @ gram) @ x
    result: Tensor = x.mT if tall else x
    return result


class Muon:
    """Updates matrices by their orthogonalised Nesterov momentum, scaled by sqrt(max(1, rows / columns)).

    Matrices of one shape are kept and computed as one stack `(N, rows, columns)`.
    """

    def __init__(self, matrices: Mapping[str, Tensor], momentum: float, weight_decay: float) -> None:
        self._beta = momentum
        self._decay = weight_decay
        by_shape: defaultdict[torch.Size, list[str]] = defaultdict(list)
        for name, matrix in matrices.items():
            by_shape[matrix.shape].append(name)
        self._names = list(by_shape.values())
        self._groups = [[matrices[name] for name in names] for names in self._names]
        self._momenta = [  # (N, rows, columns) each
            torch.zeros(len(group), *group[0].shape, device=group[0].device) for group in self._groups
        ]

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """One update from the gradients; every singular value of a square matrix' update is about `rate`."""
        for group, momentum in zip(self._groups, self._momenta, strict=True):
            gradient = torch.stack([_gradient(matrix) for matrix in group])  # (N, rows, columns)
            momentum.lerp_(gradient, 1 - self._beta)
            update = orthogonalise(gradient.lerp(momentum, self._beta))
            rows, columns = group[0].shape
            scale = max(1.0, rows / columns) ** 0.5
            torch._foreach_mul_(group, 1 - rate * self._decay)
            torch._foreach_add_(group, list(update.to(group[0].dtype).unbind()), alpha=-rate * scale)

    def momentum(self) -> dict[str, Tensor]:
        """Each matrix' momentum by name: views of the live state."""
        return {
            name: part
            for names, momentum in zip(self._names, self._momenta, strict=True)
            for name, part in zip(names, momentum.unbind(), strict=True)
        }


def _gradient(matrix: Tensor) -> Tensor:
    return torch.zeros_like(matrix, dtype=torch.float32) if matrix.grad is None else matrix.grad.float()
