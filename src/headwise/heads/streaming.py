"""What each query's weights add up to, from one pass over the scores: no matrix of weights is ever held.

A strip of queries meets its keys tile by tile. Each tile has its own largest score; what the tiles of a strip
summed up is put on the common scale when the strip ends. Whatever is linear in the weights rides along as
columns beside them, one product for all; single weights are scores that were picked up in passing.

Letters: B batch, H query heads, G key/value heads, T queries, S keys, K head width of q and k, R = H/G; of a
part: b sequences, h query heads, m = b · h/R key/value heads, t queries; s keys of a tile, C columns.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from headwise.attention.request import Request
from headwise.attention.scratch import Scratch
from headwise.attention.tile_plan import Plan
from headwise.attention.tiles import Part, Strip, Tile, TileSizes, chunks, length

_ROWS = 128  # queries times heads of a group, per strip
_KEYS = 1024
_CPU_TILE_PER_THREAD = 2**18  # numbers; two such tiles stay in a second-level cache of 2 MiB
_OTHER_STRIP = 2**25

LOWEST = -1e30
"""Stands for a row that has seen nothing yet; minus infinity has no differences."""


@dataclass(frozen=True, eq=False)
class Marks:
    """What is known about the queries and keys of a request."""

    counted: Tensor
    """(B, T) bool, the queries that count."""
    first: Tensor
    """(B,) int64, the first real key, -1 where there is none."""
    special: Tensor
    """(B, S) bool."""
    punctuation: Tensor
    """(B, S) bool."""
    corner: int | None
    """The key at the position of query 0, None where queries and keys are not of one sequence."""

    @cached_property
    def set_apart(self) -> Tensor:
        """The keys that are no content: the first real one and special ones, (B, S) bool."""
        index = torch.arange(self.special.shape[1], device=self.first.device)
        return self.special | (index == self.first.unsqueeze(1))


@dataclass(eq=False)
class Rows:
    """What the pass leaves of each query: scores and sums of exp(score - top), all (B, H, T)."""

    top: Tensor
    """The largest visible score, LOWEST of a query that sees nothing."""
    total: Tensor
    """sum_j exp(s_j - top), the sink not among them."""
    moment: Tensor
    """sum_j (s_j - top) exp(s_j - top)."""
    distance: Tensor
    """sum_j |i - j| exp(s_j - top)."""
    punctuation: Tensor
    special: Tensor
    norm: Tensor
    """sum_j ‖f(x_j)‖ exp(s_j - top)."""
    special_norm: Tensor
    first: Tensor
    """The score of the first real key, -inf where it is not seen, as in those that follow."""
    near: dict[int, Tensor]
    """By their distance from the query (-1 is the one before), the scores of the keys around it."""
    content: Tensor
    """The largest score of keys that are content and at distance neither -1 nor 1."""
    apart: Tensor
    """The largest score of keys that are set apart and at distance neither -1 nor 1."""


@dataclass(eq=False)
class Visible:
    """What the queries see, (B|1, H|1, T) each."""

    keys: Tensor
    special: Tensor
    punctuation: Tensor
    distance: Tensor
    """sum over the visible keys of |i - j|."""


def tile_sizes(request: Request) -> TileSizes:
    """Return sizes that suit the shapes and the device."""
    queries = max(1, min(request.region.rows, _ROWS // request.group))
    rows, keys = queries * request.group, max(1, request.k.shape[2])
    if request.q.device.type == "cpu":
        tile = min(_KEYS, keys)
        return TileSizes(
            queries, tile, max(1, _CPU_TILE_PER_THREAD * torch.get_num_threads() // (rows * tile))
        )
    queries *= 4
    rows *= 4
    return TileSizes(queries, 4 * _KEYS, max(1, _OTHER_STRIP // (rows * keys)))


class Sweep:
    """The pass over the scores of one request.

    key_norms: ‖f(x_j)‖, (B, H, S), None to leave them out. near: how far from the query single scores are
    kept. received: whether to add up what each key receives.
    """

    def __init__(
        self, request: Request, marks: Marks, key_norms: Tensor | None, *, near: int, received: bool
    ) -> None:
        self.request = request
        self.marks = marks
        self.wide = torch.promote_types(request.q.dtype, torch.float32)
        self.floor = math.log(torch.finfo(self.wide).tiny) + 1.0
        """Lower differences make numbers so small that processors take many times as long."""
        self.k = request.k.to(self.wide).flatten(0, 1)  # (B·G, S, K)
        self.scratch = Scratch(request.q.device)
        self.columns = self._columns(key_norms)  # (B·G, C, S)
        self.has_norms = key_norms is not None
        self.apart = [index.nonzero().flatten() for index in marks.set_apart]
        self.apart_list = [index.tolist() for index in self.apart]
        self.first_list: list[int] = marks.first.tolist()
        batch, heads, queries = request.q.shape[:3]
        keys, device = request.k.shape[2], request.q.device

        def full(value: float) -> Tensor:
            return torch.full((batch, heads, queries), value, dtype=self.wide, device=device)

        def per_key() -> Tensor | None:
            return torch.zeros(batch, heads, keys, dtype=torch.float64, device=device) if received else None

        offsets = range(-near, near + 1) if marks.corner is not None else ()
        self.rows = Rows(
            top=full(LOWEST),
            total=full(0.0),
            moment=full(0.0),
            distance=full(0.0),
            punctuation=full(0.0),
            special=full(0.0),
            norm=full(0.0),
            special_norm=full(0.0),
            first=full(-math.inf),
            near={offset: full(-math.inf) for offset in offsets},
            content=full(-math.inf),
            apart=full(-math.inf),
        )
        self.received = per_key()
        self.uniform = per_key()
        """What keys would receive from equal weights."""

    def _columns(self, key_norms: Tensor | None) -> Tensor:
        """Return what rides along: ones, distance and side (made per strip), classes, norms per head."""
        request, marks = self.request, self.marks
        batch, groups, keys = request.k.shape[:3]
        classes = [
            torch.ones_like(marks.special),
            marks.special,
            marks.special,
            marks.punctuation,
            marks.special,
        ]
        columns = torch.stack([c.to(self.wide) for c in classes], dim=1)  # (B, 5, S)
        columns = columns.unsqueeze(1).expand(-1, groups, -1, -1)  # (B, G, 5, S)
        if key_norms is not None:
            norms = key_norms.to(self.wide).view(batch, groups, request.group, keys)  # (B, G, R, S)
            special = norms.masked_fill(~marks.special[:, None, None, :], 0.0)
            columns = torch.cat([columns, norms, special], dim=2)
        return columns.flatten(0, 1).contiguous()

    def run(self) -> Visible:
        """Fill `rows` and `received`; return what the queries see."""
        sizes = tile_sizes(self.request)
        heads = list(chunks(self.request, sizes.heads))
        plan = Plan(self.request, sizes)
        seen = []
        for strip in plan.strips():
            seen.append(self._look(strip))
            self._place(strip)
            for chunk in heads:
                self._part(Part(strip, chunk))
        return Visible(
            *(
                torch.cat([each.expand(*shape, -1) for each in parts], dim=2)
                for parts, shape in (_common(seen, name) for name in Visible.__dataclass_fields__)
            )
        )

    def _position(self, strip: Strip) -> int:
        """Return the key at the position of the strip's first query."""
        return (self.marks.corner or 0) + int(strip.queries.start)

    def _place(self, strip: Strip) -> None:
        """Write into the columns how far keys are from the strip's first query, and on which side.

        Among the strip's own positions both are 0: there distances are taken pair by pair.
        """
        if self.marks.corner is None:
            self.columns[:, 1:3] = 0.0
            return
        start, rows = self._position(strip), length(strip.queries)
        index = torch.arange(self.columns.shape[2], device=self.columns.device)
        side = (index < start).to(self.wide) - (index >= start + rows).to(self.wide)
        self.columns[:, 1] = (index - start).abs() * side.abs()
        self.columns[:, 2] = side

    def _part(self, part: Part) -> None:
        tiles = list(part.tiles())
        if not tiles:
            return
        q = self._queries(part)  # (m, R·t, K)
        count, width = len(tiles), self.columns.shape[1]
        largest = self.scratch.take("largest", (count, *q.shape[:2], 1), self.wide)
        reference = self.scratch.take("reference", (count, *q.shape[:2], 1), self.wide)
        moments = self.scratch.take("moments", (count, *q.shape[:2], 1), self.wide)
        sums = self.scratch.take("sums", (count, q.shape[0], width, q.shape[1]), self.wide)
        keys = sum(length(tile.keys) for tile in tiles) if self.received is not None else _longest(tiles)
        weights = self.scratch.take("weights", (q.shape[0] * q.shape[1] * keys,), self.wide)
        kept, start = [], 0
        near: Tensor | None = None
        for n, tile in enumerate(tiles):
            size = q.shape[0] * q.shape[1] * length(tile.keys)
            e = weights[start : start + size].view(*q.shape[:2], -1)  # (m, R·t, s)
            scores = self._scores(part, tile, q)
            self._pick(part, tile, scores, largest[n], reference[n])
            scores.sub_(reference[n]).clamp_(min=self.floor)
            torch.exp(scores, out=e)
            torch.bmm(self._tile_columns(part, tile), e.mT, out=sums[n])
            torch.sum(scores.mul_(e), dim=-1, keepdim=True, out=moments[n])
            near = self._near_distance(part, tile, e, reference[n], near)
            if self.received is not None:
                kept.append(e)
                start += size
        self._finish(part, tiles, largest, reference, moments, sums, near, kept)

    def _queries(self, part: Part) -> Tensor:
        cap = self.request.softcap
        scale = self.request.scale if cap is None else self.request.scale / cap
        q = self.request.q[part.where].to(self.wide) * scale
        counted = self.marks.counted[part.chunk.batch, None, part.strip.queries, None]
        # a NaN in a query that does not count would reach what its keys receive
        return part.fold(q if bool(counted.all()) else q.masked_fill(~counted, 0.0))

    def _scores(self, part: Part, tile: Tile, q: Tensor) -> Tensor:
        """Return the scores (m, R·t, s), -inf where hidden."""
        k = self.k[part.chunk.merged, tile.keys]
        scores = self.scratch.take("scores", (*q.shape[:2], k.shape[1]), self.wide)
        torch.bmm(q, k.mT, out=scores)
        if self.request.softcap is not None:
            scores.tanh_().mul_(self.request.softcap)
        by_head = part.by_head(scores)
        if self.request.bias is not None:
            by_head.add_(part.pick(self.request.bias, tile))
        for patch in tile.patches:
            patch.hide(by_head[..., tile.within(patch)])
        return scores

    def _pick(self, part: Part, tile: Tile, scores: Tensor, largest: Tensor, reference: Tensor) -> None:
        """Keep single scores, and the largest of the others and of all, (m, R·t, 1) each."""
        by_head = part.by_head(scores)  # (b, h, t, s)
        batches, rows = part.chunk.batch, self.rows
        chosen: list[tuple[Tensor, Tensor]] = []  # views of the scores, and what stood there
        beside: list[tuple[Tensor, Tensor]] = []  # where their largest go, (…, t)
        for b in range(batches.start, batches.stop):
            if tile.keys.start <= self.first_list[b] < tile.keys.stop:
                column = by_head[b - batches.start, :, :, self.first_list[b] - tile.keys.start]
                rows.first[b, part.chunk.heads, part.strip.queries] = column
        all_largest = part.by_head(reference).squeeze(3)  # (b, h, t)
        for offset, where, diagonal in self._diagonals(part, tile, by_head):
            target = rows.near[offset][part.where][..., where]
            target.copy_(diagonal)
            if abs(offset) == 1:
                chosen.append((diagonal, target.clone()))
                diagonal.fill_(-math.inf)
                beside.append((all_largest[..., where], chosen[-1][1]))
        columns = []
        for b in range(batches.start, batches.stop):
            low = bisect_left(self.apart_list[b], tile.keys.start)
            high = bisect_left(self.apart_list[b], tile.keys.stop)
            if low < high:
                index = self.apart[b][low:high] - tile.keys.start
                view = by_head[b - batches.start]  # (h, t, s)
                stood = view.index_select(2, index)
                view.index_fill_(2, index, -math.inf)
                columns.append((view, index, stood))
                apart = rows.apart[b, part.chunk.heads, part.strip.queries]
                torch.maximum(apart, stood.amax(dim=2), out=apart)
                beside.append((all_largest[b - batches.start], stood.amax(dim=2)))
        torch.amax(scores, dim=-1, keepdim=True, out=largest)
        torch.clamp(largest, min=LOWEST, out=reference)
        for view, index, stood in columns:
            view.index_copy_(2, index, stood)
        for diagonal, stood in chosen:
            diagonal.copy_(stood)
        for target, stood in beside:
            torch.maximum(target, stood, out=target)

    def _diagonals(self, part: Part, tile: Tile, by_head: Tensor) -> Iterator[tuple[int, slice, Tensor]]:
        """Return for each distance that the tile holds: it, for which queries of the strip, a view."""
        start = self._position(part.strip) - tile.keys.start
        queries, keys = by_head.shape[2:]
        for offset in self.rows.near:
            first = max(0, -(start + offset))
            last = min(queries, keys - (start + offset))
            if first < last:
                yield offset, slice(first, last), by_head.diagonal(start + offset, dim1=2, dim2=3)

    def _tile_columns(self, part: Part, tile: Tile) -> Tensor:
        """Return what rides along with the weights, (m, C, s); zeros where no query sees the key.

        A NaN there would spread through a product with weight 0.
        """
        columns = self.columns[part.chunk.merged, :, tile.keys]
        if any(patch.unseen is not None for patch in tile.patches):
            columns = columns.clone()
            for patch in tile.patches:
                if patch.unseen is not None:
                    by_group = columns.view(-1, length(part.chunk.groups), *columns.shape[1:])
                    by_group[..., tile.within(patch)].masked_fill_(patch.unseen.mT, 0.0)
        return columns

    def _near_distance(
        self, part: Part, tile: Tile, e: Tensor, reference: Tensor, before: Tensor | None
    ) -> Tensor | None:
        """Add sum_j |i - j| e over the keys at the strip's own positions: (2, b, h, t), sum and scale."""
        if self.marks.corner is None:
            return None
        start = self._position(part.strip)
        stop = start + length(part.strip.queries)
        first, last = max(start, tile.keys.start), min(stop, tile.keys.stop)
        if first >= last:
            return before
        query = torch.arange(start, stop, device=e.device).unsqueeze(1)
        apart = (query - torch.arange(first, last, device=e.device)).abs().to(self.wide)  # (t, s)
        here = part.by_head(e)[..., first - tile.keys.start : last - tile.keys.start]
        added = (here * apart).sum(dim=-1)  # (b, h, t)
        scale = part.by_head(reference).squeeze(3)
        if before is None:
            return torch.stack([added, scale])
        top = torch.maximum(before[1], scale)
        return torch.stack([before[0] * (before[1] - top).exp() + added * (scale - top).exp(), top])

    def _finish(
        self,
        part: Part,
        tiles: list[Tile],
        largest: Tensor,
        reference: Tensor,
        moments: Tensor,
        sums: Tensor,
        near: Tensor | None,
        kept: list[Tensor],
    ) -> None:
        """Put the tiles of a strip on the common scale, and add them up."""
        rows, where = self.rows, part.where
        top = reference.amax(dim=0)  # (m, R·t, 1)
        below = reference - top  # (tiles, m, R·t, 1)
        factor = below.exp()
        by_row = sums.mT  # (tiles, m, R·t, C)
        moment = (factor * (moments + below * by_row[..., :1])).sum(dim=0)
        summed = (factor * by_row).sum(dim=0)  # (m, R·t, C)
        by_head = part.by_head(summed)  # (b, h, t, C)
        total = by_head[..., 0]
        rows.top[where] = part.by_head(top).squeeze(3)
        rows.total[where] = total
        rows.moment[where] = part.by_head(moment).squeeze(3)
        if self.marks.corner is not None:
            ahead = torch.arange(total.shape[2], device=total.device, dtype=self.wide)
            distance = by_head[..., 1] + ahead * by_head[..., 2]
            if near is not None:
                distance = distance + near[0] * (near[1] - rows.top[where]).exp()
            rows.distance[where] = distance
        rows.punctuation[where] = by_head[..., 3]
        rows.special[where] = by_head[..., 4]
        rows.content[where] = part.by_head(largest.amax(dim=0)).squeeze(3)
        if self.has_norms:
            group = self.request.group
            own = summed.view(summed.shape[0], group, -1, summed.shape[2])  # (m, R, t, C)
            for target, first in ((rows.norm, 5), (rows.special_norm, 5 + group)):
                mine = own[..., first : first + group].diagonal(dim1=1, dim2=3)  # (m, t, R)
                target[where] = mine.mT.reshape(total.shape)
        if self.received is not None:
            self._receive(part, tiles, factor, top, total, kept)

    def _receive(
        self,
        part: Part,
        tiles: list[Tile],
        factor: Tensor,
        top: Tensor,
        total: Tensor,
        kept: list[Tensor],
    ) -> None:
        if self.received is None:
            return
        seeing = part.by_head(top).squeeze(3) > LOWEST / 2  # (b, h, t)
        if self.request.sink is not None:
            sink = self.request.sink[part.chunk.heads].to(self.wide)[:, None]
            total = total + (sink - part.by_head(top).squeeze(3)).exp()
        counted = self.marks.counted[part.chunk.batch, part.strip.queries].unsqueeze(1)  # (b, 1, t)
        counts = (counted & seeing).to(self.wide) / total  # (b, h, t)
        heads = counts.shape[0] * counts.shape[1]
        for n, (tile, e) in enumerate(zip(tiles, kept, strict=True)):
            share = counts * part.by_head(factor[n]).squeeze(3)
            got = torch.bmm(share.view(heads, 1, -1), part.by_head(e).reshape(heads, -1, e.shape[2]))
            self.received[part.chunk.batch, part.chunk.heads, tile.keys] += got.view(*counts.shape[:2], -1)

    def _look(self, strip: Strip) -> Visible:
        """Count what the queries of a strip see, and what equal weights would give to the keys."""
        device = self.request.q.device
        classes = torch.stack(
            [torch.ones_like(self.marks.special), self.marks.special, self.marks.punctuation], dim=2
        ).to(torch.float64)  # (B, S, 3)
        rows = length(strip.queries)
        counts = torch.zeros(1, 1, rows, 3, dtype=torch.float64, device=device)
        distance = torch.zeros(1, 1, rows, dtype=torch.float64, device=device)
        query = self._position(strip) + torch.arange(rows, device=device, dtype=torch.float64).unsqueeze(1)
        for tile in strip.tiles:
            counts = counts + classes[:, tile.keys].sum(dim=1)[:, None, None]
            if self.marks.corner is not None:
                distance = distance + _distances(query.squeeze(1), tile.keys)
            for patch in tile.patches:
                hidden = patch.hidden.to(torch.float64)  # (B|1, H|1, t|1, s)
                counts = counts - hidden @ classes[:, patch.keys].unsqueeze(1)
                if self.marks.corner is not None:
                    index = torch.arange(patch.keys.start, patch.keys.stop, device=device)
                    distance = distance - (hidden * (query - index).abs()).sum(dim=-1)
        if self.uniform is not None:
            self._share_equally(strip, counts[..., 0])
        return Visible(counts[..., 0], counts[..., 1], counts[..., 2], distance)

    def _share_equally(self, strip: Strip, seen: Tensor) -> None:
        if self.uniform is None:
            return
        counted = self.marks.counted[:, None, strip.queries] & (seen > 0)
        share = counted / seen.clamp(min=1.0)  # (B, H|1, t)
        for tile in strip.tiles:
            self.uniform[..., tile.keys] += share.sum(dim=2, keepdim=True)
            for patch in tile.patches:
                hidden = patch.hidden.to(torch.float64).expand(-1, -1, share.shape[2], -1)
                self.uniform[..., patch.keys] -= (share.unsqueeze(2) @ hidden).squeeze(2)


def _longest(tiles: list[Tile]) -> int:
    return max(length(tile.keys) for tile in tiles)


def _common(seen: list[Visible], name: str) -> tuple[list[Tensor], tuple[int, int]]:
    parts: list[Tensor] = [getattr(each, name) for each in seen]
    return parts, (max(p.shape[0] for p in parts), max(p.shape[1] for p in parts))


def _distances(query: Tensor, keys: slice) -> Tensor:
    """Return the sum of |i - j| over keys j for queries i (t,)."""

    def up_to(n: Tensor) -> Tensor:
        """Return the sum of |i - j| over j from i on, n of them; those before i for a negative n, negated."""
        return torch.where(n > 0, n * (n - 1), n * (1 - n)) / 2

    return up_to(keys.stop - query) - up_to(keys.start - query)
