"""Tiny runs: a text with structure, a model of a few thousand weights, and a look at what a run left."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from headwise.training import Observer, RunConfig, TrainResult, read_metrics, train
from headwise.training.observer import Start, Step, Validation

WORDS = ["나는", "학교에", "버스로", "갔다", "the", "quick", "brown", "fox", "jumps"]

TINY = {
    "n_layer": 1,
    "n_head": 2,
    "d_model": 16,
    "block_size": 8,
    "batch_size": 4,
    "max_steps": 6,
    "eval_every": 2,
    "eval_batches": 2,
    "checkpoint_every": 3,
    "device": "cpu",
}


class Crash(BaseException):
    """Ends a run as a lost process would: nothing gets a chance to save."""


class Listener(Observer):
    """Keeps what it hears; `after` holds something to do after a step, by its number."""

    def __init__(self, after: dict[int, Callable[[], None]] | None = None) -> None:
        self.after = after or {}
        self.starts: list[Start] = []
        self.steps: list[Step] = []
        self.validations: list[Validation] = []
        self.messages: list[str] = []
        self.ends = 0

    def on_start(self, start: Start) -> None:
        self.starts.append(start)

    def on_step(self, step: Step) -> None:
        self.steps.append(step)
        self.after.get(step.step, lambda: None)()

    def on_validation(self, validation: Validation) -> None:
        self.validations.append(validation)

    def on_message(self, text: str) -> None:
        self.messages.append(text)

    def on_end(self) -> None:
        self.ends += 1


class Run:
    """A run folder, and how to train in it."""

    Crash = Crash
    Listener = Listener

    def __init__(self, folder: Path, config: Callable[..., RunConfig]) -> None:
        self.folder = folder
        self.config = config

    def train(self, *, resume: bool = False, observer: Observer | None = None, **changes: Any) -> TrainResult:
        """Train with the tiny configuration and `changes` to it."""
        return train(self.config(**changes), self.folder, resume=resume, observer=observer)

    def crash_after(self, step: int, *, resume: bool = False, **changes: Any) -> None:
        """Train until the process is lost after `step`, before that step is evaluated or saved."""

        def crash() -> None:
            raise Crash

        with pytest.raises(Crash):
            self.train(resume=resume, observer=Listener({step: crash}), **changes)

    @property
    def checkpoints(self) -> list[Path]:
        """The whole checkpoints, oldest first."""
        return sorted(path for path in (self.folder / "checkpoints").iterdir() if path.name[5:].isdigit())

    @property
    def weights(self) -> dict[str, Tensor]:
        """Model and optimizer in the newest checkpoint."""
        newest = self.checkpoints[-1]
        return load_file(newest / "model.safetensors") | load_file(newest / "optimizer.safetensors")

    @property
    def progress(self) -> dict[str, Any]:
        """What the newest checkpoint knows beside them, without what depends on the clock."""
        progress: dict[str, Any] = json.loads((self.checkpoints[-1] / "state.json").read_text())["progress"]
        del progress["seconds"]
        return progress

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The log without what depends on the clock."""
        return [{k: v for k, v in r.items() if k != "tokens_per_second"} for r in read_metrics(self.folder)]

    def equals(self, other: Run) -> bool:
        """The same log, weights, optimizer, random numbers and best model, to the last bit."""
        best = [load_file(run.folder / "model.safetensors") for run in (self, other)]
        return (
            self.metrics == other.metrics
            and self.progress == other.progress
            and _same(self.weights, other.weights)
            and _same(*best)
        )


def _same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Words in a fixed jumbled order, English and Korean: about 2,300 characters."""
    path = tmp_path_factory.mktemp("text") / "글.txt"
    words = (WORDS[(i * i + i // 7) % len(WORDS)] for i in range(500))
    path.write_text(" ".join(words) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def tiny(text: Path) -> Callable[..., RunConfig]:
    """Make the configuration of a run that takes a fraction of a second."""

    def make(**changes: Any) -> RunConfig:
        return RunConfig.from_toml(None, {"data": str(text), **TINY, **changes})

    return make


@pytest.fixture
def new_run(tiny: Callable[..., RunConfig], tmp_path: Path) -> Callable[[str], Run]:
    """Name a folder for a run."""
    return lambda name="run": Run(tmp_path / name, tiny)


@pytest.fixture
def run(new_run: Callable[[], Run]) -> Run:
    return new_run()
