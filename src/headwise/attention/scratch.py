"""Buffers that are used again for each tile: fresh memory would cost page faults in every one."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


class Scratch:
    """Named buffers of one device, each as large as the largest tensor taken under its name."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._buffers: dict[str, Tensor] = {}

    def take(self, name: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return a contiguous tensor with arbitrary contents, valid until the name is taken again."""
        size = math.prod(shape)
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < size:
            buffer = self._buffers[name] = torch.empty(size, dtype=dtype, device=self.device)
        return buffer[:size].view(shape)
