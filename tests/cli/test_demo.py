"""The verb `headwise demo`: what it prints, its exit codes. The tour itself is tested in tests/report."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headwise.report.demo import DemoSettings


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, DemoSettings]]:
    """Stand in for the tour, which takes minutes, and note what it was called with."""
    made: list[tuple[Path, DemoSettings]] = []

    def run_demo(out: Path, settings: DemoSettings, observer: Any) -> Path:
        made.append((out, settings))
        observer.on_message("1 of 3: training a GPT")
        return out / "index.html"

    monkeypatch.setattr("headwise.report.demo.run_demo", run_demo)
    return made


def test_it_says_where_the_report_is(headwise: Callable, calls: list, tmp_path: Path) -> None:
    done = headwise("demo", "--out", tmp_path / "r", "--seeds", "2", "--tokenizer", "bpe", "--data", "나.txt")
    assert done.code == 0
    assert str(tmp_path / "r" / "index.html") in done.out
    assert "1 of 3" in done.err
    assert calls == [(tmp_path / "r", DemoSettings("나.txt", "bpe", 1000, 300, 2))]


def test_json_is_the_last_line_and_quiet_prints_nothing_else(
    headwise: Callable, calls: list, tmp_path: Path
) -> None:
    done = headwise("demo", "--out", tmp_path, "--json", "-q")
    assert done.err == ""
    assert json.loads(done.out) == {"report": str(tmp_path / "index.html"), "model": str(tmp_path / "model")}


def test_ctrl_c_exits_with_130_and_says_how_to_go_on(
    headwise: Callable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def run_demo(*arguments: Any) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr("headwise.report.demo.run_demo", run_demo)
    done = headwise("demo", "--out", tmp_path)
    assert done.code == 130
    assert "the same command goes on" in done.err


def test_a_mistake_is_one_line(headwise: Callable, tmp_path: Path) -> None:
    done = headwise("demo", "--out", tmp_path / "r", "--seeds", "0")
    assert (done.code, done.out) == (2, "")
    assert done.err == "headwise: seeds must be at least 1, got 0\n"
