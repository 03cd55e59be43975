"""What TensorBoard is told, read back with TensorBoard's own reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def logged(folder: Path) -> dict[str, dict[int, float]]:
    """Every curve by name: step → value."""
    events = EventAccumulator(str(folder))
    events.Reload()
    return {
        name: {event.step: event.value for event in events.Scalars(name)} for name in events.Tags()["scalars"]
    }


def recorded(run: Any, event: str, value: str) -> dict[int, float]:
    return {r["step"]: pytest.approx(r[value], rel=1e-6) for r in run.metrics if r["event"] == event}


def test_the_log_holds_the_numbers_of_the_metrics(run: Any) -> None:
    run.train(tensorboard=True)
    assert logged(run.folder / "tensorboard") == {
        "loss/train": recorded(run, "step", "loss"),
        "learning rate": recorded(run, "step", "learning_rate"),
        "gradient norm": recorded(run, "step", "gradient_norm"),
        "loss/validation": recorded(run, "validation", "loss"),
    }


def test_steps_that_were_lost_are_not_shown_twice(run: Any) -> None:
    run.crash_after(5, tensorboard=True)  # the newest checkpoint is that of step 4
    run.train(resume=True, tensorboard=True)
    curves = logged(run.folder / "tensorboard")
    assert curves["loss/train"] == recorded(run, "step", "loss")
    assert curves["loss/validation"] == recorded(run, "validation", "loss")
