"""headwise train: options from the configuration, results for people and for scripts."""

from __future__ import annotations

import inspect
import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headwise.cli.train import train
from headwise.model import load_model
from headwise.training import Observer, RunConfig
from headwise.training.config_file import fields
from headwise.training.run_folder import CHANGEABLE

SMALL = ["--n-layer", "1", "--n-head", "2", "--d-model", "16", "--block-size", "8", "--batch-size", "4"]
SMALL += ["--max-steps", "6", "--eval-every", "3", "--device", "cpu"]


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A text file; the test runs in its folder."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "글.txt"
    path.write_text("나는 학교에 버스로 갔다. the quick brown fox. " * 30, encoding="utf-8")
    return path


def last_object(out: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(out.splitlines()[-1])
    return value


def test_help_documents_every_field_with_its_own_description(headwise: Callable) -> None:
    done = headwise("train", "--help")
    assert done.code == 0
    shown = re.sub(r"[│╭╮╰╯─\s]+", "", done.out)
    for name, (_, info) in fields().items():
        assert f"--{name.replace('_', '-')}" in done.out
        assert name in inspect.signature(train).parameters
        # A wide help splits descriptions over lines among other columns; their words must still all be there.
        for word in (info.description or "").split():
            assert word in shown, (name, word)


def test_the_fixed_options_are_there() -> None:
    fixed = (
        "data tokenizer preset n-layer n-head n-kv-head d-model block-size batch-size dropout learning-rate "
    )
    fixed += "max-steps eval-every checkpoint-every seed out resume config json"
    parameters = inspect.signature(train).parameters
    for option in fixed.split():
        assert option.replace("-", "_") in parameters or option == "json"


def test_the_help_names_the_fields_that_may_change_on_resume() -> None:
    described = (inspect.getdoc(train) or "").partition("only some fields may change:")[2]
    described = re.sub(r"\(.*?\)", "", described, flags=re.DOTALL)
    assert sorted(re.findall(r"\w+", described)) == sorted(CHANGEABLE)


def test_a_run_ends_with_one_json_object(headwise: Callable, text: Path) -> None:
    done = headwise("train", "--data", text, *SMALL, "--out", "run", "--json")
    assert done.code == 0, done.err
    result = last_object(done.out)
    model, _ = load_model("run")
    assert result["parameters"] == model.num_parameters()
    assert result["val_loss"] == json.loads(Path("run/result.json").read_text())["val_loss"]
    assert result["tokens_per_second"] == pytest.approx(result["tokens"] / result["seconds"])
    assert result["steps"] == 6
    assert f"validation loss: {result['val_loss']:.4f} over all" in done.out
    assert "step 3: validation loss" in done.err
    assert "\x1b" not in done.out + done.err  # plain lines where nobody looks
    assert Path("run/loss.png").read_bytes().startswith(b"\x89PNG")


def test_quiet_prints_nothing_but_the_json(headwise: Callable, text: Path) -> None:
    done = headwise("train", "--data", text, *SMALL, "--out", "run", "-q", "--json")
    assert done.err == ""
    assert len(done.out.splitlines()) == 1
    assert last_object(done.out)["steps"] == 6
    done = headwise("train", "--data", text, *SMALL, "--out", "run2", "--quiet")
    assert (done.code, done.out, done.err) == (0, "", "")


def test_flags_replace_the_file_and_the_file_replaces_defaults(headwise: Callable, text: Path) -> None:
    Path("c.toml").write_text(
        f'preset = "gpt2"\n[data]\ndata = "{text.name}"\n[model]\nn_layer = 1\nd_model = 16\nblock_size = 8\n'
        "[training]\nmax_steps = 4\nbatch_size = 2\n",
        encoding="utf-8",
    )
    done = headwise(
        "train",
        "--config",
        "c.toml",
        "--max-steps",
        "3",
        "--no-bias",
        "--tied-embeddings",
        "--out",
        "run",
        "-q",
    )
    assert done.code == 0, done.err
    config = RunConfig.from_toml("run/config.toml")
    assert (config.training.max_steps, config.training.batch_size) == (3, 2)
    assert (config.model.n_layer, config.model.position, config.model.bias) == (1, "learned", False)


def test_none_on_the_command_line_replaces_a_value_of_the_file(headwise: Callable, text: Path) -> None:
    Path("c.toml").write_text("[model]\nn_kv_head = 1\n", encoding="utf-8")
    done = headwise(
        "train", "--config", "c.toml", "--n-kv-head", "none", "--data", text, *SMALL, "--out", "run", "-q"
    )
    assert done.code == 0, done.err
    assert RunConfig.from_toml("run/config.toml").model.n_kv_head is None


def test_without_out_each_run_gets_a_number(headwise: Callable, text: Path) -> None:
    for _ in range(2):
        assert headwise("train", "--data", text, *SMALL, "-q").code == 0
    assert sorted(path.name for path in Path("runs").iterdir()) == ["gpt-1", "gpt-2"]


@pytest.mark.parametrize("number", ["1", "1e-3"])
def test_whole_numbers_do_for_fractions(headwise: Callable, text: Path, number: str) -> None:
    assert headwise("train", "--data", text, *SMALL, f"--learning-rate={number}", "-q").code == 0


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["--max-steps", "1e3"], ["max_steps", "valid integer", "1e3"]),
        (["--optimizer", "sgd"], ["optimizer", "sgd", "'muon' or 'adamw'"]),
        (["--max-step", "3"], ["--max-step", "--max-steps"]),
        (["--n-head", "5"], ["d_model=16", "n_head=5", "4 or 8"]),
        (
            ["--max-steps", "0", "--dropout", "2", "--preset", "gtp", "--seed", "x"],
            ["4 problems", "max_steps", "dropout", "gtp", "training.seed"],
        ),
        (["--data", "missing.txt"], ["missing.txt"]),
        (["--config", "missing.toml"], ["missing.toml"]),
        (["--block-size", "5000"], ["block_size 5000", "the largest block_size that fits is"]),
        (["--resume"], ["--resume needs --out"]),
        (["--resume", "--out", "nowhere"], ["no run to resume in nowhere"]),
        (["--device", "cuda:99"], ["cuda:99"]),
        (["--matrix-momentum", "0.9", "--optimizer", "adamw"], ["matrix_momentum", "no effect"]),
    ],
)
def test_a_mistake_is_named_before_any_work(
    headwise: Callable, text: Path, arguments: list[str], wanted: list[str]
) -> None:
    done = headwise("train", "--data", text, *SMALL, *arguments)
    assert done.code == 2
    assert "Traceback" not in done.err
    for word in wanted:
        assert word in done.err
    assert not Path("runs").exists()


