"""Multi-head attention as it is first taught: one small module per head, heads in a list, outputs joined.

`MultiHeadAttention.from_heads` turns it into the form with one matrix for all heads, with equal results.
"""

from __future__ import annotations

from typing import Literal, cast, overload

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from headwise.attention.counts import counts_that_fit


class Head(nn.Module):
    """One causal head: (B, T, d_model) → (B, T, d_head), for at most block_size positions."""

    def __init__(self, d_model: int, d_head: int, block_size: int, dropout: float = 0.0) -> None:
        """Make the three projections, without biases; dropout falls on the weights.

        Raises ValueError for sizes below 1 or a dropout outside 0 ≤ dropout < 1.
        """
        super().__init__()
        for name, size in (("d_model", d_model), ("d_head", d_head), ("block_size", block_size)):
            if size < 1:
                raise ValueError(f"{name} must be at least 1, got {size}")
        if not 0.0 <= dropout < 1.0:
            raise ValueError(f"dropout must lie in 0 ≤ dropout < 1, got {dropout}")
        self.d_model, self.d_head, self.block_size, self.dropout = d_model, d_head, block_size, dropout
        self.query = nn.Linear(d_model, d_head, bias=False)
        self.key = nn.Linear(d_model, d_head, bias=False)
        self.value = nn.Linear(d_model, d_head, bias=False)

    @overload
    def forward(self, x: Tensor, return_weights: Literal[False] = False) -> Tensor: ...
    @overload
    def forward(self, x: Tensor, return_weights: Literal[True]) -> tuple[Tensor, Tensor]: ...
    def forward(
        self, x: Float[Tensor, "B T D"], return_weights: bool = False
    ) -> Float[Tensor, "B T K"] | tuple[Float[Tensor, "B T K"], Float[Tensor, "B T T"]]:
        """Return the head's output, with return_weights also the weights before dropout.

        Raises ValueError if x is not (B, T, d_model) with T ≤ block_size.
        """
        if x.ndim != 3 or x.shape[2] != self.d_model:
            raise ValueError(f"x must be (B, T, {self.d_model}), got shape {tuple(x.shape)}")
        length = x.shape[1]
        if length > self.block_size:
            raise ValueError(
                f"x has T={length} positions and block_size is {self.block_size}; shorten x or raise it"
            )
        q, k, v = self.query(x), self.key(x), self.value(x)  # (B, T, K) each
        scores = q @ k.mT * self.d_head**-0.5  # (B, T, T)
        future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(future, float("-inf")).softmax(dim=-1)
        out = F.dropout(weights, self.dropout, self.training) @ v  # (B, T, K)
        return (out, weights) if return_weights else out


class HeadList(nn.Module):
    """n_head separate causal heads, their outputs concatenated and projected back: (B, T, D) → (B, T, D)."""

    def __init__(self, d_model: int, n_head: int, block_size: int, dropout: float = 0.0) -> None:
        """Make the heads, d_model / n_head wide, and the output projection, which has a bias.

        dropout falls on each head's weights and on the projected output. Raises ValueError for
        sizes below 1 or if n_head does not divide d_model.
        """
        super().__init__()
        if n_head < 1:
            raise ValueError(f"n_head must be at least 1, got {n_head}")
        if d_model % n_head:
            raise ValueError(
                f"d_model={d_model} is not a multiple of n_head={n_head}; "
                f"{counts_that_fit(d_model, n_head)} heads would fit"
            )
        self.heads = nn.ModuleList(
            Head(d_model, d_model // n_head, block_size, dropout) for _ in range(n_head)
        )
        self.proj = nn.Linear(d_model, d_model)
        self.dropout = dropout

    @overload
    def forward(self, x: Tensor, return_weights: Literal[False] = False) -> Tensor: ...
    @overload
    def forward(self, x: Tensor, return_weights: Literal[True]) -> tuple[Tensor, Tensor]: ...
    def forward(
        self, x: Float[Tensor, "B T D"], return_weights: bool = False
    ) -> Float[Tensor, "B T D"] | tuple[Float[Tensor, "B T D"], Float[Tensor, "B H T T"]]:
        """Return the output, with return_weights also all heads' weights before dropout; raises as `Head`."""
        pairs = [cast(Head, head)(x, return_weights=True) for head in self.heads]
        joined = torch.cat([out for out, _ in pairs], dim=-1)  # (B, T, H·K)
        out = F.dropout(self.proj(joined), self.dropout, self.training)  # (B, T, D)
        return (out, torch.stack([weights for _, weights in pairs], dim=1)) if return_weights else out
