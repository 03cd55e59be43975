"""Measuring side by side: alternating timings, peak memory, the ceilings of the machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from headwise.cost.timing import Timing, timing_of, turns

Run = Callable[[], object]


def alternate(contestants: dict[str, Run], *, seconds: float, least: int = 5) -> dict[str, Timing]:
    """Time all contestants in turn, round after round, once each has been run.

    seconds: how long to go on, once each has run at least so many times.
    """
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for run in contestants.values():
        run()
    names = list(contestants)
    for turn in turns(len(names), seconds=seconds, least=least):
        start = time.perf_counter()
        contestants[names[turn]]()
        times[names[turn]].append(time.perf_counter() - start)
    return {name: timing_of(each) for name, each in times.items()}


def peak_memory(run: Run) -> int | None:
    """Return the bytes of memory that one run needs at its peak beyond what was there before (Linux only).

    The peak of the process is reset first, so the caller should have warmed up with something small.
    """
    reset = Path("/proc/self/clear_refs")
    if not reset.exists():
        return None
    before = _resident("VmRSS")
    reset.write_text("5")
    run()
    return max(0, _resident("VmHWM") - before)


def _resident(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no field {field}")


@dataclass(frozen=True)
class Ceilings:
    """What the machine reaches in the same run: nothing can be faster than the slower of the two."""

    flops: float
    """Multiply-adds count two, per second, of one large matrix product in float32."""
    read: float
    """Bytes read per second by a sum over 256 MiB of float32, which no cache of a usual machine holds."""
    copy: float
    """Bytes read and written per second by a copy of as much."""

    def __str__(self) -> str:
        return (
            f"ceilings on {torch.get_num_threads()} threads: "
            f"{self.flops / 1e9:.0f} GFLOP/s in a matrix product, {self.read / 1e9:.1f} GB/s read, "
            f"{self.copy / 1e9:.1f} GB/s copied"
        )


def ceilings() -> Ceilings:
    """Measure them, the best of several tries."""
    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)
    big = torch.ones(64 * 2**20)
    other = torch.empty_like(big)

    def best(run: Run) -> float:
        return alternate({"": run}, seconds=0.5)[""].best

    return Ceilings(
        flops=2 * 2048**3 / best(lambda: a @ b),
        read=big.nbytes / best(lambda: big.sum()),
        copy=2 * big.nbytes / best(lambda: other.copy_(big)),
    )
