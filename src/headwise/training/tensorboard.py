"""Logging for TensorBoard."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from headwise.training.observer import Observer, Step, Validation


def check_tensorboard() -> None:
    """Ask before any work whether logging will be possible.

    Raises:
        ValueError: the package is not installed.
    """
    if importlib.util.find_spec("tensorboard") is None:
        raise ValueError(
            "tensorboard logging needs the tensorboard package; pip install 'headwise[tensorboard]', or "
            "leave it off (metrics.jsonl holds the same numbers)"
        )


class TensorBoardLog(Observer):
    """Writes losses, learning rate and gradient norm to event files in `folder`."""

    def __init__(self, folder: Path, step: int) -> None:
        """Begin after `step`; what was logged for later steps is hidden, since they will be done again."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder), purge_step=step + 1 if step else None)

    def on_step(self, step: Step) -> None:
        self._writer.add_scalar("loss/train", step.loss, step.step)
        self._writer.add_scalar("learning rate", step.learning_rate, step.step)
        self._writer.add_scalar("gradient norm", step.gradient_norm, step.step)

    def on_validation(self, validation: Validation) -> None:
        self._writer.add_scalar("loss/validation", validation.loss, validation.step)

    def on_end(self) -> None:
        self._writer.close()
