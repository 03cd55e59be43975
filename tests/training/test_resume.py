"""Exact resume: however a run is cut into pieces, it ends as if it had never stopped."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headwise.text import TokenFile, Tokenizer

# 20 steps of 4 windows; the usual text has about 250 windows in an epoch, so these runs use a short one.
LONG = {"max_steps": 20, "dropout": 0.3, "early_stop_patience": 50}


@pytest.fixture
def short_text(tmp_path: Path) -> Path:
    """About 30 windows, so that 80 windows cross two epoch edges, in the middle of a batch."""
    path = tmp_path / "short.txt"
    path.write_text("나는 학교에 버스로 갔다. the quick brown fox jumps over it.\n" * 6, encoding="utf-8")
    return path


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
@pytest.mark.parametrize(("eval_every", "checkpoint_every"), [(4, 3), (3, 5), (50, 5), (1, 50)])
def test_pieces_make_the_whole_bit_for_bit(
    new_run: Callable[[str], Any], short_text: Path, optimizer: str, eval_every: int, checkpoint_every: int
) -> None:
    options = LONG | {
        "data": str(short_text),
        "optimizer": optimizer,
        "grad_accumulation": 2,
        "batch_size": 2,
    }
    options |= {"eval_every": eval_every, "checkpoint_every": checkpoint_every, "eval_batches": 3}
    straight, halves, quarters = new_run("straight"), new_run("halves"), new_run("quarters")
    result = straight.train(**options)
    windows = (TokenFile(straight.folder / "tokens" / "train.tokens").count - 8) // 8
    assert straight.progress["position"] == 80 > 2 * windows
    assert 4 * 7 % windows  # an edge lies within a step

    halves.crash_after(10, **options)
    assert halves.train(resume=True, **options).val_loss == result.val_loss
    assert halves.equals(straight)

    quarters.crash_after(5, **options)
    quarters.crash_after(10, resume=True, **options)
    quarters.crash_after(15, resume=True, **options)
    assert quarters.train(resume=True, **options).val_loss == result.val_loss
    assert quarters.equals(straight)


def test_a_crash_after_every_single_step_changes_nothing(
    new_run: Callable[[str], Any], short_text: Path
) -> None:
    options = {
        "data": str(short_text),
        "dropout": 0.3,
        "max_steps": 6,
        "checkpoint_every": 1,
        "eval_every": 2,
    }
    straight, pieces = new_run("straight"), new_run("pieces")
    straight.train(**options)
    for step in range(1, 6):
        pieces.crash_after(step, resume=step > 1, **options)
    pieces.train(resume=True, **options)
    assert pieces.equals(straight)


KILLED = """
import os, signal, sys
from headwise.training import Observer, RunConfig, train

class Killed(Observer):
    def on_step(self, step):
        if step.step == {step}:
            os.kill(os.getpid(), signal.SIGKILL)

