"""What queries see, counted strip by strip, and what equal weights on it would come to.

Letters: B batch, H query heads, T queries, S keys; t queries of a strip, s keys of a tile.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from headwise.attention.request import Request, sight_of
from headwise.attention.tiles import Strip, length
from headwise.heads.row_spans import RowSpans, row_spans

_ROWS = 256  # rows of a table of who sees whom that are looked at together


@dataclass(eq=False)
class Visible:
    """What the queries see, (B|1, H|1, T) each, float64."""

    keys: Tensor
    special: Tensor
    punctuation: Tensor
    distance: Tensor
    """sum over the visible keys of |i - j|."""


class Census:
    """Counts what the queries of a call see.

    counted: (B, T) bool, the queries that count. classes: (B, 2, S) bool, special and punctuation keys.
    corner: the key at the position of query 0, None where there is no such thing. step: how many keys further
    the next query stands.
    """

    def __init__(
        self, counted: Tensor, classes: Tensor, corner: int | None, step: int, *, received: bool
    ) -> None:
        self.counted = counted
        self.corner = corner
        self.step = step
        ones = torch.ones_like(classes[:, :1])
        self.classes = torch.cat([ones, classes], dim=1).double()  # (B, 3, S)
        self.wants_received = received
        batch, _, keys = self.classes.shape
        self._steps = self.classes.new_zeros(batch, 1, keys + 1)  # differences between neighbouring keys
        self._extra = self.classes.new_zeros(batch, 1, keys)
        self._bounds: list[list[tuple[int, int]]] = []
        self._hidden: list[tuple[slice, Tensor, Tensor | float]] = []

    @property
    def received(self) -> Tensor:
        """What keys would get from equal weights, (B, H|1, S)."""
        return self._steps[..., :-1].cumsum(dim=2) + self._extra

    def look(self, strip: Strip) -> None:
        """Count what is hidden from the queries of a strip; strips come one after the other."""
        bounds = [(tile.keys.start, tile.keys.stop) for tile in strip.tiles]
        rows, device = length(strip.queries), self.counted.device
        self._bounds += [bounds] * rows
        patches = [patch for tile in strip.tiles for patch in tile.patches]
        counts = self.classes.new_zeros(1, 1, 1, 3)
        distance: Tensor | float = 0.0
        query = torch.arange(strip.queries.start, strip.queries.stop, device=device).unsqueeze(1)
        query = (self.corner or 0) + self.step * query
        for patch in patches:
            hidden = patch.hidden.double()  # (B|1, H|1, t|1, s)
            counts = counts + hidden @ self.classes[:, None, :, patch.keys].mT  # (B, H|1, t|1, 3)
            if self.corner is not None:
                index = torch.arange(patch.keys.start, patch.keys.stop, device=device)
                distance = distance + (hidden * (query - index).abs()).sum(dim=-1)
        if patches:
            self._hidden.append((strip.queries, counts, distance))
        if self.wants_received:
            seen = sum(stop - first for first, stop in bounds) - counts[..., 0]  # (B|1, H|1, t|1)
            self._share_equally(strip, seen)

    def _share_equally(self, strip: Strip, seen: Tensor) -> None:
        """Add what keys get from the queries of a strip, which see so many."""
        counted = self.counted[:, None, strip.queries] & (seen > 0.5)
        share = counted / seen.clamp(min=1.0)  # (B, H|1, t)
        if share.shape[1] > self._steps.shape[1]:
            self._steps, self._extra = (t.repeat(1, share.shape[1], 1) for t in (self._steps, self._extra))
        whole = share.sum(dim=2)
        for tile in strip.tiles:
            self._steps[..., tile.keys.start] += whole
            self._steps[..., tile.keys.stop] -= whole
            for patch in tile.patches:
                hidden = patch.hidden.double().expand(-1, -1, share.shape[2], -1)
                self._extra[..., patch.keys] -= (share.unsqueeze(2) @ hidden).squeeze(2)

    def count(self) -> Visible:
        """Return what all queries see."""
        device = self.counted.device
        most = max(map(len, self._bounds), default=0)
        spans = [[*bounds, *[(0, 0)] * (most - len(bounds))] for bounds in self._bounds]
        bounds = torch.tensor(spans, dtype=torch.int64, device=device).view(len(spans), most, 2)
        ahead = F.pad(self.classes.cumsum(dim=2), (1, 0))  # (B, 3, S + 1), how many before each key
        whole = (ahead[:, :, bounds[..., 1]] - ahead[:, :, bounds[..., 0]]).sum(dim=3)  # (B, 3, T)
        heads = max((counts.shape[1] for _, counts, _ in self._hidden), default=1)
        counts = whole.mT.unsqueeze(1).repeat(1, heads, 1, 1)  # (B, H|1, T, 3)
        query = torch.arange(len(spans), dtype=torch.float64, device=device)
        query = (self.corner or 0) + self.step * query
        distance = _distances(query[:, None], bounds).sum(dim=1).repeat(len(counts), heads, 1)
        for queries, hidden, hidden_distance in self._hidden:
            counts[:, :, queries] -= hidden
            distance[:, :, queries] -= hidden_distance
        return Visible(counts[..., 0], counts[..., 1], counts[..., 2], distance)


def count_spans(
    spans: RowSpans, counted: Tensor, classes: Tensor, corner: int | None, step: int
) -> tuple[Visible, Tensor]:
    """Return what queries see that see a stretch of keys each, and what keys get from equal weights.

    The latter is (B, 1, S), what `Census` calls received.
    spans: (B, T) each. counted, classes, corner, step: as for `Census`.
    """
    batch, queries = counted.shape
    keys = classes.shape[2]
    ahead = F.pad(classes.double().cumsum(dim=2), (1, 0))  # (B, 2, S + 1), how many before each key

    def before(end: Tensor) -> Tensor:
        return ahead.gather(2, end.unsqueeze(1).expand(-1, ahead.shape[1], -1))

    of_class = before(spans.stop) - before(spans.start)  # (B, 2, T)
    number = (spans.stop - spans.start).double()  # (B, T)
    query = torch.arange(queries, dtype=torch.float64, device=counted.device)
    distance = _distances((corner or 0) + step * query, torch.stack([spans.start, spans.stop], dim=2))
    share = (counted & (number > 0)) / number.clamp(min=1.0)
    steps = number.new_zeros(batch, keys + 1)
    steps.scatter_add_(1, spans.start, share).scatter_add_(1, spans.stop, -share)
    seen = Visible(*(t.unsqueeze(1) for t in (number, *of_class.unbind(1), distance)))
    return seen, steps[:, :-1].cumsum(dim=1).unsqueeze(1)


def sums_over_visible(request: Request, values: Tensor) -> Tensor:
    """Return the sums of values (N, B, H, S) over the keys that each query sees, (N, B, H, T), in float64.

    A NaN counts as 0: there may be some where no query looks.
    """
    values = values.double().nan_to_num(nan=0.0)
    batch, keys = values.shape[1], values.shape[3]
    queries = request.region.rows
    found = values.new_empty(*values.shape[:3], queries)
    spans = None
    if request.bias is None:
        spans = row_spans(request.mask, request.region, batch, values.device)
    if spans is not None:
        ahead = F.pad(values.cumsum(dim=3), (1, 0))  # (N, B, H, S + 1)
        ends = (end.unsqueeze(1).expand_as(found) for end in (spans.start, spans.stop))
        before, after = (ahead.gather(3, end) for end in ends)
        return after - before
    for row in range(0, queries, _ROWS):
        region = replace(request.region, row=request.region.row + row, rows=min(_ROWS, queries - row))
        allowed = None if request.mask is None else request.mask.allowed(region, values.device)
        bias = request.bias
        if bias is not None and bias.shape[2] != 1:
            bias = bias.narrow(2, row, region.rows)
        sight = sight_of(allowed, bias, groups=request.k.shape[1], keys=keys)
        if sight is None:
            sums = values.sum(dim=3, keepdim=True)
        else:
            sums = (sight.allowed.double() @ values.unsqueeze(4)).squeeze(4)  # (N, B, H, t|1)
        found[..., row : row + region.rows] = sums
    return found


def _distances(query: Tensor, bounds: Tensor) -> Tensor:
    """Return the sum of |i - j| for queries i over the keys j within bounds (…, 2)."""

    def up_to(n: Tensor) -> Tensor:
        """Return the sum of |i - j| over n keys j from i on; over -n before it, negated, for a negative n."""
        return torch.where(n > 0, n * (n - 1), n * (1 - n)) / 2

    return up_to(bounds[..., 1] - query) - up_to(bounds[..., 0] - query)
