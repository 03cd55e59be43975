"""Training batches that depend on (seed, position) alone, and the fixed windows of an evaluation."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headwise.text.token_file import TokenFile

IGNORED = -100  # the target that torch.nn.functional.cross_entropy skips


class Batches:
    """Batches of windows drawn from a token file, without state: `at(position)` is always the same batch.

    An epoch cuts the tokens into windows of `block_size` that do not overlap, starting at a random phase, and
    visits them in random order; phase and order come from (seed, epoch). Every epoch has the same number of
    windows, `windows_per_epoch`, the number that fits at any phase (one, for a text too short for that).
    Epochs follow each other without a gap, so a batch may reach over the edge.

    A position counts the windows used so far. A run that stops after any batch goes on exactly where it was
    with that one number.
    """

    def __init__(self, tokens: TokenFile, block_size: int, batch_size: int, seed: int) -> None:
        """
        Raises:
            ValueError: a size below 1, a negative seed, or fewer than `block_size + 1` tokens.
        """
        _check_sizes(block_size, batch_size)
        if seed < 0:
            raise ValueError(f"seed must be 0 or more; got {seed}")
        if tokens.count < block_size + 1:
            raise ValueError(
                f"{tokens.path} has {tokens.count} tokens, but block_size {block_size} needs at least "
                f"{block_size + 1}; the largest block_size that fits is {tokens.count - 1}"
            )
        self.tokens = tokens
        self.block_size = block_size
        self.batch_size = batch_size
        self.seed = seed
        self.windows_per_epoch: int = max(1, (tokens.count - block_size) // block_size)
        self._epochs: dict[int, npt.NDArray[np.int64]] = {}

    def at(self, position: int) -> tuple[Tensor, Tensor]:
        """Return the batch that begins at window `position`: inputs and targets, int64, both `(B, T)`.

        Targets are the inputs one token later. The next batch is at `position + batch_size`.

        Raises:
            ValueError: `position` is negative.
        """
        if position < 0:
            raise ValueError(f"position counts windows from 0; got {position}")
        starts = np.empty(self.batch_size, dtype=np.int64)
        filled = 0
        while filled < self.batch_size:
            epoch, within = divmod(position + filled, self.windows_per_epoch)
            part = self._starts(epoch)[within : within + self.batch_size - filled]
            starts[filled : filled + len(part)] = part
            filled += len(part)
        rows = self.tokens.tokens[starts[:, None] + np.arange(self.block_size + 1)]  # (B, T + 1)
        windows = torch.from_numpy(rows.astype(np.int64))
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()

    def _starts(self, epoch: int) -> npt.NDArray[np.int64]:
        """First token of each window of an epoch, in the order of use, `(windows_per_epoch,)`."""
        if epoch not in self._epochs:
            # Raw bits and a stable sort: NumPy promises the same numbers in every version.
            source = np.random.PCG64(np.random.SeedSequence([self.seed, epoch]))
            room = min(self.block_size, self.tokens.count - self.block_size)
            phase = int(source.random_raw()) % room
            fitting = (self.tokens.count - 1 - phase) // self.block_size
            order = np.argsort(source.random_raw(fitting), kind="stable")[: self.windows_per_epoch]
            while len(self._epochs) >= 2:  # a batch reaches over one edge, rarely more
                self._epochs.pop(next(iter(self._epochs)))
            self._epochs[epoch] = phase + order.astype(np.int64) * self.block_size
        return self._epochs[epoch]


def sequential_windows(
    tokens: TokenFile, block_size: int, batch_size: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Walk through a token file once, in order: inputs and targets, int64, `(b, T)` with `b <= batch_size`.

    Every token except the first is a target exactly once. The last window is filled up with id 0 as input
    and -100 as target, which cross-entropy skips.

    Raises:
        ValueError: a size below 1, or fewer than 2 tokens.
    """
    _check_sizes(block_size, batch_size)
    if tokens.count < 2:
        raise ValueError(f"{tokens.path} has {tokens.count} tokens; nothing to predict with fewer than 2")
    return _windows(tokens, block_size, batch_size)


def _windows(tokens: TokenFile, block_size: int, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
    last = tokens.count - 1
    for start in range(0, last, block_size * batch_size):
        stop = min(start + block_size * batch_size, last)
        ids = torch.from_numpy(tokens.tokens[start : stop + 1].astype(np.int64))
        rows = -(-(stop - start) // block_size)
        x = torch.zeros(rows * block_size, dtype=torch.int64)
        y = torch.full((rows * block_size,), IGNORED, dtype=torch.int64)
        x[: stop - start] = ids[:-1]
        y[: stop - start] = ids[1:]
        yield x.view(rows, block_size), y.view(rows, block_size)  # (b, T)


def _check_sizes(block_size: int, batch_size: int) -> None:
    for name, value in (("block_size", block_size), ("batch_size", batch_size)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1; got {value}")
