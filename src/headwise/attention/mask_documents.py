"""Packed documents: several texts in one row of the batch, none of which sees another."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headwise.attention.mask_rules import Region
from headwise.attention.mask_tables import FromTensor


@dataclass(frozen=True)
class Layout:
    """Where documents lie, as far as it is the same for all sequences: per position, (S,) each."""

    first: NDArray[np.int64]
    """The first position that has the document of this one, the least of all sequences."""
    last: NDArray[np.int64]
    """The last such position, the greatest of all sequences."""
    since: NDArray[np.int64]
    """The position from which on all have the document of this one, the greatest of all sequences."""

    @staticmethod
    def of(ids: Tensor) -> Layout:
        """Read the layout off the ids (B, S)."""
        _, label = torch.unique(ids, return_inverse=True)  # (B, S)
        place = torch.arange(ids.shape[1]).expand_as(label)
        count = int(label.max()) + 1 if label.numel() else 0
        empty = torch.zeros(ids.shape[0], count, dtype=torch.int64)
        first = (empty + ids.shape[1]).scatter_reduce(1, label, place, "amin").gather(1, label)
        last = empty.scatter_reduce(1, label, place, "amax").gather(1, label)
        starts = torch.ones_like(label, dtype=torch.bool)
        starts[:, 1:] = label[:, 1:] != label[:, :-1]
        since = place.masked_fill(~starts, 0).cummax(1).values
        return Layout(first.amin(0).numpy(), last.amax(0).numpy(), since.amax(0).numpy())


@dataclass(frozen=True, eq=False)
class Documents(FromTensor):
    """A query sees the keys of its own document: ``source`` (S,) or (B, S) has a number per position.

    A query whose position has no number, before the first key or after the last one, sees nothing.
    """

    def words(self) -> str:
        which = "other documents" if self.negated else "its own document"
        return f"the keys of {which} (ids of shape {tuple(self.source.shape)})"

    def _table(self, region: Region, device: torch.device) -> Tensor:
        ids = self.rows
        key = ids[:, region.key : region.key + region.keys]  # (B|1, keys)
        if ids.shape[1] == 0:
            return torch.zeros(1, 1, 1, region.keys, dtype=torch.bool, device=device)
        position = torch.arange(region.first, region.first + region.rows, device=device)
        own = ids[:, position.clamp(0, ids.shape[1] - 1)]  # (B|1, rows)
        known = (position >= 0) & (position < ids.shape[1])
        return ((own[:, :, None] == key[:, None, :]) & known[:, None])[:, None]  # (B|1, 1, rows, keys)

    def crop(self, region: Region) -> Region:
        if self.negated or region.empty or (layout := self._readable()) is None:
            return region
        start = max(region.first, 0)
        end = min(region.last + 1, self.source.shape[-1])
        if start >= end:
            return region.nothing()
        key = max(region.key, int(layout.first[start:end].min()))
        key_end = min(region.key + region.keys, int(layout.last[start:end].max()) + 1)
        if key >= key_end:
            return region.nothing()
        start = max(start, int(layout.first[key:key_end].min()))
        end = min(end, int(layout.last[key:key_end].max()) + 1)
        if start >= end:
            return region.nothing()
        cropped = Region(start - region.offset, end - start, key, key_end - key, region.offset)
        return region if cropped == region else cropped

    def hides_nothing(self, region: Region) -> bool:
        if region.empty or (layout := self._readable()) is None:
            return False
        if self.negated:
            return self.opposite().crop(region).empty
        first, last = min(region.first, region.key), max(region.last, region.last_key)
        return first >= 0 and last < self.source.shape[-1] and int(layout.since[last]) <= first

    def sizes(self) -> tuple[int, int]:
        return self.rows.shape[0], 1

    def check(self, T: int, S: int, B: int | None, H: int | None) -> None:
        shape = tuple(self.source.shape)
        if shape[-1] == S and (B is None or len(shape) == 1 or shape[0] in (1, B)):
            return
        wanted = f"S={S}" if B is None else f"S={S} and a batch of {B}"
        if len(shape) == 2 and shape[0] == S and (B is None or shape[1] == B):
            cause = "batch and time look swapped: write ids.T"
        elif shape[-1] == T != S:
            cause = "ids number every key, those in a cache too: give (S,) or (B, S)"
        else:
            cause = "give one number per key, (S,) or (B, S)"
        raise ValueError(f"Mask.documents got ids of shape {shape} for {wanted}; {cause}")

    @property
    def rows(self) -> Tensor:
        """The numbers as (B|1, S), without a copy."""
        return self.source if self.source.ndim == 2 else self.source[None]

    def _readable(self) -> Layout | None:
        """Return the layout if it can be known without waiting for a device or breaking a traced graph."""
        ids = self.source
        if ids.device.type != "cpu" or torch.compiler.is_compiling() or type(ids) is not Tensor:
            return None
        if ids.numel() == 0:
            return None
        return self._layout

    @cached_property
    def _layout(self) -> Layout:
        return Layout.of(self.rows)
