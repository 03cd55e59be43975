"""Costs of two models side by side: before and after a change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headwise.cost.estimation import Cost

ROWS = (
    "parameters",
    "weights_bytes",
    "kv_cache_bytes",
    "score_tensor_bytes_all_layers",
    "activation_bytes_explicit",
    "activation_bytes_tiled",
    "training_peak_bytes_tiled",
    "flops_forward",
    "flops_prefill",
    "flops_decode_token",
)


@dataclass(frozen=True)
class Change:
    """One cost before and after; `ratio` is after / before, None where there was nothing before."""

    cost: str
    before: int
    after: int

    @property
    def difference(self) -> int:
        """After minus before."""
        return self.after - self.before

    @property
    def ratio(self) -> float | None:
        """After divided by before."""
        return self.after / self.before if self.before else None

    def to_json(self) -> dict[str, Any]:
        """Plain numbers."""
        values = {"before": self.before, "after": self.after}
        return values | {"difference": self.difference, "ratio": self.ratio}


def compare(before: Cost, after: Cost) -> list[Change]:
    """Return the costs that two models share, before and after, each in its own type of numbers.

    It says nothing of speed, which is measured.

    Raises:
        ValueError: the two were asked for different batches or lengths.
    """
    unlike = ", ".join(_unlike(before, after))
    if unlike:
        raise ValueError(f"costs can be compared for the same tokens only; these differ in {unlike}")
    return [Change(row, getattr(before, row), getattr(after, row)) for row in ROWS]


def _unlike(before: Cost, after: Cost) -> Iterator[str]:
    for name in ("batch", "length", "cache_block"):
        value, other = getattr(before.workload, name), getattr(after.workload, name)
        if value != other:
            yield f"{name} ({value} and {other})"
