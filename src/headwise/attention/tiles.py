"""What blockwise attention works on: strips, tiles and chunks, and how large they are.

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

from headwise.attention.request import Request

# Numbers in one tile, over its heads. On CPU a tile per thread stays in the second-level cache with its few
# companions; on other devices it only has to be large enough to fill them and small against the memory.
_CPU_TILE_PER_THREAD = 2**18
_OTHER_TILE = 2**24
_KEYS = 512
_ROWS = 128  # queries times heads of a group
_MOST_ROWS = 1024


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
    hidden: Tensor
    """(B|1, H|1, t|1, s), True where the query may not attend."""
    ceiling: Tensor | None
    """(B|1, 1, t|1, s), -inf where hidden and +inf elsewhere; None where `hidden` is the better way."""
    unseen: Tensor | None
    """(B|1, G|1, s, 1), True for keys that no query of the strip sees; None if there are none."""

    def hide(self, scores: Tensor) -> None:
        """Put -inf into the scores (B, H, t, s) where a query may not attend."""
        if self.ceiling is None:
            scores.masked_fill_(self.hidden, -math.inf)
        else:  # several times faster on CPU, but a hidden NaN would stay one
            torch.minimum(scores, self.ceiling, out=scores)

    def for_chunk(self, chunk: Chunk) -> Patch:
        """Return the part that belongs to these heads."""
        return Patch(
            self.keys,
            chunk.pick(self.hidden),
            None if self.ceiling is None else chunk.pick(self.ceiling),
            None if self.unseen is None else chunk.pick_groups(self.unseen),
        )


@dataclass(frozen=True, eq=False)
class Tile:
    """Some keys of a strip; where no patch lies, every pair is visible."""

    keys: slice
    patches: tuple[Patch, ...]

    @property
    def visible(self) -> bool:
        """Whether there is a key that every query sees."""
        return sum(length(patch.keys) for patch in self.patches) < length(self.keys)

    def within(self, patch: Patch) -> slice:
        """Return the keys of a patch, counted from the first of the tile."""
        return slice(patch.keys.start - self.keys.start, patch.keys.stop - self.keys.start)

    def trimmed(self) -> Tile | None:
        """Return the tile without patches at its ends that hide everything, None if nothing is left."""
        start, stop = self.keys.start, self.keys.stop
        patches = list(self.patches)
        while patches and patches[0].keys.start == start and bool(patches[0].hidden.all()):
            start = patches.pop(0).keys.stop
        while patches and patches[-1].keys.stop == stop and bool(patches[-1].hidden.all()):
            stop = patches.pop().keys.start
        return Tile(slice(start, stop), tuple(patches)) if start < stop else None

    def for_chunk(self, chunk: Chunk) -> Tile | None:
        """Return the tile as these heads see it, None if they see nothing of it."""
        tile = Tile(self.keys, tuple(patch.for_chunk(chunk) for patch in self.patches))
        smaller = any(
            a.hidden.shape != b.hidden.shape for a, b in zip(self.patches, tile.patches, strict=True)
        )
        return tile.trimmed() if smaller and self.patches[0].hidden.device.type == "cpu" else tile


@dataclass(frozen=True, eq=False)
class Strip:
    """Some queries and the tiles in which they may see something."""

    queries: slice
    tiles: tuple[Tile, ...]
    alive: Tensor | None
    """(B|1, H|1, t, 1), True for queries that see at least one key; None if all do."""


@dataclass(frozen=True, eq=False)
class Part:
    """The queries of a strip for the heads of a chunk: what is computed in one go.

    Letters: b sequences and h query heads of the chunk, m = b · h/R key/value heads, R = H/G.
    """

    strip: Strip
    chunk: Chunk

    @property
    def where(self) -> tuple[slice, slice, slice]:
        """Where it lies in a tensor (B, H, T, …)."""
        return self.chunk.batch, self.chunk.heads, self.strip.queries

    def tiles(self) -> Iterator[Tile]:
        """Return the tiles in which these heads may see something."""
        for tile in self.strip.tiles:
            part = tile.for_chunk(self.chunk)
            if part is not None:
                yield part

    def blind(self) -> Tensor | None:
        """Return True for queries that see nothing, (b|1, h|1, t, 1), or None if there are none."""
        return None if self.strip.alive is None else ~self.chunk.pick(self.strip.alive)

    def fold(self, t: Tensor) -> Tensor:
        """Turn (b, h, t, W) into (m, R·t, W): the heads of a group become rows of one."""
        heads = length(self.chunk.merged)
        return t.reshape(heads, t.shape[0] * t.shape[1] // heads * t.shape[2], t.shape[3])

    def by_head(self, t: Tensor) -> Tensor:
        """View (m, R·t, W) as (b, h, t, W)."""
        return t.view(-1, length(self.chunk.heads), length(self.strip.queries), t.shape[2])

    def pick(self, t: Tensor, tile: Tile) -> Tensor:
        """Return the part of (B|1, H|1, T|1, S|1) that belongs to these queries and the keys of a tile."""
        return self.chunk.pick(cut(t, self.strip.queries, tile.keys))


def length(part: slice) -> int:
    """Return how many entries a slice with both ends has."""
    return int(part.stop) - int(part.start)


def cut(t: Tensor, queries: slice, keys: slice) -> Tensor:
    """Return the part of (B|1, H|1, T|1, S|1) that belongs to these queries and keys."""
    t = t if t.shape[2] == 1 else t[:, :, queries]
    return t if t.shape[3] == 1 else t[..., keys]
