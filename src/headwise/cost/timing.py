"""Times of contestants that take turns, so that a slow minute is slow for all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Timing:
    """Seconds of one contestant."""

    median: float
    best: float
    spread: float
    """Half the distance between the quartiles, as a share of the median."""
    runs: int

    def as_dict(self) -> dict[str, float]:
        """Plain values."""
        return asdict(self)


def timing_of(seconds: Sequence[float]) -> Timing:
    """Sum up the times of at least two runs."""
    low, median, high = statistics.quantiles(seconds, n=4)
    return Timing(median, min(seconds), (high - low) / 2 / median, len(seconds))


def turns(count: int, *, seconds: float, least: int) -> Iterator[int]:
    """Say whose turn it is, 0 … count - 1, round after round, until the time is over.

    Each round starts with another one, so that none always finds the caches as the same one left them.
    seconds: how long to go on, once there were `least` rounds.
    """
    end = time.perf_counter() + seconds
    rounds = 0
    while rounds < least or time.perf_counter() < end:
        yield from ((rounds + place) % count for place in range(count))
        rounds += 1