def test_a_run_is_not_overwritten_and_can_be_resumed_and_extended(headwise: Callable, text: Path) -> None:
    assert headwise("train", "--data", text, *SMALL, "--out", "run", "-q").code == 0
    again = headwise("train", "--data", text, *SMALL, "--out", "run")
    assert again.code == 2
    assert "already holds a run; continue it with --resume" in again.err
    longer = headwise("train", "--resume", "--out", "run", "--max-steps", "9", "--json")
    assert longer.code == 0, longer.err
    assert "changed: max_steps from 6 to 9" in longer.err
    assert "from step 6" in longer.err
    assert last_object(longer.out)["steps"] == 9
    other = headwise("train", "--resume", "--out", "run", "--n-head", "4")
    assert other.code == 2
    assert "cannot change n_head from 2 to 4" in other.err


def test_ctrl_c_exits_with_130_and_the_run_goes_on(
    headwise: Callable, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Impatient(Observer):
        def on_step(self, step: Any) -> None:
            if step.step == 4:
                os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr("headwise.cli.progress.observer_for", lambda _: Impatient())
        done = headwise("train", "--data", text, *SMALL, "--out", "run", "-q")
    assert done.code == 130
    assert done.err == "headwise: stopped after step 4; run is saved and --resume goes on from there\n"
    assert Path("run/loss.png").read_bytes().startswith(b"\x89PNG")
    done = headwise("train", "--resume", "--out", "run", "--json")
    assert "from step 4" in done.err
    assert last_object(done.out)["steps"] == 6


def test_a_second_ctrl_c_also_says_how_to_go_on(
    headwise: Callable, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Furious(Observer):
        def on_step(self, step: Any) -> None:
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr("headwise.cli.progress.observer_for", lambda _: Furious())
        done = headwise("train", "--data", text, *SMALL, "--out", "run")
    assert done.code == 130
    assert done.err == "headwise: stopped at once; --resume goes on from the last checkpoint\n"
    assert headwise("train", "--resume", "--out", "run", "-q").code == 0


def test_a_run_that_went_wrong_leaves_its_plot(headwise: Callable, text: Path) -> None:
    wild = ["--optimizer", "adamw", "--learning-rate", "1e30", "--warmup-steps", "0", "--max-steps", "50"]
    done = headwise("train", "--data", text, *SMALL, *wild, "--out", "run")
    assert done.code == 2
    assert "is nan" in done.err or "is inf" in done.err
    assert Path("run/loss.png").read_bytes().startswith(b"\x89PNG")


def test_own_and_generated_options_name_their_types_alike(headwise: Callable) -> None:
    for verb in ("train", "compare"):
        shown = headwise(verb, "--help").out
        assert re.search(r"--out\s+<path>", shown)
        assert re.search(r"--n-head\s+<int>", shown)
        assert re.search(r"--dropout\s+<float>", shown)
        assert re.search(r"--data\s+<str>", shown)
        assert re.search(r"--tokenizer\s+<char\|bpe>", shown)
        assert not re.search(r"--[\w-]+\s+[^<\w\s-]*[A-Z]{3,}\b", shown)


def test_without_held_out_text_the_validation_loss_is_none(headwise: Callable, text: Path) -> None:
    arguments = [a for a in SMALL if a not in ("--eval-every", "3")]
    done = headwise("train", "--data", text, *arguments, "--validation-fraction", "0", "--json")
    assert done.code == 0, done.err
    assert "validation loss: none" in done.out
    assert last_object(done.out)["val_loss"] is None
    assert "nan" not in done.out.lower() + done.err.lower()


def test_a_bar_is_drawn_on_a_terminal(text: Path) -> None:
    from rich.console import Console

    from headwise.cli.progress import Bar
    from headwise.training import train as run

    console = Console(force_terminal=True, width=100, record=True, file=(text.parent / "out").open("w"))
    config = RunConfig.from_toml(
        None,
        {"data": str(text), "n_layer": 1, "d_model": 16, "block_size": 8, "max_steps": 6, "device": "cpu"},
    )
    run(config, "run", observer=Bar(console))
    shown = console.export_text()
    assert "6/6" in shown
    assert "left  loss" in shown
    assert "validation" in shown
    console.file.close()
