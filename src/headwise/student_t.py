"""Student's t, for intervals of a mean from a few runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence


def t_probability(t: float, degrees: int) -> float:
    """P(-t < T < t) for Student's t with whole `degrees` of freedom, t ≥ 0: the finite sums of Abramowitz
    and Stegun (1964), 26.7.3 and 26.7.4."""
    angle = math.atan2(t, math.sqrt(degrees))
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = degrees % 2
    term, total = (cosine if odd else 1.0), 0.0
    for k in range(odd + 1, degrees, 2):
        total += term
        term *= cosine**2 * k / (k + 1)
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


def t_quantile(confidence: float, degrees: int) -> float:
    """The t with P(-t < T < t) = `confidence`.

    Raises:
        ValueError: a confidence outside (0, 1) or no degree of freedom.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}")
    if degrees < 1:
        raise ValueError(f"degrees of freedom must be at least 1, got {degrees}")
    low, high = 0.0, 1.0
    while t_probability(high, degrees) < confidence:
        high *= 2
    while low < (middle := (low + high) / 2) < high:  # until they are neighbours in floating point
        if t_probability(middle, degrees) < confidence:
            low = middle
        else:
            high = middle
    return high


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """The t-interval of the mean of independent `values`.

    Raises:
        ValueError: fewer than two values, which say nothing of their spread.
    """
    if len(values) < 2:
        raise ValueError(f"an interval needs at least two values, got {len(values)}")
    mean = statistics.fmean(values)
    half = t_quantile(confidence, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return mean - half, mean + half
