"""Every n-th query of a call: what is looked at where all of them would take too long.

Letters: B batch, H query heads, T queries of the call, t those that are taken, S keys.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from zlib import crc32

import torch
from torch import Tensor

from headwise.attention import Mask
from headwise.attention.mask_rules import Region, Rule
from headwise.hub.tokens import TokenBatch


@dataclass(frozen=True)
class Sample:
    """The queries start, start + step, start + 2 · step, …"""

    start: int = 0
    step: int = 1

    @staticmethod
    def of(batch: TokenBatch, every: int) -> Sample:
        """Take every n-th query of these tokens, one at least.

        Where the count begins depends on the tokens alone, as if at random: each query is as likely to be
        taken as any other, and all layers, processes and repetitions take the same ones.
        """
        if every == 1:
            return Sample()
        start = crc32(batch.ids.to("cpu", torch.int64).contiguous().numpy().tobytes()) % every
        return Sample(start % batch.ids.shape[1], every)

    def rows(self, t: Tensor, axis: int = 2) -> Tensor:
        """Return the part of (…, T, …) that belongs to these queries; a T of 1 stands for all of them."""
        if self.step == 1 or t.shape[axis] == 1:
            return t
        return t[(slice(None),) * axis + (slice(self.start, None, self.step),)]

    def mask(self, mask: Mask | None, queries: int, keys: int) -> Mask | None:
        """Return what the mask of a call of so many queries and keys says of these queries."""
        if mask is None or self.step == 1:
            return mask
        return Mask((SampledRows(mask, self, queries, keys - queries),))


@dataclass(frozen=True, eq=False)
class SampledRows(Rule):
    """A mask, for some of its queries: they are rows 0, 1, 2, … here, whatever the region's offset."""

    whole: Mask
    sample: Sample
    queries: int
    offset: int

    def whole_region(self, region: Region) -> Region:
        """Return the part of the whole call from the first of the queries to the last."""
        first = self.sample.start + self.sample.step * region.row
        rows = self.sample.step * (region.rows - 1) + 1 if region.rows else 0
        return Region(first, rows, region.key, region.keys, self.offset)

    def words(self) -> str:
        return f"of every {self.sample.step} queries one, {self.whole.words()}"

    def allowed(self, region: Region, device: torch.device) -> Tensor:
        allowed = self.whole.allowed(self.whole_region(region), device)
        if allowed is None:
            return torch.ones(1, 1, 1, region.keys, dtype=torch.bool, device=device)
        return allowed[:, :, :: self.sample.step]

    def opposite(self) -> Rule:
        return replace(self, whole=~self.whole)

    def crop(self, region: Region) -> Region:
        cropped = self.whole.crop(self.whole_region(region))
        if cropped.empty:
            return region.nothing()
        if (cropped.key, cropped.keys) == (region.key, region.keys):
            return region
        return Region(region.row, region.rows, cropped.key, cropped.keys, region.offset)

    def hides_nothing(self, region: Region) -> bool:
        return self.whole.hides_nothing(self.whole_region(region))

    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(tensor for rule in self.whole.rules for tensor in rule.tensors())

    def check(self, T: int, S: int, B: int | None, H: int | None) -> None:
        for rule in self.whole.rules:
            rule.check(self.queries, S, B, H)

    def varies_by_head(self) -> bool:
        return self.whole.varies_by_head()
