"""Measuring side by side: alternating timings, peak memory, the ceilings of the machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

Run = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """Seconds of one contestant."""

    median: float
    best: float
    spread: float
    """Half the distance between the quartiles, as a share of the median."""
    runs: int

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def alternate(contestants: dict[str, Run], *, seconds: float, least: int = 5) -> dict[str, Timing]:
    """Time all contestants in turn, round after round, so that a slow minute is slow for all of them.

    Each round starts with another one, so that none always finds the caches as the same one left them.
    seconds: how long to go on, once each has run at least so many times.
    """
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for run in contestants.values():
        run()
    end = time.perf_counter() + seconds
    rounds = 0
    while rounds < least or time.perf_counter() < end:
        turn = rounds % len(contestants)
        for name, run in (*list(contestants.items())[turn:], *list(contestants.items())[:turn]):
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
        rounds += 1
    return {name: _timing(each) for name, each in times.items()}


def _timing(times: list[float]) -> Timing:
    low, median, high = statistics.quantiles(times, n=4)
    return Timing(median, min(times), (high - low) / 2 / median, len(times))


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
