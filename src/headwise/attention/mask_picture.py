"""Masks to look at: a rectangle of queries and keys, thinned until it fits, drawn as text.

The mask is asked tile by tile, so that a long one is never a whole tensor. Letters: B batch, H heads,
T queries, S keys; R rows and C columns of cells.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from headwise.attention.mask_rules import Region

if TYPE_CHECKING:
    from headwise.attention.masks import Mask

HIDDEN, SOME, SEEN = 0, 1, 2
_MARKS = "·▒■"
_SIDE = 32  # cells
_DRAWN = 4  # grids
_TILE_PAIRS = 1 << 24  # looked at in one step


@dataclass(frozen=True, eq=False)
class Survey:
    """What a mask does to T queries and S keys, in cells."""

    words: str
    T: int
    S: int
    offset: int
    levels: NDArray[np.int8]
    """(B|1, H|1, R, C): HIDDEN, SOME or SEEN."""
    blind: NDArray[np.bool_]
    """(B|1, H|1, T): queries that see no key."""
    block: tuple[int, int]
    """How many queries and how many keys a cell stands for, those at the end excepted."""

    @property
    def thinned(self) -> bool:
        return self.block != (1, 1)

    def choose(self, sequence: int | None, head: int | None) -> list[tuple[int, int]]:
        """Return the (sequence, head) pairs to draw, all that differ if neither is named."""
        return [
            (b, h)
            for b in _chosen("sequence", sequence, self.levels.shape[0])
            for h in _chosen("head", head, self.levels.shape[1])
        ]

    def title(self, sequence: int, head: int) -> str:
        """Name a grid by what it differs from others in; the empty string if there is only one."""
        sequences, heads = self.levels.shape[:2]
        names = [f"sequence {sequence}"] * (sequences > 1) + [f"head {head}"] * (heads > 1)
        return ", ".join(names)

    def sizes(self) -> str:
        """Say what rows and columns are."""
        where = f" at positions {self.offset} … {self.offset + self.T - 1}" if self.offset and self.T else ""
        return f"{self.T} queries (rows){where}, {self.S} keys (columns)"

    def scale(self) -> str:
        """Say what a cell stands for."""
        queries, keys = self.block
        return f"each cell stands for {queries} × {keys} pairs of query and key" if self.thinned else ""

    def blind_rows(self, sequence: int, head: int) -> str:
        """Say which queries see no key."""
        rows = np.flatnonzero(self.blind[sequence, head]).tolist()
        if not rows:
            return ""
        return f"query {rows[0]} sees no key" if len(rows) == 1 else f"queries {runs(rows)} see no key"

    def text(self, sequence: int | None, head: int | None) -> str:
        """Draw the grids, `_DRAWN` at most, one below the other."""
        chosen = self.choose(sequence, head)
        lines = [f"a query sees {self.words}", self.sizes()]
        lines += [self.scale()] * self.thinned
        for b, h in chosen[:_DRAWN]:
            lines += ["", *filter(None, [self.title(b, h)]), *self._grid(self.levels[b, h])]
            blind = self.blind_rows(b, h)
            lines += [blind] if blind else []
        marks = [f"{_MARKS[SEEN]} seen", f"{_MARKS[HIDDEN]} hidden"]
        marks[1:1] = [f"{_MARKS[SOME]} some of them seen"] * bool((self.levels == SOME).any())
        lines += ["", "  ".join(marks)]
        if len(chosen) > _DRAWN:
            lines.append(
                f"{len(chosen) - _DRAWN} more are not drawn: choose with sequence=… and head=…, from 0"
            )
        return "\n".join(lines)

    def _grid(self, levels: NDArray[np.int8]) -> list[str]:
        rows = [str(i * self.block[0]) for i in range(levels.shape[0])]
        columns = [str(j * self.block[1]) for j in range(levels.shape[1])]
        margin = max(map(len, rows), default=0)
        digits = max(map(len, columns), default=0)
        lines = [  # column numbers are written downwards: cells are narrower than they
            " " * margin + "".join(" " + number.rjust(digits)[place] for number in columns)
            for place in range(digits)
        ]
        for name, row in zip(rows, levels.tolist(), strict=True):
            lines.append(name.rjust(margin) + "".join(" " + _MARKS[level] for level in row))
        return [line.rstrip() for line in lines]


def survey(mask: Mask, T: int, S: int, offset: int | None = None, *, side: int = _SIDE) -> Survey:
    """Look at a mask in at most side × side cells; raises ValueError if it does not fit T and S."""
    if T < 0 or S < 0:
        raise ValueError(f"a picture needs sizes of at least 0, got T={T}, S={S}")
    mask.check(T, S)
    offset = S - T if offset is None else offset
    block = (max(1, -(-T // side)), max(1, -(-S // side)))
    row_starts = [*range(0, T, block[0]), T]
    key_starts = [*range(0, S, block[1]), S]
    cells: list[list[tuple[NDArray[np.bool_], NDArray[np.bool_]]]] = []
    sighted: list[NDArray[np.bool_]] = []
    for row, row_end in pairwise(row_starts):
        line, alive = [], np.zeros((1, 1, row_end - row), dtype=np.bool_)
        for key, key_end in pairwise(key_starts):
            some, every, rows = _look(mask, Region(row, row_end - row, key, key_end - key, offset))
            line.append((some, every))
            alive = alive | rows
        cells.append(line)
        sighted.append(alive)
    levels = _stack([[some.astype(np.int8) + every for some, every in line] for line in cells], S == 0)
    blind = ~np.concatenate(_broadcast(sighted), axis=-1) if sighted else np.zeros((1, 1, 0), dtype=np.bool_)
    return Survey(mask.words(), T, S, offset, levels, blind, block)


def runs(numbers: Iterable[int], most: int = 4) -> str:
    """Write ascending numbers as runs, "0 … 2, 5", and say how many more runs there are."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    parts = [str(a) if a == b else f"{a}, {b}" if b == a + 1 else f"{a} … {b}" for a, b in found[:most]]
    rest = sum(b - a + 1 for a, b in found[most:])
    return ", ".join(parts) + (f" and {rest} more" if rest else "")


