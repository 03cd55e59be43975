"""Rotary positions: queries and keys are turned by an angle that grows with their position."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


class Rotary(nn.Module):
    """Rotary position embedding (Su et al. 2021), half-split: element i is paired with element i + d_head/2.

    Pair i of a vector at position p is turned by p · base^(-2i / d_head). This is the order that Llama
    checkpoints on Hugging Face use. Angles are computed in float32 and nothing is stored: converting the
    module cannot spoil them, and no length is the longest.
    """

    def __init__(self, d_head: int, base: float = 10000.0) -> None:
        """Raise ValueError if d_head is not even and positive, or base not above 0."""
        super().__init__()
        if d_head < 2 or d_head % 2:
            raise ValueError(
                f"rotary positions turn pairs, so d_head must be even and at least 2, got {d_head}"
            )
        if not base > 0:
            raise ValueError(f"base must be above 0, got {base}")
        self.d_head = d_head
        self.base = base

    def forward(
        self, x: Float[Tensor, "B H T K"], positions: Int[Tensor, " T"] | Int[Tensor, "B T"]
    ) -> Float[Tensor, "B H T K"]:
        """Return x turned by its positions, in the dtype of x.

        positions: integers, (T,) for all sequences alike or (B, T). Raises ValueError if shapes do not fit.
        """
        self.check(x, positions)
        return turn(x, *self.tables(positions))

    def tables(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cos and sin of the angles in float32: (T, K/2), or (B, 1, T, K/2) for positions (B, T)."""
        even = torch.arange(0, self.d_head, 2, dtype=torch.float32, device=positions.device)
        angles = positions.to(torch.float32).unsqueeze(-1) * self.base ** (-even / self.d_head)
        if positions.ndim == 2:
            angles = angles.unsqueeze(1)  # (B, 1, T, K/2): the same for all heads
        return angles.cos(), angles.sin()

    def check(self, x: Tensor, positions: Tensor) -> None:
        """Raise ValueError unless x is (B, H, T, d_head) and positions (T,) or (B, T)."""
        if x.ndim != 4 or x.shape[-1] != self.d_head:
            raise ValueError(f"x must be (B, H, T, {self.d_head}), got shape {tuple(x.shape)}")
        if positions.shape not in ((x.shape[2],), (x.shape[0], x.shape[2])):
            raise ValueError(
                f"positions must have shape ({x.shape[2]},) or ({x.shape[0]}, {x.shape[2]}), "
                f"one per vector of x, got {tuple(positions.shape)}"
            )

    def extra_repr(self) -> str:
        return f"d_head={self.d_head}, base={self.base:g}, half-split"


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs (x[i], x[i + K/2]) of the last axis by the angles whose cos and sin are given."""
    first, second = x.to(torch.promote_types(x.dtype, torch.float32)).chunk(2, dim=-1)
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return turned.to(x.dtype)
