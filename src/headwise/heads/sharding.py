"""Work shared out among the processes of `torchrun`, with the results of one process, bit for bit.

Work is cut into units in a way that does not depend on how many processes there are; each unit is done by one
of them, and what it gives is put in its place before anything is summed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch import distributed as dist


@dataclass(frozen=True)
class Shard:
    """Which of several processes this is."""

    rank: int = 0
    world: int = 1

    def takes(self, unit: int) -> bool:
        """Whether a unit of work, by its number, is this process's."""
        return unit % self.world == self.rank


def this_shard() -> Shard:
    """Return which process this is: the only one, unless torch.distributed is running."""
    if dist.is_available() and dist.is_initialized():
        return Shard(dist.get_rank(), dist.get_world_size())
    return Shard()


def gathered(results: Tensor) -> Tensor:
    """Return the results of all processes in one tensor, on each of them.

    results: in float64, zeros wherever another process did the work; adding zeros changes no number.
    """
    if this_shard().world == 1:
        return results
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    everything = results.to(device, copy=True)
    dist.all_reduce(everything)
    return everything.to(results.device)


@contextmanager
def processes_of_torchrun() -> Iterator[Shard]:
    """Join the processes that `torchrun` started, and part from them afterwards.

    Nothing happens outside of `torchrun`, or where torch.distributed is running already.
    """
    alone = int(os.environ.get("WORLD_SIZE", "1")) == 1
    if alone or not dist.is_available() or dist.is_initialized():
        yield this_shard()
        return
    dist.init_process_group("gloo")
    try:
        yield this_shard()
    finally:
        dist.destroy_process_group()


def wait_for_all() -> None:
    """Return when every process has come here."""
    if this_shard().world > 1:
        gathered(torch.zeros(1, dtype=torch.float64))
