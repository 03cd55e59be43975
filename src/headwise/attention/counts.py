"""Which numbers of heads fit a width: for error messages that say what to do."""

from __future__ import annotations


def counts_that_fit(total: int, wanted: int) -> str:
    """The divisors of `total` next to `wanted`, below and above: `counts_that_fit(8, 3)` is "2 or 4"."""
    divisors = [n for n in range(1, total + 1) if total % n == 0]
    below = [n for n in divisors if n < wanted][-1:]
    above = [n for n in divisors if n > wanted][:1]
    return " or ".join(map(str, below + above))
