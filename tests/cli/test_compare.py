"""headwise compare: a table, a plot, samples side by side, and an object for scripts."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headwise.training import Observer

SMALL = ["--d-model", "16", "--block-size", "8", "--batch-size", "4", "--max-steps", "6", "--eval-every", "3"]
SMALL += ["--device", "cpu"]


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A text file; the test runs in its folder."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "글.txt"
    path.write_text("나는 학교에 버스로 갔다. the quick brown fox. " * 30, encoding="utf-8")
    return path


def test_rungs_are_compared_in_words_numbers_and_a_picture(headwise: Callable, text: Path) -> None:
    done = headwise(
        "compare", "--rungs", "single-head,multi-head", "--data", text, *SMALL, "--seeds", "2", "--json"
    )
    assert done.code == 0, done.err
    result = json.loads(done.out.splitlines()[-1])
    assert [variant["name"] for variant in result["variants"]] == ["single-head", "multi-head"]
    assert [len(variant["losses"]) for variant in result["variants"]] == [2, 2]
    table = done.out.splitlines()
    assert "95 % interval" in table[0]
    assert table[1].split()[:2] == ["single-head", f"{result['variants'][0]['mean_loss']:.4f}"]
    assert result["variants"][1]["conclusion"] in done.out
    heading = next(line for line in table if line.split() == ["single-head", "multi-head"])  # side by side
    assert table.index(heading) > 2
    out = Path("runs/compare-single-head-multi-head")
    assert (out / "comparison.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((out / "comparison.json").read_text(encoding="utf-8")) == result
    assert "run 4 of 4: multi-head, seed 1" in done.err


def test_the_same_command_again_runs_nothing(headwise: Callable, text: Path) -> None:
    command = ["compare", "--vary", "n_head=1,2", "--data", text, *SMALL, "--seeds", "1", "--json"]
    first = headwise(*command)
    assert first.code == 0, first.err
    again = headwise(*command)
    assert again.out == first.out
    assert "step 3" in first.err
    assert "step 3" not in again.err
    assert "one seed cannot tell" in again.out


def test_quiet_prints_nothing_but_the_json(headwise: Callable, text: Path) -> None:
    command = ["compare", "--vary", "n-head=1,2", "--data", text, *SMALL, "--seeds", "1", "-q"]
    done = headwise(*command, "--json")
    assert done.err == ""
    assert len(done.out.splitlines()) == 1
    done = headwise(*command)
    assert (done.code, done.out, done.err) == (0, "", "")


def test_more_than_three_samples_are_shown_in_rows(headwise: Callable, text: Path) -> None:
    done = headwise("compare", "--vary", "n_head=1,2,4,8", "--data", text, *SMALL, "--seeds", "1")
    assert done.code == 0, done.err
    lines = [line.split() for line in done.out.splitlines()]
    assert ["n_head=1", "n_head=2", "n_head=4"] in lines
    assert ["n_head=8"] in lines


def test_ctrl_c_exits_with_130_and_the_same_command_goes_on(
    headwise: Callable, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Impatient(Observer):
        steps = 0

        def on_step(self, step: Any) -> None:
            self.steps += 1
            if self.steps == 9:  # in the second run
                os.kill(os.getpid(), signal.SIGINT)

    command = ["compare", "--vary", "n_head=1,2", "--data", text, *SMALL, "--seeds", "1"]
    with monkeypatch.context() as patch:
        patch.setattr("headwise.cli.progress.observer_for", lambda _: Impatient())
        done = headwise(*command, "-q")
    assert done.code == 130
    out = Path("runs/compare-n_head-1-2")
    assert done.err == (
        f"headwise: stopped; {out} keeps what is done, and the same command goes on from there\n"
    )
    done = headwise(*command)
    assert done.code == 0
    assert "from step 3" in done.err  # the second run; the first is not run again
    assert done.err.count("parameters on cpu") == 1


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ([], "either --rungs a,b or --vary"),
        (["--rungs", "gpt,gpt2", "--vary", "n_head=1,2"], "either --rungs a,b or --vary"),
        (["--vary", "n_head"], "--vary wants field=value,value, got 'n_head'"),
        (["--vary", "n_head=2"], "at least two different values"),
        (["--vary", "tokenizer=char,bpe"], "do not compare"),
        (["--vary", "n_head=3,5"], "n_head=3"),
        (["--vary", "n_head=1,2", "--n-head", "4"], "n_head is what varies"),
        (["--rungs", "gpt,gtp"], "preset must be one of"),
        (["--rungs", "gpt,gpt2", "--seeds", "0"], "seeds must be at least 1"),
    ],
)
def test_a_mistake_is_named_before_any_work(
    headwise: Callable, text: Path, arguments: list[str], wanted: str
) -> None:
    done = headwise("compare", "--data", text, *SMALL, *arguments)
    assert done.code == 2
    assert wanted in done.err
    assert not Path("runs").exists()
