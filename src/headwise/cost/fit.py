"""How long a context and how large a batch fit a given memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from headwise.cost import cache, training
from headwise.cost.architecture import Architecture
from headwise.cost.numbers import BITS, whole
from headwise.cost.parameters import parameters
from headwise.cost.workload import Workload

Purpose = Literal["inference", "training tiled", "training explicit"]
PURPOSES: tuple[Purpose, ...] = ("inference", "training tiled", "training explicit")

_ENDLESS = 2**40  # tokens: what fits this fits any text


@dataclass(frozen=True)
class Fit:
    """What fits `memory_bytes`.

    Attributes:
        purpose: "inference": weights and cache; "training tiled", "training explicit": the peak of a step.
        longest_context: tokens of each of the workload's B sequences; 0: not even one, None: any number.
        largest_batch: sequences of the workload's T tokens; 0: not even one, None: any number.
    """

    purpose: Purpose
    memory_bytes: int
    longest_context: int | None
    largest_batch: int | None


def fits(architecture: Architecture, workload: Workload, memory_bytes: int) -> list[Fit]:
    """Return what fits for each purpose. A position limit of the model is not looked at.

    Raises TypeError or ValueError if `memory_bytes` is not a positive whole number.
    """
    whole("memory_bytes", memory_bytes)

    def needed(purpose: Purpose, asked: Workload) -> int:
        if purpose == "inference":
            weights = parameters(architecture) * BITS[asked.dtype] // 8
            return weights + cache.kv_cache_bytes(architecture, asked)
        return training.step_peak(architecture, asked, tiled=purpose == "training tiled")

    return [
        Fit(
            purpose,
            memory_bytes,
            _most(lambda n, p=purpose: needed(p, workload.with_(length=n)) <= memory_bytes),  # type: ignore[misc]
            _most(lambda n, p=purpose: needed(p, workload.with_(batch=n)) <= memory_bytes),  # type: ignore[misc]
        )
        for purpose in PURPOSES
    ]


def _most(suits: Callable[[int], bool]) -> int | None:
    """The largest number that suits, if all smaller ones do; 0 if 1 does not, None if there is no end."""
    if not suits(1):
        return 0
    if suits(_ENDLESS):
        return None
    low, high = 1, _ENDLESS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if suits(middle) else (low, middle)
    return low
