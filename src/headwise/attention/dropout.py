"""Dropout without memory: whether a weight is kept follows from its position, so backward can ask again.

Each query and each key gets a random odd number; a pair is kept or dropped by a mix of its two numbers. The
answer depends neither on the order in which pairs are asked for nor on the tiles they are asked in.

Letters: B batch, H query heads, T queries, S keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.attention.scratch import Scratch

_MIX = -1028477387  # 0xC2B2AE35 as int32, a multiplier of MurmurHash3's finalizer


@dataclass(frozen=True, eq=False)
class PairDropout:
    """Which of the (query, key) pairs of a call are dropped, each with probability ``p``."""

    p: float
    queries: Tensor
    """(B, H, T, 1) int32, odd."""
    keys: Tensor
    """(S,) int32, odd."""

    @staticmethod
    def draw(p: float, scores: tuple[int, int, int, int], device: torch.device) -> PairDropout:
        """Draw the numbers for scores (B, H, T, S) from PyTorch's global generator of the device."""
        batch, heads, queries, keys = scores

        def odd(*shape: int) -> Tensor:
            return torch.randint(-(2**31), 2**31, shape, dtype=torch.int32, device=device).bitwise_or_(1)

        return PairDropout(p, odd(batch, heads, queries, 1), odd(keys))

    def part(self, batch: slice, heads: slice, queries: slice, keys: slice) -> PairDropout:
        """Return the same for some of the pairs."""
        return PairDropout(self.p, self.queries[batch, heads, queries], self.keys[keys])

    def drop(self, weights: Tensor, out: Tensor, scratch: Scratch) -> Tensor:
        """Write the weights (B, H, T, S) into ``out``, zeros where they are dropped; nothing is scaled.

        ``out`` may be the weights themselves.
        """
        mixed = scratch.take("mixed", weights.shape, torch.int32)
        shifted = scratch.take("shifted", weights.shape, torch.int32)
        torch.mul(self.queries, self.keys, out=mixed)
        torch.bitwise_right_shift(mixed, 15, out=shifted)
        mixed.bitwise_xor_(shifted).mul_(_MIX)
        uniform = scratch.take("uniform", weights.shape, weights.dtype).copy_(mixed)  # in -2³¹ … 2³¹
        # where uniform > threshold the weight, else 0: vectorised, unlike torch.where and masked_fill on CPU
        threshold = (self.p - 0.5) * 2.0**32
        torch.ops.aten.threshold_backward.grad_input(weights, uniform, threshold, grad_input=out)
        return out

    def kept(self) -> Tensor:
        """Return the whole mask (B, H, T, S), True where the pair is kept: to look at, not to run."""
        shape = (*self.queries.shape[:3], *self.keys.shape)
        ones = torch.ones(shape, device=self.keys.device)
        return self.drop(ones, ones, Scratch(ones.device)).bool()
