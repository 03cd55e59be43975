"""Which tiles of the scores blockwise attention computes: those a mask hides are skipped, few need a table.

Letters: B batch, H query heads, G key/value heads, T queries, S keys; t queries of a strip, s keys of a tile.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from headwise.attention.masks import Region
from headwise.attention.request import Request
from headwise.attention.tiles import Patch, Strip, Tile, TileSizes, cut, length

# A tile is looked at in pieces, as few of them need a table: in so many, if they are not narrower than this.
_PIECES = 4
_NARROWEST = 128


class Plan:
    """The strips of a request, made one at a time.

    Outside the CPU, what tensors hold is not looked at, as that would make the device wait.
    """

    def __init__(self, request: Request, sizes: TileSizes) -> None:
        self.request = request
        self.sizes = sizes
        self.looks = request.q.device.type == "cpu"
        bias = None if request.bias is None else request.bias.detach()
        self.bias = bias if bias is not None and (bias == -math.inf).any() else None
        """The bias, if it hides something."""
        self.clean = self.looks and bool(request.k.detach().sum().isfinite())
        """Whether there is surely no NaN among the scores but those of a whole row."""
        if bias is not None and bias.isnan().any():
            self.clean = False

    def strips(self) -> Iterator[Strip]:
        """Cut the scores into strips and tiles; what is hidden altogether is left out."""
        for first in range(0, self.request.region.rows, self.sizes.queries):
            queries = slice(first, min(first + self.sizes.queries, self.request.region.rows))
            tiles = tuple(self._tiles(queries))
            yield Strip(queries, tiles, self._alive(tiles, queries))

    def _tiles(self, queries: slice) -> Iterator[Tile]:
        width = self.sizes.keys
        within = self.crop(queries, slice(0, self.request.region.keys))
        for first in range(within.start, within.stop, width):
            keys = self.crop(queries, slice(first, min(first + width, within.stop)))
            if not length(keys):
                continue
            tile = self.tile(queries, keys)
            if tile is not None:
                yield tile

    def crop(self, queries: slice, keys: slice) -> slice:
        """Return those of the keys, as few as known, beyond which the queries see none of them."""
        if self.request.mask is None:
            return keys
        part = self.request.mask.crop(self._region(queries, keys))
        first = part.key - self.request.region.key
        return slice(first, first if part.empty else first + part.keys)

    def tile(self, queries: slice, keys: slice) -> Tile | None:
        """Return the tile of these keys, without ends that are hidden altogether; None if all is hidden."""
        tile = Tile(keys, tuple(self._patches(queries, keys)))
        return tile.trimmed() if self.looks else tile

    def _region(self, queries: slice, keys: slice) -> Region:
        whole = self.request.region
        return Region(
            whole.row + queries.start,
            length(queries),
            whole.key + keys.start,
            length(keys),
            whole.offset,
        )

    def _patches(self, queries: slice, keys: slice) -> Iterator[Patch]:
        width = max(_NARROWEST, -(-length(keys) // _PIECES))
        for first in range(keys.start, keys.stop, width):
            piece = slice(first, min(first + width, keys.stop))
            allowed = self._allowed(queries, piece)
            if allowed is not None and not (self.looks and bool(allowed.all())):
                hidden = ~allowed
                yield Patch(piece, hidden, self._ceiling(hidden), self._unseen(hidden))

    def _allowed(self, queries: slice, keys: slice) -> Tensor | None:
        """Return what may be seen, (B|1, H|1, t|1, s), None for everything."""
        mask = self.request.mask
        allowed = None if mask is None else mask.allowed(self._region(queries, keys), self.request.q.device)
        if self.bias is None:
            return allowed
        above = cut(self.bias, queries, keys) != -math.inf
        above = above.expand(*above.shape[:3], length(keys))
        return above if allowed is None else allowed & above

    def _ceiling(self, hidden: Tensor) -> Tensor | None:
        if not self.clean or hidden.shape[1] != 1 or self.request.q.shape[1] == 1:
            return None
        wide = torch.promote_types(self.request.q.dtype, torch.float32)
        return torch.full(hidden.shape, math.inf, dtype=wide).masked_fill_(hidden, -math.inf)

    def _unseen(self, hidden: Tensor) -> Tensor | None:
        unseen = hidden.all(dim=-2)  # (B|1, H|1, s)
        if unseen.shape[1] != 1:
            batch, _, keys = unseen.shape
            unseen = unseen.view(batch, self.request.k.shape[1], self.request.group, keys).all(dim=2)
        return None if self.looks and not unseen.any() else unseen.unsqueeze(-1)  # (B|1, G|1, s, 1)

    def _alive(self, tiles: tuple[Tile, ...], queries: slice) -> Tensor | None:
        if any(tile.visible for tile in tiles):
            return None
        alive = torch.zeros(1, 1, length(queries), 1, dtype=torch.bool, device=self.request.q.device)
        for tile in tiles:
            for patch in tile.patches:
                alive = alive | ~patch.hidden.all(dim=-1, keepdim=True)
        return None if self.looks and bool(alive.all()) else alive
