"""Sets of whole numbers as spans, closed under not, and, or: how far back a query sees, which keys it sees.

A span is (low, high): low ≤ x < high, where None leaves that side open. A set is a tuple of spans that ascend
and do not touch, so that equal sets are equal tuples.
"""

from __future__ import annotations

Span = tuple[int | None, int | None]
Spans = tuple[Span, ...]

ALL: Spans = ((None, None),)
NONE: Spans = ()


def complement(spans: Spans) -> Spans:
    """Return the set of all numbers that are not in this one."""
    gaps: list[Span] = []
    end: int | None = None  # of what is dealt with so far
    for low, high in spans:
        if low is not None and (end is None or end < low):
            gaps.append((end, low))
        if high is None:
            return tuple(gaps)
        end = high
    return (*gaps, (end, None))


def intersection(a: Spans, b: Spans) -> Spans:
    """Return the set of the numbers that are in both."""
    both = [(_higher(p, r), _lower(q, s)) for p, q in a for r, s in b]
    return tuple((low, high) for low, high in both if low is None or high is None or low < high)


def union(a: Spans, b: Spans) -> Spans:
    """Return the set of the numbers that are in either."""
    return complement(intersection(complement(a), complement(b)))


def holds(spans: Spans, first: int, last: int) -> bool:
    """Return True if first … last, which must not be empty, are all in the set."""
    for low, high in spans:  # noqa: SIM110  # faster than any(…), and asked at every step of generation
        if (low is None or low <= first) and (high is None or last < high):
            return True
    return False


def _higher(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else max(a, b)


def _lower(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)
