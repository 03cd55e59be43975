"""How blockwise attention cuts the scores into tiles: their sizes, which are skipped, which need a table.

A strip is some queries against all keys, a tile some keys of it, a chunk some key/value heads with the query
heads that read them. Strips and tiles are those of every head; chunk by chunk they are computed.

Letters: B batch, H query heads, G key/value heads, T queries, S keys; t queries of a strip, s keys of a tile.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.attention.masks import Region
from headwise.attention.request import Request

# Numbers in one tile, over its heads. On CPU a tile per thread stays in the second-level cache with its few
# companions; on other devices it only has to be large enough to fill them and small against the memory.
_CPU_TILE_PER_THREAD = 2**18
_OTHER_TILE = 2**24
_KEYS = 512
_ROWS = 128  # queries times heads of a group
_MOST_ROWS = 1024
_PIECES = 4  # a tile that is hidden in part is looked at in so many pieces


@dataclass(frozen=True)
class TileSizes:
    """Queries per strip, keys per tile, key/value heads (of all sequences) per chunk."""

    queries: int
    keys: int
    heads: int


def tile_sizes(request: Request) -> TileSizes:
    """Return sizes that suit the shapes and the device."""
    q, k = request.q, request.k
    heads = max(1, k.shape[0] * k.shape[1])
    cpu = q.device.type == "cpu"
    numbers = _CPU_TILE_PER_THREAD * torch.get_num_threads() if cpu else _OTHER_TILE
    keys = min(_KEYS, max(1, k.shape[2]))
    rows = max(_ROWS, min(_MOST_ROWS, numbers // (keys * heads)))
    queries = max(1, min(q.shape[2], rows // request.group))
    rows = queries * request.group
    if rows < _ROWS:  # few queries, as in decoding: long tiles instead
        keys = min(max(1, k.shape[2]), _KEYS * _ROWS // rows)
    return TileSizes(queries, keys, max(1, numbers // (rows * keys)))


@dataclass(frozen=True)
class Chunk:
    """Key/value heads that are computed together: some of one sequence, or all of some sequences."""

    batch: slice
    groups: slice
    heads: slice
    """The query heads that read them."""
    merged: slice
    """The same key/value heads, counted over (B · G)."""

    def pick(self, t: Tensor) -> Tensor:
        """Return the part of (B|1, H|1, …) that belongs to the chunk."""
        return self._pick(t, self.heads)

    def pick_groups(self, t: Tensor) -> Tensor:
        """Return the part of (B|1, G|1, …) that belongs to the chunk."""
        return self._pick(t, self.groups)

    def _pick(self, t: Tensor, heads: slice) -> Tensor:
        t = t if t.shape[0] == 1 else t[self.batch]
        return t if t.shape[1] == 1 else t[:, heads]


def chunks(request: Request, heads: int) -> Iterator[Chunk]:
    """Cut the key/value heads of all sequences into chunks of at most ``heads``."""
    batch, groups, group = *request.k.shape[:2], request.group
    sequences = max(1, heads // groups)
    width = groups if heads >= groups else heads
    for b in range(0, batch, sequences):
        b_end = min(batch, b + sequences)
        for g in range(0, groups, width):
            g_end = min(groups, g + width)
            yield Chunk(
                slice(b, b_end),
                slice(g, g_end),
                slice(g * group, g_end * group),
                slice(b * groups + g, (b_end - 1) * groups + g_end),
            )


@dataclass(frozen=True, eq=False)
class Patch:
    """Keys of a tile where some pairs are hidden."""

    keys: slice
    """Counted from the first key of the tile."""
    hidden: Tensor
    """(B|1, H|1, t|1, s), True where the query may not attend."""
    unseen: Tensor | None
    """(B|1, G|1, s, 1), True for keys that no query of the strip sees; None if there are none."""


@dataclass(frozen=True, eq=False)
class Tile:
    """Some keys of a strip; where no patch lies, every pair is visible."""

    keys: slice
    patches: tuple[Patch, ...]

    def for_chunk(self, chunk: Chunk) -> tuple[Patch, ...] | None:
        """Return the patches of these heads, None if nothing is visible to them in the tile."""
        found, covered = [], 0
        for patch in self.patches:
            hidden = chunk.pick(patch.hidden)
            if hidden.device.type == "cpu" and hidden.shape[:2] != patch.hidden.shape[:2]:
                if not hidden.any():
                    continue
                if hidden.all():
                    covered += hidden.shape[3]
            found.append(
                Patch(patch.keys, hidden, None if patch.unseen is None else chunk.pick_groups(patch.unseen))
            )
        return None if covered == self.keys.stop - self.keys.start else tuple(found)


@dataclass(frozen=True, eq=False)
class Strip:
    """Some queries and the tiles in which they may see something."""

    queries: slice
    tiles: tuple[Tile, ...]
    alive: Tensor | None
    """(B|1, H|1, t, 1), True for queries that see at least one key; None if all do."""


def strips(request: Request, sizes: TileSizes) -> Iterator[Strip]:
    """Cut the scores of a request into strips and tiles; what the mask hides altogether is left out.

    Outside the CPU, what tensors say is not looked at, as that would make the device wait.
    """
    hides = request.bias is not None and bool((request.bias.detach() == -math.inf).any())
    for first in range(0, request.region.rows, sizes.queries):
        queries = slice(first, min(first + sizes.queries, request.region.rows))
        tiles = tuple(_tiles(request, queries, sizes.keys, hides))
        yield Strip(queries, tiles, _alive(tiles, queries, request))


def _tiles(request: Request, queries: slice, width: int, bias_hides: bool) -> Iterator[Tile]:
    region = _part(request, queries, slice(0, request.region.keys))
    if request.mask is not None:
        region = request.mask.crop(region)
    start = region.key - request.region.key
    for first in range(start, start + region.keys, width):
        keys = slice(first, min(first + width, start + region.keys))
        part = _part(request, queries, keys)
        if request.mask is not None:
            part = request.mask.crop(part)
            if part.empty:
                continue
            keys = slice(part.key - request.region.key, part.key - request.region.key + part.keys)
        patches = _patches(request, queries, keys, bias_hides)
        if not _hidden(patches, keys, request.q.device):
            yield Tile(keys, patches)


def _part(request: Request, queries: slice, keys: slice) -> Region:
    whole = request.region
    return Region(
        whole.row + queries.start,
        queries.stop - queries.start,
        whole.key + keys.start,
        keys.stop - keys.start,
        whole.offset,
    )


def _patches(request: Request, queries: slice, keys: slice, bias_hides: bool) -> tuple[Patch, ...]:
    ranges = [keys] if bias_hides else _partly_hidden(request, queries, keys)
    found = []
    for part in ranges:
        allowed = None
        if request.mask is not None:
            allowed = request.mask.allowed(_part(request, queries, part), request.q.device)
        if bias_hides and request.bias is not None:
            above = cut(request.bias.detach(), queries, part) != -math.inf
            above = above.expand(*above.shape[:3], part.stop - part.start)
            allowed = above if allowed is None else allowed & above
        if allowed is None or (request.q.device.type == "cpu" and bool(allowed.all())):
            continue
        within = slice(part.start - keys.start, part.stop - keys.start)
        hidden = ~allowed
        found.append(Patch(within, hidden, _unseen(hidden, request)))
    return tuple(found)


def _partly_hidden(request: Request, queries: slice, keys: slice) -> list[slice]:
    """Return the keys, in few ranges, for which positions alone do not show that all are seen."""
    mask = request.mask
    if mask is None:
        return []
    width = max(1, -(-(keys.stop - keys.start) // _PIECES))
    ranges: list[slice] = []
    for first in range(keys.start, keys.stop, width):
        piece = slice(first, min(first + width, keys.stop))
        if mask.hides_nothing(_part(request, queries, piece)):
            continue
        if ranges and ranges[-1].stop == first:
            ranges[-1] = slice(ranges[-1].start, piece.stop)
        else:
            ranges.append(piece)
    return ranges


def _unseen(hidden: Tensor, request: Request) -> Tensor | None:
    unseen = hidden.all(dim=-2)  # (B|1, H|1, s)
    if unseen.shape[1] != 1:
        batch, _, keys = unseen.shape
        unseen = unseen.view(batch, request.k.shape[1], request.group, keys).all(dim=2)  # (B|1, G, s)
    if request.q.device.type == "cpu" and not unseen.any():
        return None
    return unseen.unsqueeze(-1)


def _hidden(patches: tuple[Patch, ...], keys: slice, device: torch.device) -> bool:
    if device.type != "cpu" or sum(p.keys.stop - p.keys.start for p in patches) < keys.stop - keys.start:
        return False
    return all(bool(patch.hidden.all()) for patch in patches)


def _alive(tiles: tuple[Tile, ...], queries: slice, request: Request) -> Tensor | None:
    rows = queries.stop - queries.start
    device = request.q.device
    alive = torch.zeros(1, 1, rows, 1, dtype=torch.bool, device=device)
    for tile in tiles:
        covered = sum(patch.keys.stop - patch.keys.start for patch in tile.patches)
        if covered < tile.keys.stop - tile.keys.start:
            return None
        for patch in tile.patches:
            alive = alive | ~patch.hidden.all(dim=-1, keepdim=True)
    return None if device.type == "cpu" and bool(alive.all()) else alive


def cut(t: Tensor, queries: slice, keys: slice) -> Tensor:
    """Return the part of (B|1, H|1, T|1, S|1) that belongs to these queries and keys."""
    t = t if t.shape[2] == 1 else t[:, :, queries]
    return t if t.shape[3] == 1 else t[..., keys]
