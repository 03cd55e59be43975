"""How much of a text's attention fits into a page: the whole, or windows and an overview by block maxima.

Letters: T queries, S keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Weights = NDArray[np.float32]
Seen = NDArray[np.bool_]

MOST_CELLS = 5_500_000
"""One byte each and a third more as base64, so that a page stays under 8 MB."""
MOST_TOKENS = 512
"""A longer text is not shown at once: a cell of the map would be smaller than a pixel."""
_OVERVIEW_SHARE = 0.25
_WINDOWS = (512, 256, 128, 96, 64, 48, 32, 16)
_MOST_WINDOWS = 8


@dataclass(frozen=True)
class Pane:
    """A piece of the attention maps: some queries and keys, or all of them by blocks."""

    rows: tuple[int, int]
    """The first query and the one after the last."""
    columns: tuple[int, int]
    """The same of the keys."""
    block: int = 1
    """How many tokens each row and column stands for; above 1 a cell holds the largest weight among them."""
    triangle: bool = False
    """Whether only the lower triangle is kept, all else being hidden."""
    layers: list[list[NDArray[np.uint8]]] = field(default_factory=list)
    """By layer and head, the cells one after the other; see `quantised`."""

    @property
    def shape(self) -> tuple[int, int]:
        return tuple(-(-(end - start) // self.block) for start, end in (self.rows, self.columns))  # type: ignore[return-value]

    @property
    def cells(self) -> int:
        """Cells per head."""
        rows, columns = self.shape
        return rows * (rows + 1) // 2 if self.triangle else rows * columns

    def cut(self, weights: Weights, seen: Seen) -> NDArray[np.uint8]:
        """Return this pane's cells of one head's weights (T, S), of which those not seen are hidden."""
        here = np.s_[self.rows[0] : self.rows[1], self.columns[0] : self.columns[1]]
        weights, seen = weights[here], seen[here]
        if self.block > 1:
            weights = _block_maxima(np.where(seen, weights, -1.0), self.block)
            seen = weights >= 0
        levels = quantised(weights, seen)
        return levels[np.tri(len(levels), dtype=bool)] if self.triangle else levels.ravel()


def quantised(weights: NDArray[np.floating], seen: Seen) -> NDArray[np.uint8]:
    """Return one byte per weight: 0 is hidden, 1 … 255 the square root, which keeps small weights apart.

    Reading a byte b back as ((b - 1) / 254)² is off by at most 0.004.
    """
    levels = 1 + np.rint(254 * np.sqrt(np.clip(weights, 0, 1)))
    return np.where(seen, levels, 0).astype(np.uint8)


def plan(queries: int, keys: int, heads: int, *, causal: bool, most: int = MOST_CELLS) -> list[Pane]:
    """Return the panes that a page of so many heads has room for.

    A text that fits is one pane. A longer one is an overview by blocks, and windows of consecutive tokens
    spread over the text, as many as fit.
    """
    square = queries == keys
    whole = Pane((0, queries), (0, keys), triangle=causal and square)
    if max(queries, keys) <= MOST_TOKENS and whole.cells * heads <= most:
        return [whole]
    overview = _overview(queries, keys, heads, causal and square, most)
    left = most - overview.cells * heads
    windows = _windows(queries, keys, heads, causal and square, left)
    return [*windows, overview]


def _overview(queries: int, keys: int, heads: int, triangle: bool, most: int) -> Pane:
    block = 2
    while True:
        pane = Pane((0, queries), (0, keys), block, triangle)
        if pane.cells * heads <= _OVERVIEW_SHARE * most and max(pane.shape) <= MOST_TOKENS // 2:
            return pane
        if max(pane.shape) == 1:
            raise ValueError(f"{heads:,} heads are too many for one page (at most {most:,} cells of maps)")
        block *= 2


def _windows(queries: int, keys: int, heads: int, triangle: bool, room: int) -> list[Pane]:
    """Return windows of the same tokens as queries and keys, or of the first keys where those are others."""
    for width in _WINDOWS:
        rows, columns = min(width, queries), min(width, keys)
        number = room // (Pane((0, rows), (0, columns), triangle=triangle).cells * heads)
        if number:
            number = min(number, _MOST_WINDOWS, -(-queries // rows))
            starts = np.linspace(0, queries - rows, number).round().astype(int).tolist()
            return [
                Pane((at, at + rows), (at, at + rows) if queries == keys else (0, columns), triangle=triangle)
                for at in sorted(set(starts))
            ]
    return []


def _block_maxima(weights: NDArray[np.floating], block: int) -> NDArray[np.floating]:
    rows, columns = (-(-size // block) for size in weights.shape)
    padded = np.full((rows * block, columns * block), -1.0, dtype=np.float32)
    padded[: weights.shape[0], : weights.shape[1]] = weights
    # (rows, block, columns, block) → (rows, columns)
    maxima: NDArray[np.floating] = padded.reshape(rows, block, columns, block).max(axis=(1, 3))
    return maxima


def binned(values: Sequence[float] | NDArray[np.floating], most: int = 256) -> NDArray[np.float32]:
    """Return a curve of at most so many points: averages of neighbours where there are more."""
    array = np.asarray(values, dtype=np.float64)
    if len(array) <= most:
        return array.astype(np.float32)
    edges = np.linspace(0, len(array), most + 1).round().astype(int)[:-1]
    counts = np.diff([*edges, len(array)])
    return (np.add.reduceat(array, edges) / counts).astype(np.float32)
