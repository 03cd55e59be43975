"""Rules about positions alone: how far back a query sees, and which keys are seen wherever the query is."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.attention.mask_rules import Always, Region, Rule, bounding_box
from headwise.attention.mask_spans import ALL, NONE, Spans, complement, holds, intersection, union


@dataclass(frozen=True)
class Band(Rule):
    """A query at position p sees key j if p - j, the way back to it, lies in these spans."""

    back: Spans

    def words(self) -> str:
        return ", or ".join(_way_back(low, high) for low, high in self.back)

    def clause(self) -> str:
        return self.words() if len(self.back) == 1 else f"({self.words()})"

    def allowed(self, region: Region, device: torch.device) -> Tensor:
        position = torch.arange(region.first, region.first + region.rows, device=device)[:, None]
        key = torch.arange(region.key, region.key + region.keys, device=device)[None, :]
        parts = []
        for low, high in self.back:
            near = None if low is None else key <= position - low
            far = None if high is None else key > position - high
            part = near if far is None else far if near is None else near & far
            if part is not None:
                parts.append(part)
        return _either(parts)[None, None]

    def opposite(self) -> Rule:
        return band(complement(self.back))

    def merge(self, other: Rule, *, both: bool) -> Rule | None:
        if not isinstance(other, Band):
            return None
        return band((intersection if both else union)(self.back, other.back))

    def crop(self, region: Region) -> Region:
        if len(self.back) == 1:
            return _crop_to(*self.back[0], region)
        return bounding_box([_crop_to(low, high, region) for low, high in self.back], region)

    def hides_nothing(self, region: Region) -> bool:
        return holds(self.back, region.first - region.last_key, region.last - region.key)

    def is_top_left(self, region: Region) -> bool:
        corner = region.first - region.key  # the way back from query 0 to key 0 of the region
        above = intersection(self.back, ((corner - region.keys + 1, corner),))
        return above == NONE and holds(self.back, corner, corner + region.rows - 1)


@dataclass(frozen=True)
class Columns(Rule):
    """Every query sees the keys whose index lies in these spans."""

    index: Spans

    def words(self) -> str:
        return ", or ".join(_columns(low, high) for low, high in self.index)

    def clause(self) -> str:
        return self.words() if len(self.index) == 1 else f"({self.words()})"

    def allowed(self, region: Region, device: torch.device) -> Tensor:
        key = torch.arange(region.key, region.key + region.keys, device=device)
        parts = []
        for low, high in self.index:
            from_low = None if low is None else key >= low
            to_high = None if high is None else key < high
            part = to_high if from_low is None else from_low if to_high is None else from_low & to_high
            if part is not None:
                parts.append(part)
        return _either(parts)[None, None, None]

    def opposite(self) -> Rule:
        return columns(complement(self.index))

    def merge(self, other: Rule, *, both: bool) -> Rule | None:
        if not isinstance(other, Columns):
            return None
        return columns((intersection if both else union)(self.index, other.index))

    def crop(self, region: Region) -> Region:
        seen = intersection(self.index, ((region.key, region.key + region.keys),))
        if not seen:
            return region.nothing()
        first, end = seen[0][0], seen[-1][1]
        if first is None or end is None:
            raise RuntimeError("a span within a region has both ends")
        return Region(region.row, region.rows, first, end - first, region.offset)

    def hides_nothing(self, region: Region) -> bool:
        return holds(self.index, region.key, region.last_key)


def band(back: Spans) -> Rule:
    """Return the rule that a query sees the keys this far back."""
    return Always(back == ALL) if back in (ALL, NONE) else Band(back)


def columns(index: Spans) -> Rule:
    """Return the rule that every query sees these keys."""
    index = intersection(index, ((0, None),))
    return Always(index != NONE) if index in (((0, None),), NONE) else Columns(index)


def _either(parts: list[Tensor]) -> Tensor:
    table = parts[0]
    for part in parts[1:]:
        table = table | part
    return table


def _crop_to(low: int | None, high: int | None, region: Region) -> Region:
    """Return the smallest rectangle that holds every pair of the region with low ≤ way back < high."""
    row, row_end = region.row, region.row + region.rows
    key, key_end = region.key, region.key + region.keys
    if low is not None:
        row = min(max(row, key + low - region.offset), row_end)
    if high is not None:
        row_end = max(row, min(row_end, key_end + high - 1 - region.offset))
        key = min(max(key, region.offset + row - high + 1), key_end)
    if low is not None:
        key_end = max(key, min(key_end, region.offset + row_end - low))
    rows, keys = row_end - row, key_end - key
    if rows == region.rows and keys == region.keys:
        return region
    return Region(row, rows, key, keys, region.offset)


def _way_back(low: int | None, high: int | None) -> str:
    """Say which keys lie low … high - 1 places before a query's own; negative numbers are places after it."""
    last = None if high is None else high - 1
    if (low is None or low <= 0) and (last is None or last >= 0):
        before, after = _so_many(last, "before"), _so_many(None if low is None else -low, "after")
        if low == last == 0:
            return "its own key only"
        if before and after:
            return f"its own key, {before} and {after}"
        return f"its own key and {before or after}"
    if low is not None and low > 0:
        return _beyond(low, last, "before")
    return _beyond(-last if last is not None else 1, None if low is None else -low, "after")


def _so_many(count: int | None, side: str) -> str:
    if count == 0:
        return ""
    how_many = {None: "all", 1: "the one"}.get(count, f"the {count}")
    return f"{how_many} {side} it"


def _beyond(near: int, far: int | None, side: str) -> str:
    """Say which keys lie near … far places to this side of a query's own, near ≥ 1."""
    if near == 1:
        count = {None: "keys", 1: "key"}.get(far, f"{far} keys")
        return f"the {count} {side} its own"
    places = f"{near} or more" if far is None else f"{near}" if near == far else f"{near} to {far}"
    return f"the key{'s' * (near != far)} {places} places {side} its own"


def _columns(low: int | None, high: int | None) -> str:
    if high is None:
        return f"the keys from {low} on"
    if not low:
        return f"the first {high} keys" if high != 1 else "the first key"
    return f"the keys {low} … {high - 1}" if high - low > 1 else f"the key {low}"
