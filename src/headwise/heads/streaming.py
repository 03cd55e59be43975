"""What each query's weights add up to, from one pass over the scores: no matrix of weights is ever held.

A strip of queries meets its keys tile by tile. Each tile has its own largest score; what the tiles of a strip
summed up is put on one scale when the strip ends. Whatever is linear in the weights rides along as columns
beside them, one product for all. The keys around a strip's own positions are tiles of their own, its edge:
there single scores are picked up in passing.

Letters: B batch, H query heads, G key/value heads, T queries, S keys, K head width of q and k, R = H/G; of a
part: b sequences, h query heads, m = b · h/R key/value heads, t queries; s keys of a tile, C columns; N tiles
of a strip.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from headwise.attention.request import Request
from headwise.attention.scratch import Scratch
from headwise.attention.tile_plan import Plan
from headwise.attention.tiles import Chunk, Part, Strip, Tile, TileSizes, chunks, length
from headwise.heads.streaming_rows import LOWEST, Marks, Rows, least_difference
from headwise.heads.tile_sums import TileSums
from headwise.heads.visibility import Census, Visible

# On CPU a tile of scores and one of weights stay in a second-level cache of 2 MiB per thread. What is done
# once per tile or strip takes its time however small they are: they are as large as that allows.
_ROWS = 128  # queries times heads of a group, per strip
_KEYS = 1024
_CPU_TILE_PER_THREAD = 2**18
_OTHER_TILE = 2**24


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
        self.near = near
        self.wide = torch.promote_types(request.q.dtype, torch.float32)
        self.floor = least_difference(self.wide)
        self.all_counted = bool(marks.counted.all())
        self.k = request.k.to(self.wide).flatten(0, 1)  # (B·G, S, K)
        self.scratch = Scratch(request.q.device)
        self.sizes = _tile_sizes(request, marks.step)
        self.plan = Plan(request, self.sizes)
        self.columns = self._columns(key_norms)  # (B·G, C, S)
        self.has_norms = key_norms is not None
        self.apart = [index.nonzero().flatten() for index in marks.set_apart]
        self.apart_list: list[list[int]] = [index.tolist() for index in self.apart]
        self.first_list: list[int] = marks.first.tolist()
        classes = torch.stack([marks.special, marks.punctuation], dim=1)
        self.census = Census(marks.counted, classes, marks.corner, marks.step, received=received)
        batch, heads, queries = request.q.shape[:3]
        device = request.q.device

        def full(value: float) -> Tensor:
            return torch.full((batch, heads, queries), value, dtype=self.wide, device=device)

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
        self.received = (
            torch.zeros(batch, heads, request.k.shape[2], dtype=self.wide, device=device)
            if received
            else None
        )
        """(B, H, S), what keys receive from the queries that count."""
        self.blind = False
        """Whether queries of the strip at hand may see nothing."""
        self.apart_from: tuple[tuple[int, ...], Tensor] = (), self.columns
        """How far queries are from keys: of which, and the numbers, the same for all heads."""

    def _columns(self, key_norms: Tensor | None) -> Tensor:
        """Return what rides along: ones, distance and side (made per strip), classes, norms per head."""
        request, marks = self.request, self.marks
        batch, groups, keys = request.k.shape[:3]
        ones = torch.ones_like(marks.special)
        classes = torch.stack([ones, ones, ones, marks.punctuation, marks.special], dim=1)  # (B, 5, S)
        columns = classes.to(self.wide).unsqueeze(1).expand(-1, groups, -1, -1)  # (B, G, 5, S)
        if key_norms is not None:
            norms = key_norms.to(self.wide).view(batch, groups, request.group, keys)  # (B, G, R, S)
            special = norms.masked_fill(~marks.special[:, None, None, :], 0.0)
            columns = torch.cat([columns, norms, special], dim=2)
        return columns.flatten(0, 1).contiguous()

    def run(self) -> Visible:
        """Fill `rows` and `received`; return what the queries see."""
        rows = self.request.region.rows
        for first in range(0, rows, self.sizes.queries):
            queries = slice(first, min(first + self.sizes.queries, rows))
            edge, plain = self._tiles(queries)
            strip = Strip(queries, (*edge, *plain), None)
            self.census.look(strip)
            if strip.tiles:
                self._strip(strip, len(edge))
        return self.census.count()

    def _tiles(self, queries: slice) -> tuple[list[Tile], list[Tile]]:
        """Return the tiles of keys around the queries' positions, and all others."""
        within = self.plan.crop(queries, slice(0, self.request.k.shape[2]))
        cuts = [within.start, within.stop]
        if self.marks.corner is not None:
            span = self._span(queries)
            ends = span.start - self.near, span.stop + self.near
            cuts[1:1] = [min(max(end, within.start), within.stop) for end in ends]
        edge, plain = list[Tile](), list[Tile]()
        for n, (start, stop) in enumerate(pairwise(cuts)):
            for first in range(start, stop, self.sizes.keys):
                keys = self.plan.crop(queries, slice(first, min(first + self.sizes.keys, stop)))
                tile = self.plan.tile(queries, keys) if length(keys) else None
                if tile is not None:
                    (edge if n == 1 else plain).append(tile)
        return edge, plain

    def _strip(self, strip: Strip, edge: int) -> None:
        """Do a strip, of whose tiles the first `edge` are its edge: these for many heads at once."""
        self._place(strip)
        self.blind = not any(tile.visible for tile in strip.tiles)
        heads, rows = self.k.shape[0], self.request.group * length(strip.queries)
        tiles = len(strip.tiles)

        def take(name: str, *shape: int) -> Tensor:
            return self.scratch.take(name, (tiles, heads, *shape), self.wide)

        sums = TileSums(
            take("largest", rows, 1),
            take("reference", rows, 1),
            take("moments", rows, 1),
            take("close", rows, 1),
            take("columns", self.columns.shape[1], rows),
        )
        kept: list[tuple[Chunk, Tile, int, Tensor]] = []
        for chunk in self._chunks(strip.tiles[:edge], rows):
            part = Part(strip, chunk)
            q = self._queries(part)
            for n in range(edge):
                tile = _of_chunk(strip.tiles[n], chunk)
                e = self.scratch.take(f"edge {len(kept)}", (*q.shape[:2], length(tile.keys)), self.wide)
                self._tile(part, tile, q, sums.of(chunk.merged), n, e, edge=True)
                kept.append((chunk, tile, n, e))
        for chunk in self._chunks(strip.tiles[edge:], rows):
            self._plain(Part(strip, chunk), edge, sums.of(chunk.merged))
        shares = self._combine(Part(strip, next(chunks(self.request, heads))), sums, edge)
        if shares is not None:
            for chunk, tile, n, e in kept:
                self._receive(chunk, tile, shares[n, chunk.merged], e)

    def _chunks(self, tiles: Sequence[Tile], rows: int) -> Iterator[Chunk]:
        """Cut the heads into as few chunks as the sizes allow for these tiles, none for no tiles."""
        if not tiles:
            return iter(())
        widest = max(length(tile.keys) for tile in tiles)
        numbers = self.sizes.heads * rows * self.sizes.keys
        return chunks(self.request, max(1, numbers // (rows * widest)))

    def _plain(self, part: Part, edge: int, sums: TileSums) -> None:
        """Do the tiles of a strip that are not its edge."""
        q = self._queries(part)
        tiles = [_of_chunk(tile, part.chunk) for tile in part.strip.tiles[edge:]]
        numbers = [q.shape[0] * q.shape[1] * length(tile.keys) for tile in tiles]
        keep = self.received is not None
        # at its largest from the start: strips of a causal layer grow, and fresh memory costs page faults
        most = self.sizes.heads * q.shape[1] * max(self.sizes.keys, self.k.shape[1] if keep else 0)
        weights = self.scratch.take("weights", (max(most, sum(numbers) if keep else 0),), self.wide)
        kept, start = [], 0
        for n, (tile, size) in enumerate(zip(tiles, numbers, strict=True)):
            e = weights[start : start + size].view(*q.shape[:2], -1)  # (m, R·t, s)
            self._tile(part, tile, q, sums, edge + n, e, edge=False)
            if keep:
                kept.append(e)
                start += size
        if keep:
            shares = self._shares(part, sums)
            for n, (tile, e) in enumerate(zip(tiles, kept, strict=True)):
                self._receive(part.chunk, tile, shares[edge + n], e)

    def _tile(
        self, part: Part, tile: Tile, q: Tensor, sums: TileSums, n: int, e: Tensor, *, edge: bool
    ) -> None:
        """Leave tile n in the sums, and exp(s - reference) in e (m, R·t, s)."""
        scores, reference = self._scores(part, tile, q), sums.reference[n]
        by_head = part.by_head(scores)  # (b, h, t, s)
        beside: list[tuple[Tensor, Tensor]] = []  # scores left out of the largest, and where they count
        restore = self._set_apart(part, tile, by_head, part.by_head(reference).squeeze(3), edge, beside)
        torch.amax(scores, dim=-1, keepdim=True, out=sums.largest[n])
        torch.clamp(sums.largest[n], min=LOWEST, out=reference)
        for target, others in beside:
            torch.maximum(target, others, out=target)
        for put_back, index, stood in reversed(restore):
            put_back.copy_(stood) if index is None else put_back.index_copy_(2, index, stood)
        scores.sub_(reference).clamp_(min=self.floor)
        torch.exp(scores, out=e)
        torch.bmm(self._tile_columns(part, tile), e.mT, out=sums.columns[n])
        torch.sum(scores.mul_(e), dim=-1, keepdim=True, out=sums.moments[n])
        if edge:
            self._close_by(part, tile, e, sums.close[n])

    def _queries(self, part: Part) -> Tensor:
        """Return the queries (m, R·t, K)."""
        q = self.request.q[part.where].to(self.wide)
        if not self.all_counted:  # a NaN in a query that does not count would reach what its keys receive
            counted = self.marks.counted[part.chunk.batch, None, part.strip.queries, None]
            q = q.masked_fill(~counted, 0.0)
        return part.fold(q)

    def _scores(self, part: Part, tile: Tile, q: Tensor) -> Tensor:
        """Return the scores (m, R·t, s), -inf where hidden."""
        k = self.k[part.chunk.merged, tile.keys]
        scores = self.scratch.take("scores", (*q.shape[:2], k.shape[1]), self.wide)
        cap = self.request.softcap
        scale = self.request.scale if cap is None else self.request.scale / cap
        scores.baddbmm_(q, k.mT, beta=0, alpha=scale)  # with beta=0, what stood there is not read
        if cap is not None:
            scores.tanh_().mul_(cap)
        by_head = part.by_head(scores)
        if self.request.bias is not None:
            by_head.add_(part.pick(self.request.bias, tile))
        for patch in tile.patches:
            patch.hide(by_head[..., tile.within(patch)])
        return scores

    def _set_apart(
        self,
        part: Part,
        tile: Tile,
        scores: Tensor,
        reference: Tensor,
        edge: bool,
        beside: list[tuple[Tensor, Tensor]],
    ) -> list[tuple[Tensor, Tensor | None, Tensor]]:
        """Keep single scores (b, h, t, s), and put -inf there where the largest of the others is asked for.

        reference: (b, h, t), where the largest of all will be. Adds to `beside`; returns what to restore.
        """
        batches, rows = part.chunk.batch, self.rows
        here = part.chunk.heads, part.strip.queries
        restore: list[tuple[Tensor, Tensor | None, Tensor]] = []
        for b in range(batches.start, batches.stop):
            if tile.keys.start <= self.first_list[b] < tile.keys.stop:
                rows.first[b][here] = scores[b - batches.start, ..., self.first_list[b] - tile.keys.start]
        if edge:
            start, step = self._span(part.strip.queries).start - tile.keys.start, self.marks.step
            for offset, kept in rows.near.items():
                first = start + offset  # the key of query 0; that of the next is a step further
                low, high = (
                    max(0, -(first // step)),
                    min(scores.shape[2], -((first - scores.shape[3]) // step)),
                )
                if low >= high:
                    continue
                keys = scores[:, :, low:high, first + step * low :: step]
                diagonal = keys.diagonal(dim1=2, dim2=3)  # (b, h, high - low)
                stood = kept[part.where][..., low:high]
                stood.copy_(diagonal)
                if abs(offset) == 1:
                    diagonal.fill_(-math.inf)
                    restore.append((diagonal, None, stood))
                    beside.append((reference[..., low:high], stood))
        for b in range(batches.start, batches.stop):
            first, last = (bisect_left(self.apart_list[b], key) for key in (tile.keys.start, tile.keys.stop))
            if first < last:
                index = self.apart[b][first:last] - tile.keys.start
                view = scores[b - batches.start]  # (h, t, s)
                stood = view.index_select(2, index)
                view.index_fill_(2, index, -math.inf)
                restore.append((view, index, stood))
                largest = stood.amax(dim=2)  # (h, t)
                beside.append((rows.apart[b][here], largest))
                beside.append((reference[b - batches.start], largest))
        return restore

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

    def _span(self, queries: slice) -> slice:
        """Return the keys from the position of the first of these queries to that of the last."""
        start = (self.marks.corner or 0) + self.marks.step * int(queries.start)
        return slice(start, start + self.marks.step * (length(queries) - 1) + 1)

    def _place(self, strip: Strip) -> None:
        """Write into the columns how far keys are from the strip's first query, and on which side.

        From the strip's first position to its last both are 0: there distances are taken pair by pair.
        """
        if self.marks.corner is None:
            self.columns[:, 1:3] = 0.0
            return
        span = self._span(strip.queries)
        index = torch.arange(self.columns.shape[2], device=self.columns.device)
        side = (index < span.start).to(self.wide) - (index >= span.stop).to(self.wide)
        self.columns[:, 1] = (index - span.start).abs() * side.abs()
        self.columns[:, 2] = side

    def _close_by(self, part: Part, tile: Tile, e: Tensor, out: Tensor) -> None:
        """Write sum_j |i - j| e over the keys at the strip's own positions, (m, R·t, 1)."""
        span = self._span(part.strip.queries)
        first, last = max(span.start, tile.keys.start), min(span.stop, tile.keys.stop)
        if first >= last:
            out.zero_()
            return
        apart = self._distances(span, first, last)  # (t, s)
        near = part.by_head(e)[..., first - tile.keys.start : last - tile.keys.start] * apart
        torch.sum(near, dim=-1, keepdim=True, out=part.by_head(out))

    def _distances(self, span: slice, first: int, last: int) -> Tensor:
        """Return |i - j| of the queries of a span and the keys first … last - 1, (t, s)."""
        asked = span.start, span.stop, first, last
        if self.apart_from[0] != asked:
            device = self.columns.device
            query = torch.arange(span.start, span.stop, self.marks.step, device=device).unsqueeze(1)
            distances = (query - torch.arange(first, last, device=device)).abs_().to(self.wide)
            self.apart_from = asked, distances
        return self.apart_from[1]

    def _combine(self, part: Part, sums: TileSums, edge: int) -> Tensor | None:
        """Put all tiles of a strip on one scale and add them up; return the shares, (N, m, R·t, 1)."""
        rows, where = self.rows, part.where
        top, below, factor = sums.scale()
        by_row = sums.columns.mT  # (N, m, R·t, C)
        moment = (factor * (sums.moments + below * by_row[..., :1])).sum(dim=0)
        summed = (factor * by_row).sum(dim=0)  # (m, R·t, C)
        by_head = part.by_head(summed)  # (b, h, t, C)
        rows.top[where] = part.by_head(top).squeeze(3)
        rows.total[where] = by_head[..., 0]
        rows.moment[where] = part.by_head(moment).squeeze(3)
        if self.marks.corner is not None:
            ahead = torch.arange(by_head.shape[2], device=by_head.device, dtype=self.wide) * self.marks.step
            distance = by_head[..., 1] + ahead * by_head[..., 2]
            close = (factor[:edge] * sums.close[:edge]).sum(dim=0)
            rows.distance[where] = distance + part.by_head(close).squeeze(3)
        rows.punctuation[where] = by_head[..., 3]
        rows.special[where] = by_head[..., 4]
        rows.content[where] = part.by_head(sums.largest.amax(dim=0)).squeeze(3)
        if self.has_norms:
            group = self.request.group
            own = summed.view(summed.shape[0], group, -1, summed.shape[2])  # (m, R, t, C)
            for target, first in ((rows.norm, 5), (rows.special_norm, 5 + group)):
                mine = own[..., first : first + group].diagonal(dim1=1, dim2=3)  # (m, t, R)
                target[where] = mine.mT.reshape(by_head.shape[:3])
        return None if self.received is None or not edge else self._shares(part, sums)

    def _shares(self, part: Part, sums: TileSums) -> Tensor:
        """Return by what exp(s - reference) is multiplied to be a weight, 0 in queries that do not count."""
        top, _, factor = sums.scale()
        total = (factor * sums.columns[:, :, 0].unsqueeze(3)).sum(dim=0)  # (m, R·t, 1)
        by_head = part.by_head(total)  # (b, h, t, 1)
        if self.request.sink is not None:
            sink = self.request.sink[part.chunk.heads].to(self.wide)[:, None, None]
            by_head.add_((sink - part.by_head(top)).exp_())
        share = factor / total
        if not self.all_counted or self.blind:
            counted = self.marks.counted[part.chunk.batch, None, part.strip.queries, None]
            counted = counted & (part.by_head(top) > LOWEST / 2)
            share = share.masked_fill(~part.fold(counted), 0.0)
        return share

    def _receive(self, chunk: Chunk, tile: Tile, share: Tensor, e: Tensor) -> None:
        """Add what the keys of a tile receive: share (m, R·t, 1) times e (m, R·t, s)."""
        if self.received is None:
            return
        group = self.request.group
        heads = slice(chunk.merged.start * group, chunk.merged.stop * group)
        target = self.received.view(-1, 1, self.received.shape[2])[heads, :, tile.keys]  # (b · h, 1, s)
        count = length(heads)
        target.baddbmm_(share.reshape(count, 1, -1), e.view(count, -1, e.shape[2]))


def _tile_sizes(request: Request, step: int) -> TileSizes:
    """Return sizes that suit the shapes and the device; strips of queries far apart have a wide edge."""
    cpu = request.q.device.type == "cpu"
    rows = (_ROWS if cpu else 4 * _ROWS) // (request.group if step == 1 else 2 * request.group)
    queries = max(1, min(request.region.rows, rows))
    keys = min(_KEYS if cpu else 4 * _KEYS, max(1, request.k.shape[2]))
    numbers = _CPU_TILE_PER_THREAD * torch.get_num_threads() if cpu else _OTHER_TILE
    return TileSizes(queries, keys, max(1, numbers // (queries * request.group * keys)))


def _of_chunk(tile: Tile, chunk: Chunk) -> Tile:
    """Return the tile as these heads see it, with all of its keys."""
    return Tile(tile.keys, tuple(patch.for_chunk(chunk) for patch in tile.patches))
