"""The log: whole lines, no line twice, and a rate that is tokens over seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwise.training.metrics import MetricsLog, read_metrics, tokens_per_second
from headwise.training.observer import Step, Validation


def step(number: int) -> Step:
    return Step(number, 2.5, 1e-3, 0.5, number * 10, 100.0)


def test_a_rate_is_tokens_over_seconds_and_unknown_without_time() -> None:
    assert tokens_per_second(999_424, 48.30) == pytest.approx(20_692, abs=1)
    assert tokens_per_second(10, 0.0) is None


def test_each_record_is_on_disk_at_once(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    log.on_step(step(1))
    log.on_validation(Validation(1, 2.25, None, True))
    records = read_metrics(tmp_path)
    log.on_end()
    assert records[0] == {
        "event": "step",
        "step": 1,
        "loss": 2.5,
        "learning_rate": 1e-3,
        "gradient_norm": 0.5,
        "tokens": 10,
        "tokens_per_second": 100.0,
    }
    assert records[1] == {"event": "validation", "step": 1, "loss": 2.25, "train_loss": None, "best": True}


def test_going_on_drops_what_will_be_done_again(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    for number in range(1, 6):
        log.on_step(step(number))
    log.on_end()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"event": "step", "st')  # the process was lost here
    log = MetricsLog(tmp_path, after=3)
    log.on_step(step(4))
    log.on_end()
    assert [record["step"] for record in read_metrics(tmp_path)] == [1, 2, 3, 4]


def test_beginning_leaves_nothing_of_before(tmp_path: Path) -> None:
    for _ in range(2):
        log = MetricsLog(tmp_path)
        log.on_step(step(1))
        log.on_end()
    assert len(read_metrics(tmp_path)) == 1


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step\n{"step": 3}\n')
    with pytest.raises(ValueError, match="damaged in line 2"):
        read_metrics(tmp_path)
