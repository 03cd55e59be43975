"""headwise uptrain."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from headwise.cli.subjects import open_data
from headwise.hub.surgery import head_counts
from headwise.model import load_model
from headwise.training import RunConfig, train

LETTERS = "abcdefghijklmnopqrstuvwxyz 가나다라"
QUICK = ["--tokens", "640", "--device", "cpu", "--json", "-q"]


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    text = folder / "글.txt"
    text.write_text("".join(LETTERS[(i * i) % 31] for i in range(2000)), encoding="utf-8")
    options = {"n_layer": 1, "d_model": 16, "block_size": 8, "batch_size": 4, "device": "cpu"}
    options |= {"data": str(text), "max_steps": 20, "eval_every": 20}
    train(RunConfig.from_toml(None, options), folder / "parent")
    return folder / "parent"


@pytest.fixture
def child(headwise: Callable, parent: Path, tmp_path: Path) -> Path:
    options = ["--kv-heads", "1", "--method", "mean", "--tokens", "60", "--held-out", "40", "-o"]
    assert headwise("group", parent, *options, tmp_path / "child").code == 0
    return tmp_path / "child"


def test_what_group_made_is_uptrained_with_nothing_more_to_say(
    headwise: Callable, child: Path, parent: Path, tmp_path: Path
) -> None:
    """Parent, text and number of tokens are found."""
    done = headwise("uptrain", child, "-o", tmp_path / "up", "--device", "cpu", "--control", "both")
    assert done.code == 0, done.err
    rows = [line.split("  ")[0] for line in done.out.splitlines()]
    wanted = ["parent", "child before", "child after", "control: parent trained on"]
    assert [row for row in rows if row in wanted] == wanted
    assert "control: child's shape from random weights" in done.out
    assert "5.00 %" in done.out
    assert "are back" in done.out
    assert "run 3 of 3: from scratch" in done.err
    assert head_counts(load_model(tmp_path / "up")[0]) == [(4, 1)]
    assert head_counts(load_model(tmp_path / "up" / "control-scratch")[0]) == [(4, 1)]
    again = headwise("uptrain", child, "-o", tmp_path / "up", "--resume", "--json", "-q")
    told = json.loads(again.out)
    assert told["share"] == 0.05
    assert set(told["controls"]) == {"parent", "scratch"}


def test_a_plan_of_few_steps_is_warned_of_and_a_start_that_was_best_is_said_to_be_what_was_written(
    headwise: Callable, child: Path, tmp_path: Path
) -> None:
    rates = ["--learning-rate", "3", "--matrix-learning-rate", "3"]
    few = headwise("uptrain", child, "-o", tmp_path / "few", "--tokens", "96", "--device", "cpu", *rates)
    assert few.code == 0, few.err
    assert few.err.startswith("steps of 32 tokens, of which there are 3: fewer than 50 seldom help")
    assert "give 1,600 tokens or more (--tokens)" in few.err
    assert "it did not help: the start was better than all 3 evaluations" in few.out
    assert "are back" not in few.out
    rows = {
        line.split("  ")[0]: line.split()[2:] for line in few.out.splitlines() if line.startswith("child")
    }
    assert rows["child before"] == rows["child after"]  # and no tokens beside it
    made, start = (load_model(folder)[0].state_dict() for folder in (tmp_path / "few", child))
    assert all(made[name].equal(start[name]) for name in start)
    enough = headwise("uptrain", child, "-o", tmp_path / "up", "--tokens", "1600", "--device", "cpu")
    assert "seldom help" not in enough.err
    assert "did not help" not in enough.out
    assert headwise("uptrain", child, "-o", tmp_path / "q", *QUICK).err == ""


def test_the_text_that_the_parent_held_out_is_found_through_what_was_made_of_it(
    headwise: Callable, child: Path, parent: Path, tmp_path: Path
) -> None:
    assert headwise("uptrain", child, "-o", tmp_path / "up", *QUICK).code == 0
    texts = ["".join(open_data(str(folder), None).chunks()) for folder in (parent, child, tmp_path / "up")]
    assert texts[0] == texts[1] == texts[2]
    assert len(texts[0]) == 200


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--tokens", "0"], "tokens: "),
        (["--share", "0"], "share: "),
        (["--share", "1.5"], "share: "),
        (["--share", "0.1", "--tokens", "5"], "either share or tokens"),
        (["--parent", "{child}"], "is both child and parent"),
        (["--parent", "{child}/nothing"], "nothing"),
        (["--data", "{child}/nothing.txt"], "no file"),
        (["--kl", "-1"], "kl: "),
        (["--length", "99"], "length must be at most 8"),
    ],
)
def test_mistakes_end_in_one_line_and_leave_nothing(
    headwise: Callable, child: Path, tmp_path: Path, arguments: list[str], says: str
) -> None:
    given = [part.format(child=child) for part in arguments]
    done = headwise("uptrain", child, "-o", tmp_path / "up", "--device", "cpu", *given)
    assert done.code == 2
    assert says in done.err
    assert done.err.count("\n") == 1
    assert not (tmp_path / "up").exists()


def test_nothing_is_written_over_and_resume_changes_nothing(
    headwise: Callable, child: Path, tmp_path: Path
) -> None:
    out = tmp_path / "up"
    done = headwise("uptrain", child, "-o", out, "--resume")
    assert (done.code, out.exists()) == (2, False)
    assert "no uptraining to resume" in done.err
    assert headwise("uptrain", child, "-o", out, *QUICK).code == 0
    assert "go on with it with --resume" in headwise("uptrain", child, "-o", out).err
    done = headwise("uptrain", child, "-o", out, "--resume", "--kl", "0.5")
    assert done.code == 2
    assert "cannot change kl from 1.0 to 0.5" in done.err