def _look(
    mask: Mask, tile: Region
) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_] | np.bool_]:
    """Return per sequence and head whether some and whether all pairs are seen, and who sees a key."""
    if mask.crop(tile).empty:
        return _one(False), _one(False), np.bool_(False)
    if mask.hides_nothing(tile):
        return _one(True), _one(True), np.bool_(True)
    step = max(1, _TILE_PAIRS // tile.keys)
    some, every, alive = _one(False), _one(True), []
    for row in range(tile.row, tile.row + tile.rows, step):
        rows = min(step, tile.row + tile.rows - row)
        table = mask.allowed(
            Region(row, rows, tile.key, tile.keys, tile.offset), mask.device or torch.device("cpu")
        )
        seen = torch.ones(1, 1, 1, 1, dtype=torch.bool) if table is None else table
        some = some | seen.flatten(2).any(-1).cpu().numpy()
        every = every & seen.flatten(2).all(-1).cpu().numpy()
        sight = seen.any(-1)  # (B|1, H|1, rows|1)
        alive.append(sight.expand(*sight.shape[:2], rows).cpu().numpy())
    return some, every, np.concatenate(_broadcast(alive), axis=-1)


def _one(value: bool) -> NDArray[np.bool_]:
    return np.full((1, 1), value)


def _broadcast(arrays: list[NDArray[np.bool_]]) -> list[NDArray[np.bool_]]:
    """Give arrays (B|1, H|1, n) one B and H."""
    sizes = np.broadcast_shapes(*(array.shape[:2] for array in arrays))
    return [np.broadcast_to(array, (*sizes, array.shape[-1])) for array in arrays]


def _stack(lines: list[list[NDArray[np.int8]]], no_keys: bool) -> NDArray[np.int8]:
    """Put cells of (B|1, H|1) together: (B|1, H|1, R, C)."""
    if not lines or no_keys:
        return np.zeros((1, 1, len(lines), 0), dtype=np.int8)
    sizes = np.broadcast_shapes(*(cell.shape for line in lines for cell in line))
    grid = np.array([[np.broadcast_to(cell, sizes) for cell in line] for line in lines])  # (R, C, B, H)
    return np.moveaxis(grid, (0, 1), (2, 3))


def _chosen(name: str, wanted: int | None, count: int) -> range:
    if wanted is None:
        return range(count)
    if not 0 <= wanted < count:
        same = f"; this mask is the same for every {name}" if count == 1 else f"; there are 0 … {count - 1}"
        raise ValueError(f"{name}={wanted} cannot be drawn{same}")
    return range(wanted, wanted + 1)
