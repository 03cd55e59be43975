"""Work shared out among Python threads, each with one of PyTorch's for itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TypeVar

import torch

Found = TypeVar("Found")


def shares_of(total: int, most: int) -> list[slice]:
    """Cut so many things into a part for each of PyTorch's threads, at most so many parts, one at least."""
    number = max(1, min(torch.get_num_threads(), total, most))
    return [slice(*ends) for ends in pairwise(total * n // number for n in range(number + 1))]


def in_threads(run: Callable[[slice], Found], shares: Sequence[slice]) -> list[Found]:
    """Return what `run` gives for each share, each in a thread that has one of PyTorch's for itself."""
    threads, gradients = torch.get_num_threads(), torch.is_grad_enabled()

    def alone(share: slice) -> Found:
        torch.set_num_threads(1)  # of this thread, but also of those that begin later
        with torch.set_grad_enabled(gradients):
            return run(share)

    try:
        if len(shares) == 1:
            return [alone(shares[0])]
        with ThreadPoolExecutor(len(shares)) as pool:
            return list(pool.map(alone, shares))
    finally:
        torch.set_num_threads(threads)
