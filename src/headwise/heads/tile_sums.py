"""What the tiles of a strip of queries summed up, and how they are put on one scale.

Letters: m key/value heads, R query heads of each, t queries of a strip; C columns; N tiles of the strip.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(eq=False)
class TileSums:
    """What the tiles of a strip left, each on the scale of its own reference."""

    largest: Tensor
    """(N, m, R·t, 1), the largest score of content, those at distance -1 and 1 left out."""
    reference: Tensor
    """(N, m, R·t, 1), the largest score of all, LOWEST at least."""
    moments: Tensor
    """(N, m, R·t, 1), sum of (s - reference) exp(s - reference)."""
    close: Tensor
    """(N, m, R·t, 1), sum of |i - j| exp(s - reference) over keys at the strip's own positions."""
    columns: Tensor
    """(N, m, C, R·t), sums of columns times exp(s - reference)."""

    def of(self, heads: slice) -> TileSums:
        """Return those of some key/value heads, counted over (B · G)."""
        return TileSums(*(t[:, heads] for t in vars(self).values()))

    def scale(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the common reference (m, R·t, 1), what tiles are below it and the factor, (N, m, R·t, 1)."""
        top = self.reference.amax(dim=0)
        below = self.reference - top
        return top, below, below.exp()
