"""Masks over keys of which the first have been dropped, as a cache with a window does."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headwise.attention.mask_positions import Band
from headwise.attention.mask_rules import Region, Rule
from headwise.attention.masks import Mask


@dataclass(frozen=True)
class Shifted(Rule):
    """A rule in which the key at index j, and a query at position p, are those of j + first and p + first."""

    rule: Rule
    first: int

    def words(self) -> str:
        return f"{self.rule.clause()} (counting the {self.first} keys that were dropped)"

    def allowed(self, region: Region, device: torch.device) -> Tensor:
        return self.rule.allowed(self._counted(region), device)

    def opposite(self) -> Rule:
        return Shifted(self.rule.opposite(), self.first)

    def crop(self, region: Region) -> Region:
        whole = self._counted(region)
        cropped = self.rule.crop(whole)
        if cropped is whole:
            return region
        return replace(cropped, key=cropped.key - self.first, offset=region.offset)

    def hides_nothing(self, region: Region) -> bool:
        return self.rule.hides_nothing(self._counted(region))

    def is_top_left(self, region: Region) -> bool:
        return self.rule.is_top_left(self._counted(region))

    def tensors(self) -> tuple[Tensor, ...]:
        return self.rule.tensors()

    def varies_by_head(self) -> bool:
        return self.rule.varies_by_head()

    def check(self, T: int, S: int, B: int | None, H: int | None) -> None:
        self.rule.check(T, S + self.first, B, H)

    def _counted(self, region: Region) -> Region:
        return replace(region, key=region.key + self.first, offset=region.offset + self.first)


def shifted(mask: Mask, first: int) -> Mask:
    """Return the mask for the keys from index ``first`` on, and for query positions that count from there."""
    if first == 0:
        return mask
    # a band only compares positions with each other
    return Mask(tuple(rule if isinstance(rule, Band) else Shifted(rule, first) for rule in mask.rules))