train(RunConfig.from_toml({config!r}), {out!r}, resume={resume}, observer=Killed())
"""


@pytest.mark.skipif(os.name == "nt", reason="SIGKILL is a POSIX thing")
def test_kill_9_and_resume_is_the_run_without_it(
    new_run: Callable[[str], Any], short_text: Path, tmp_path: Path
) -> None:
    """Checkpoints at 4, 8, 12, 16, evaluations at 6, 12, 18; processes killed in steps 10 and 17."""
    options = LONG | {"data": str(short_text), "eval_every": 6, "checkpoint_every": 4}
    straight, killed = new_run("straight"), new_run("killed")
    straight.train(**options)
    config = tmp_path / "c.toml"
    config.write_text(killed.config(**options).to_toml(), encoding="utf-8")
    for resume, step in ((False, 10), (True, 17)):
        code = KILLED.format(step=step, config=str(config), out=str(killed.folder), resume=resume)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == -signal.SIGKILL, done.stderr
    killed.train(resume=True, **options)
    assert killed.equals(straight)


@pytest.mark.skipif(os.name == "nt", reason="SIGKILL is a POSIX thing")
def test_kill_9_at_any_moment_leaves_a_run_that_resumes(
    new_run: Callable[[str], Any], short_text: Path, tmp_path: Path
) -> None:
    """Killed from outside while it does nothing but evaluate and save."""
    options = {"data": str(short_text), "max_steps": 4000, "eval_every": 1, "checkpoint_every": 1}
    run = new_run("run")
    config = tmp_path / "c.toml"
    config.write_text(run.config(**options).to_toml(), encoding="utf-8")
    code = KILLED.format(step=-1, config=str(config), out=str(run.folder), resume=False)
    process = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + 60
    while not (run.folder / "checkpoints" / "step-000003").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    process.wait()
    listener = run.Listener()
    run.train(
        resume=True, observer=listener, **(options | {"max_steps": int(run.checkpoints[-1].name[5:]) + 2})
    )
    assert listener.starts[0].step >= 3
    assert not [text for text in listener.messages if "damaged" in text]
    assert [r["step"] for r in run.metrics if r["event"] == "step"] == list(
        range(1, listener.steps[-1].step + 1)
    )
    leftovers = [path for path in run.folder.rglob("*") if path.name.endswith(".tmp")]
    assert leftovers == []


def test_a_damaged_newest_checkpoint_costs_only_the_steps_since_the_one_before(
    new_run: Callable[[str], Any],
) -> None:
    straight, run = new_run("straight"), new_run("run")
    straight.train(dropout=0.3)
    run.crash_after(5, dropout=0.3)
    assert run.checkpoints[-1].name == "step-000004"
    path = run.checkpoints[-1] / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    listener = run.Listener()
    run.train(resume=True, dropout=0.3, observer=listener)
    assert listener.messages[0].startswith("checkpoint step-000004: model.safetensors does not match")
    assert listener.starts[0].step == 3
    assert run.equals(straight)


def test_the_model_folder_is_put_right_when_the_process_was_lost_between_checkpoint_and_model(
    new_run: Callable[[str], Any],
) -> None:
    straight, run = new_run("straight"), new_run("run")
    straight.train()
    run.crash_after(3)  # step 2 was evaluated as the best, and saved
    shutil.copy(run.checkpoints[0] / "model.safetensors", run.folder / "model.safetensors")
    run.train(resume=True)
    assert run.equals(straight)


def test_a_run_stopped_before_its_first_checkpoint_starts_again(run: Any) -> None:
    run.crash_after(1)
    shutil.rmtree(run.folder / "checkpoints")
    listener = run.Listener()
    assert run.train(resume=True, observer=listener).steps == 6
    assert listener.messages == ["there is no checkpoint yet; starting from the first step"]
    assert [r["step"] for r in run.metrics if r["event"] == "step"] == [1, 2, 3, 4, 5, 6]


def test_a_finished_run_is_only_evaluated_again(run: Any) -> None:
    first = run.train()
    log = (run.folder / "metrics.jsonl").read_bytes()
    listener = run.Listener()
    again = run.train(resume=True, observer=listener)
    assert again == first
    assert listener.steps == listener.validations == []
    assert (run.folder / "metrics.jsonl").read_bytes() == log


def test_a_finished_run_can_be_extended(new_run: Callable[[str], Any]) -> None:
    """With a constant rate the longer run is the one that was planned longer from the start."""
    straight, run = new_run("straight"), new_run("run")
    options = {"schedule": "constant", "warmup_steps": 0, "dropout": 0.2}
    straight.train(max_steps=10, **options)
    run.train(max_steps=6, **options)
    listener = run.Listener()
    run.train(max_steps=10, resume=True, observer=listener, **options)
    assert listener.messages == ["changed: max_steps from 6 to 10"]
    assert run.equals(straight)
    with pytest.raises(ValueError, match="max_steps=8 is less than the 10 steps this run has done"):
        run.train(max_steps=8, resume=True, **options)


@pytest.mark.parametrize(
    "changes",
    [
        {"learning_rate": 0.1},
        {"n_head": 4},
        {"seed": 9},
        {"batch_size": 8},
        {"tokenizer": "bpe"},
        {"validation_fraction": 0.2},
        {"eval_batches": 1},
        {"preset": "gpt2", "dropout": 0.1},
    ],
)
def test_what_decides_the_run_cannot_be_changed(run: Any, changes: dict[str, Any]) -> None:
    run.crash_after(4)
    before = run.weights
    with pytest.raises(ValueError, match="a resumed run cannot change") as caught:
        run.train(resume=True, **changes)
    for name in changes.keys() - {"preset"}:
        assert f"{name} from" in str(caught.value)
    assert run.weights.keys() == before.keys()
    run.train(resume=True)


def test_how_a_run_is_watched_and_kept_can_be_changed(run: Any) -> None:
    run.crash_after(4)
    listener = run.Listener()
    run.train(resume=True, eval_every=1, checkpoint_every=1, keep_checkpoints=5, observer=listener)
    assert sorted(listener.messages) == [
        "changed: checkpoint_every from 3 to 1",
        "changed: eval_every from 2 to 1",
        "changed: keep_checkpoints from 2 to 5",
    ]
    assert [v.step for v in listener.validations] == [4, 5, 6]


def test_resuming_nothing_is_an_error(run: Any) -> None:
    with pytest.raises(FileNotFoundError, match=r"no run to resume in .* \(it has no config.toml\)"):
        run.train(resume=True)
    assert not run.folder.exists()


def test_another_text_is_refused(run: Any, tmp_path: Path) -> None:
    text = tmp_path / "t.txt"
    text.write_text("abcdefghij" * 30)
    run.crash_after(4, data=str(text))
    text.write_text("abcdefghij" * 31)
    with pytest.raises(ValueError, match="has changed since the run in .* began"):
        run.train(resume=True, data=str(text))
    text.write_text("abcdefghij" * 30)
    assert run.train(resume=True, data=str(text)).steps == 6


def test_a_text_that_is_gone_is_told_and_the_runs_own_tokens_are_used(run: Any, tmp_path: Path) -> None:
    text = tmp_path / "t.txt"
    text.write_text("abcdefghij" * 30)
    run.crash_after(4, data=str(text))
    text.unlink()
    listener = run.Listener()
    assert run.train(resume=True, data=str(text), observer=listener).steps == 6
    assert any("can no longer be read" in message for message in listener.messages)


def test_another_tokenizer_is_refused(run: Any) -> None:
    run.crash_after(4)
    path = run.folder / "tokens" / "tokenizer.json"
    original = path.read_bytes()
    Tokenizer.train("char", [Tokenizer.from_file(path).decode(range(10)) + "XYZ"]).save(path)
    with pytest.raises(ValueError, match="another tokenizer"):
        run.train(resume=True)
    path.write_bytes(original)
    assert run.train(resume=True).steps == 6


def test_exchanged_tokens_are_refused(run: Any) -> None:
    run.crash_after(4)
    path = run.folder / "tokens" / "train.tokens"
    data = bytearray(path.read_bytes())
    data[64:66], data[66:68] = data[66:68], data[64:66]  # two tokens change places
    path.write_bytes(data)
    with pytest.raises(ValueError, match="cannot resume: training tokens changed"):
        run.train(resume=True)


def test_time_goes_on_counting(run: Any) -> None:
    run.crash_after(4)
    before = json.loads((run.checkpoints[-1] / "state.json").read_text())["progress"]["seconds"]
    assert run.train(resume=True).seconds > before > 0
