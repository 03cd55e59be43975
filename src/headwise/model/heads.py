"""What is left of attention when all heads of a layer have been removed."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headwise.attention import LayerCache, Mask


class NoHeads(nn.Module):
    """Attention without heads: nothing is read, only the bias of the output projection comes out."""

    n_head = 0
    n_kv_head = 0

    def __init__(self, d_model: int, *, bias: bool = False) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(d_model)) if bias else None

    def forward(
        self,
        x: Tensor,
        *,
        mask: Mask | None = None,
        cache: LayerCache | None = None,
        return_weights: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """`(B, T, D) → (B, T, D)`, and weights `(B, 0, T, S)` if asked for; the mask has nothing to hide."""
        batch, length = x.shape[:2]
        seen = length
        if cache is not None:
            nothing = x.new_zeros(batch, 0, length, cache.keys.shape[3])
            seen = cache.append(nothing, nothing)[0].shape[2]
        out = torch.zeros_like(x) if self.bias is None else self.bias.expand_as(x)
        return (out, x.new_zeros(batch, 0, length, seen)) if return_weights else out
