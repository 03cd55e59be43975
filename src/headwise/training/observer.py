"""What a run tells while it goes: records, and the interface of those who listen."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Start:
    """A run is about to take its first step (or, resumed, its next)."""

    folder: Path
    step: int
    """Steps already done."""
    max_steps: int
    parameters: int
    device: str
    tokens_per_step: int
    train_tokens: int
    validation_tokens: int
    """0 without a validation split."""


@dataclass(frozen=True)
class Step:
    """One optimizer step is done."""

    step: int
    loss: float
    """Mean cross-entropy of the step's tokens before the update, in nats."""
    learning_rate: float
    gradient_norm: float
    """Norm of the whole gradient before clipping."""
    tokens: int
    """Tokens learned from since the run began."""
    tokens_per_second: float | None


@dataclass(frozen=True)
class Validation:
    """One evaluation on the fixed validation batches."""

    step: int
    loss: float
    train_loss: float | None
    """Mean loss of the steps since the evaluation before; None before the first step."""
    best: bool
    """Lower than all before."""


class Observer:
    """Hears from a running training. Does nothing; override what is of interest."""

    def on_run(self, variant: str, seed: int, number: int, total: int) -> None:
        """Called before each run of a comparison, finished ones included; `number` counts from 1."""

    def on_start(self, start: Start) -> None:
        """Called once, before the first step."""

    def on_step(self, step: Step) -> None:
        """Called after each step."""

    def on_validation(self, validation: Validation) -> None:
        """Called after each evaluation."""

    def on_message(self, text: str) -> None:
        """Called with a sentence the user should read."""

    def on_end(self) -> None:
        """Called once when the steps are over, however they ended."""


class Observers(Observer):
    """Passes on to several what one run tells."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def on_start(self, start: Start) -> None:
        for observer in self._observers:
            observer.on_start(start)

    def on_step(self, step: Step) -> None:
        for observer in self._observers:
            observer.on_step(step)

    def on_validation(self, validation: Validation) -> None:
        for observer in self._observers:
            observer.on_validation(validation)

    def on_message(self, text: str) -> None:
        for observer in self._observers:
            observer.on_message(text)

    def on_end(self) -> None:
        for observer in self._observers:
            observer.on_end()
