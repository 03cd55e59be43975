"""Which stretch of keys each query sees, for the masks that let every query see one stretch.

Letters: B batch, H query heads, T queries, S keys; t queries of a part.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor

from headwise.attention import Mask
from headwise.attention.mask_positions import Band, Columns
from headwise.attention.mask_rules import AllOf, Region, Rule
from headwise.heads.sampled_queries import SampledRows

_ROWS = 512  # rows of a table that are looked at together


@dataclass(frozen=True, eq=False)
class RowSpans:
    """Query i sees the keys from start to stop - 1, all of them; stop ≤ start where it sees none.

    start, stop: (B|1, T|1) int64, counted from the first key of a region.
    """

    start: Tensor
    stop: Tensor

    def __and__(self, other: RowSpans) -> RowSpans:
        return RowSpans(torch.maximum(self.start, other.start), torch.minimum(self.stop, other.stop))


def row_spans(mask: Mask | None, region: Region, batch: int, device: torch.device) -> RowSpans | None:
    """Return what the queries of a region see, None if it is more than one stretch or differs by head.

    The spans are (B, T) each and lie within the keys, with stop = start where nothing is seen.
    """
    spans = _of_mask(mask, region, device)
    if spans is None:
        return None
    start = spans.start.clamp(0, region.keys)
    ends = start, torch.maximum(start, spans.stop.clamp(max=region.keys))
    return RowSpans(*(end.expand(batch, region.rows).contiguous() for end in ends))


def _of_mask(mask: Mask | None, region: Region, device: torch.device) -> RowSpans | None:
    nothing_hidden = _span(0, region.keys, device)
    return nothing_hidden if mask is None else _all_of(mask.rules, region, nothing_hidden)


def _span(start: int, stop: int, device: torch.device) -> RowSpans:
    return RowSpans(*(torch.full((1, 1), end, device=device) for end in (start, stop)))


def _all_of(rules: tuple[Rule, ...], region: Region, within: RowSpans) -> RowSpans | None:
    found = []
    for rule in rules:
        spans = _of_rule(rule, region, within)
        if spans is None:
            return None
        found.append(spans)
    return reduce(RowSpans.__and__, found, within)


def _of_rule(rule: Rule, region: Region, within: RowSpans) -> RowSpans | None:
    device = within.start.device
    if isinstance(rule, AllOf):
        return _all_of(rule.rules, region, within)
    if isinstance(rule, SampledRows):
        whole, step = _of_mask(rule.whole, rule.whole_region(region), device), rule.sample.step
        return None if whole is None else RowSpans(whole.start[:, ::step], whole.stop[:, ::step])
    if isinstance(rule, Columns) and len(rule.index) == 1:
        ((low, high),) = rule.index
        end = region.keys if high is None else high - region.key
        return _span((low or 0) - region.key, end, device) & within
    if isinstance(rule, Band) and len(rule.back) == 1:
        ((low, high),) = rule.back
        place = torch.arange(region.rows, device=device)[None] + (region.first - region.key)
        return within & RowSpans(
            within.start if high is None else place - high + 1,
            within.stop if low is None else place - low + 1,
        )
    return _of_table(rule, region, within)


def _of_table(rule: Rule, region: Region, within: RowSpans) -> RowSpans | None:
    """Look at what is allowed, some rows at a time."""
    parts = []
    for row in range(region.row, region.row + region.rows, _ROWS):
        rows = min(_ROWS, region.row + region.rows - row)
        allowed = rule.allowed(replace(region, row=row, rows=rows), within.start.device)
        if allowed.shape[1] != 1:
            return None
        allowed = allowed[:, 0]  # (B|1, t|1, S)
        begins = allowed[..., 1:] & ~allowed[..., :-1]
        if bool((begins.sum(dim=2) + allowed[..., 0] > 1).any()):
            return None
        start = allowed.to(torch.uint8).argmax(dim=2)
        parts.append([end.expand(-1, rows) for end in (start, start + allowed.sum(dim=2))])
    batch = max((len(start) for start, _ in parts), default=1)  # rules may have less to say of some rows
    starts, stops = ([part[n].expand(batch, -1) for part in parts] for n in (0, 1))
    return RowSpans(torch.cat(starts, dim=1), torch.cat(stops, dim=1)) if parts else within
