"""What queries see, counted strip by strip, and what equal weights on it would come to.

Letters: B batch, H query heads, T queries, S keys; t queries of a strip, s keys of a tile.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F
from torch import Tensor

from headwise.attention.tiles import Strip, length


@dataclass(eq=False)
class Visible:
    """What the queries see, (B|1, H|1, T) each, float64."""

    keys: Tensor
    special: Tensor
    punctuation: Tensor
    distance: Tensor
    """sum over the visible keys of |i - j|."""


def joined(parts: list[Visible]) -> Visible:
    """Put what was counted strip by strip together."""
    tensors: list[Tensor] = []
    for field in fields(Visible):
        each: list[Tensor] = [getattr(part, field.name) for part in parts]
        batch, heads = (max(t.shape[axis] for t in each) for axis in (0, 1))
        tensors.append(torch.cat([t.expand(batch, heads, -1) for t in each], dim=2))
    return Visible(*tensors)


class Census:
    """Counts what the queries of a call see.

    counted: (B, T) bool, the queries that count. classes: (B, 2, S) bool, special and punctuation keys.
    corner: the key at the position of query 0, None where there is no such thing.
    """

    def __init__(self, counted: Tensor, classes: Tensor, corner: int | None, *, received: bool) -> None:
        self.counted = counted
        self.corner = corner
        ones = torch.ones_like(classes[:, :1])
        self.classes = torch.cat([ones, classes], dim=1).double()  # (B, 3, S)
        self.ahead = F.pad(self.classes.cumsum(dim=2), (1, 0))  # (B, 3, S + 1), how many before each key
        self.received = classes.new_zeros(classes.shape[0], 1, classes.shape[2], dtype=torch.float64)
        """(B, H|1, S), what keys would get from equal weights, if it is asked for."""
        self.wants_received = received

    def look(self, strip: Strip) -> Visible:
        """Count what the queries of a strip see, and what equal weights would give to the keys."""
        rows, device = length(strip.queries), self.counted.device
        counts = torch.zeros(1, 1, rows, 3, dtype=torch.float64, device=device)
        distance = torch.zeros(1, 1, rows, dtype=torch.float64, device=device)
        start = (self.corner or 0) + strip.queries.start
        query = torch.arange(start, start + rows, dtype=torch.float64, device=device)
        for tile in strip.tiles:
            whole = self.ahead[:, :, tile.keys.stop] - self.ahead[:, :, tile.keys.start]  # (B, 3)
            counts = counts + whole[:, None, None]
            if self.corner is not None:
                distance = distance + _distances(query, tile.keys)
            for patch in tile.patches:
                hidden = patch.hidden.double()  # (B|1, H|1, t|1, s)
                counts = counts - hidden @ self.classes[:, :, patch.keys].unsqueeze(1).mT
                if self.corner is not None:
                    index = torch.arange(patch.keys.start, patch.keys.stop, device=device)
                    distance = distance - (hidden * (query.unsqueeze(1) - index).abs()).sum(dim=-1)
        if self.wants_received:
            self._share_equally(strip, counts[..., 0])
        return Visible(counts[..., 0], counts[..., 1], counts[..., 2], distance)

    def _share_equally(self, strip: Strip, seen: Tensor) -> None:
        counted = self.counted[:, None, strip.queries] & (seen > 0.5)
        share = counted / seen.clamp(min=1.0)  # (B, H|1, t)
        if share.shape[1] > self.received.shape[1]:
            self.received = self.received.repeat(1, share.shape[1], 1)
        for tile in strip.tiles:
            self.received[..., tile.keys] += share.sum(dim=2, keepdim=True)
            for patch in tile.patches:
                hidden = patch.hidden.double().expand(-1, -1, share.shape[2], -1)
                self.received[..., patch.keys] -= (share.unsqueeze(2) @ hidden).squeeze(2)


def _distances(query: Tensor, keys: slice) -> Tensor:
    """Return the sum of |i - j| over keys j for queries i (t,)."""

    def up_to(n: Tensor) -> Tensor:
        """Return the sum of |i - j| over n keys j from i on; over -n before it, negated, for a negative n."""
        return torch.where(n > 0, n * (n - 1), n * (1 - n)) / 2

    return up_to(keys.stop - query) - up_to(keys.start - query)
