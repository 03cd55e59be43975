"""Uptraining from folder to folder: what it leaves, how it resumes, what is refused."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from headwise.compress import UptrainConfig, group, uptrain_folder
from headwise.compress.uptraining import RATE_SHARE
from headwise.hub import open_subject
from headwise.hub.dtypes import in_dtype
from headwise.hub.export import save_transformers, tokenizer_of
from headwise.hub.origin import origin_of, teacher_of, write_origin
from headwise.hub.surgery import head_counts
from headwise.model import load_model, save_model
from headwise.text import Tokenizer
from headwise.training import Interrupted, NonFiniteError, Observer, RunConfig, read_metrics, train

LETTERS = "abcdefghijklmnopqrstuvwxyz 가나다라"
FILES = {"config.json", "model.safetensors", "tokenizer.json", "made_from.json"}
RECORDS = {"uptrain.json", "metrics.jsonl", "outcome.json"}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Letters that follow each other by a rule, about 2,300 of them."""
    path = tmp_path_factory.mktemp("text") / "글.txt"
    path.write_text("".join(LETTERS[(i * i + i // 7) % 31] for i in range(2300)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def parent(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 60 steps of 4 windows of 8 tokens."""
    folder = tmp_path_factory.mktemp("models") / "parent"
    options = {"n_layer": 1, "d_model": 16, "block_size": 8, "batch_size": 4, "dropout": 0.1}
    options |= {"data": str(text), "max_steps": 60, "eval_every": 60, "device": "cpu"}
    train(RunConfig.from_toml(None, options), folder)
    return folder


@pytest.fixture(scope="module")
def child(parent: Path) -> Path:
    """The parent with one key/value head, beside it."""
    model, tokenizer = load_model(parent)
    folder = parent.with_name("child")
    save_model(folder, group(model, 1, "mean", []).model, tokenizer)  # type: ignore[arg-type]
    write_origin(folder, str(parent))
    return folder


@pytest.fixture(scope="module")
def stock(child: Path, tmp_path_factory: pytest.TempPathFactory, text: Path) -> tuple[Path, Path]:
    """A tiny Llama of transformers and a child of it with one key/value head."""
    import transformers

    folder = tmp_path_factory.mktemp("stock")
    tokenizer = tokenizer_of(load_model(child)[1], 32)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = transformers.LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=32, **sizes)
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config)
    save_transformers(folder / "parent", model, tokenizer)
    save_transformers(folder / "child", group(model, 1, "mean", []).model, tokenizer)
    return folder / "parent", folder / "child"


def said(**values: Any) -> UptrainConfig:
    return UptrainConfig.of({"device": "cpu", "tokens": 20 * 32, "evaluations": 4} | values)


class Crash(BaseException):
    """Ends an uptraining as a lost process would."""


class At(Observer):
    """Does something after a step."""

    def __init__(self, step: int, action: Callable[[], None]) -> None:
        self.step, self.action = step, action

    def on_step(self, step: Any) -> None:
        if step.step == self.step:
            self.action()


def crash() -> None:
    raise Crash


def left(folder: Path) -> tuple[Any, ...]:
    """All that an uptraining leaves, without what depends on the clock."""
    found = []
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".safetensors":
            found.append((path.relative_to(folder), {k: v.tolist() for k, v in load_file(path).items()}))
    metrics = [{k: v for k, v in r.items() if k != "tokens_per_second"} for r in read_metrics(folder)]
    outcome = json.loads((folder / "outcome.json").read_text())
    del outcome["seconds"]
    return found, metrics, outcome


def test_it_learns_back_and_leaves_a_model_folder(child: Path, parent: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in child.iterdir()}
    outcome = uptrain_folder(child, tmp_path / "up", said(tokens=None, share=0.5))
    assert outcome.original_tokens == 60 * 32
    assert outcome.child.tokens == 30 * 32
    assert outcome.share == 0.5
    assert outcome.parent_loss < outcome.child.loss_before
    assert outcome.child.loss_after < outcome.child.loss_before
    assert outcome.held_out_tokens == 230 - 1
    assert [tokens for tokens, _ in outcome.child.curve] == [0, *(32 * s for s in (7, 14, 21, 28, 30))]
    assert outcome.child.curve[0][1] == pytest.approx(outcome.child.loss_before, abs=1e-5)
    assert {path.name for path in (tmp_path / "up").iterdir()} == FILES | RECORDS
    model, _ = load_model(tmp_path / "up")
    assert head_counts(model) == [(4, 1)]
    assert {path.name: path.read_bytes() for path in child.iterdir()} == before
    origin = origin_of(tmp_path / "up")
    assert origin is not None
    assert Path(origin).samefile(child)


def test_an_uptrained_model_learns_on_from_the_parent_and_not_from_its_own_start(
    child: Path, parent: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "models"
    for source in (parent, child):
        shutil.copytree(source, folder / source.name)
    write_origin(folder / "child", str(folder / "parent"))
    first = uptrain_folder(folder / "child", folder / "once", said())
    shutil.rmtree(folder / "child")  # nobody needs it any more
    second = uptrain_folder(folder / "once", folder / "twice", UptrainConfig(device="cpu"))
    assert Path(first.parent).samefile(folder / "parent")
    assert Path(second.parent).samefile(folder / "parent")
    assert second.parent_loss == first.parent_loss
    assert second.original_tokens == 60 * 32
    assert Path(origin_of(folder / "twice") or "").samefile(folder / "once")
    assert Path(teacher_of(folder / "twice") or "").samefile(folder / "parent")
    shutil.rmtree(folder / "parent")
    refused("once was made of .*parent, and there is no such folder", folder / "once", tmp_path / "up")
    (folder / "once" / "made_from.json").write_text('{"parent": "a", "learned_from": 3}')
    refused("made_from.json is damaged", folder / "once", tmp_path / "up")


def test_five_percent_is_what_is_meant_when_nothing_is_said(child: Path, tmp_path: Path) -> None:
    outcome = uptrain_folder(child, tmp_path / "up", UptrainConfig(device="cpu"))
    assert outcome.child.tokens == 3 * 32 == 0.05 * 60 * 32


def test_another_optimizer_keeps_the_size_of_a_step_and_has_rates_of_its_own(
    child: Path, tmp_path: Path
) -> None:
    uptrain_folder(child, tmp_path / "up", said(tokens=64, optimizer="adamw"))
    steps = [record for record in read_metrics(tmp_path / "up") if record["event"] == "step"]
    assert [step["tokens"] for step in steps] == [32, 64]
    assert steps[0]["learning_rate"] == pytest.approx(RATE_SHARE * 3e-3)


def test_controls_land_in_folders_of_their_own(child: Path, tmp_path: Path) -> None:
    out = tmp_path / "up"
    outcome = uptrain_folder(child, out, said(controls={"parent", "scratch"}))
    assert list(outcome.controls) == ["parent", "scratch"]
    trained_on, scratch = outcome.controls.values()
    assert trained_on.tokens == scratch.tokens == outcome.child.tokens
    assert trained_on.loss_before == outcome.parent_loss
    assert scratch.loss_before == pytest.approx(math.log(31), abs=0.1)
    assert scratch.loss_after < scratch.loss_before
    assert trained_on.loss_after < trained_on.loss_before
    assert head_counts(load_model(out / "control-parent")[0]) == [(4, 4)]
    assert head_counts(load_model(out / "control-scratch")[0]) == [(4, 1)]
    rates = [
        max(r["learning_rate"] for r in read_metrics(folder) if r["event"] == "step")
        for folder in (out, out / "control-parent", out / "control-scratch")
    ]
    assert rates[0] == rates[1] == pytest.approx(RATE_SHARE * rates[2])


def test_controls_can_be_added_to_what_is_finished(child: Path, tmp_path: Path) -> None:
    out = tmp_path / "up"
    plain = uptrain_folder(child, out, said())
    weights = (out / "model.safetensors").read_bytes()
    more = uptrain_folder(child, out, UptrainConfig(controls=frozenset({"parent"})), resume=True)
    assert more.child == plain.child
    assert list(more.controls) == ["parent"]
    assert (out / "model.safetensors").read_bytes() == weights
    assert uptrain_folder(child, out, resume=True) == more


@pytest.mark.parametrize("kl", [0.0, 1.0])
def test_pieces_make_the_whole_bit_for_bit(child: Path, tmp_path: Path, kl: float) -> None:
    """Checkpoints every 5 steps, lost after 8 and, with the control, after 13."""
    config = said(kl=kl, controls={"parent"})
    uptrain_folder(child, tmp_path / "straight", config)
    for resume, step in ((False, 8), (True, 13)):
        with pytest.raises(Crash):
            uptrain_folder(child, tmp_path / "pieces", config, resume=resume, observer=At(step, crash))
    uptrain_folder(child, tmp_path / "pieces", resume=True)
    assert left(tmp_path / "pieces") == left(tmp_path / "straight")
    assert left(tmp_path / "pieces" / "control-parent") == left(tmp_path / "straight" / "control-parent")


KILLED = """
import os, signal
from headwise.compress import UptrainConfig, uptrain_folder
from headwise.training import Observer

class Killed(Observer):
    def on_step(self, step):
        if step.step == 8:
            os.kill(os.getpid(), signal.SIGKILL)

uptrain_folder({child!r}, {out!r}, UptrainConfig.of({config!r}), observer=Killed())
"""


@pytest.mark.skipif(os.name == "nt", reason="SIGKILL is a POSIX thing")
def test_kill_9_between_checkpoints_and_resume(child: Path, tmp_path: Path) -> None:
    config = {"device": "cpu", "tokens": 20 * 32, "evaluations": 4}
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    uptrain_folder(child, straight, said())
    code = KILLED.format(child=str(child), out=str(killed), config=config)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert (killed / "checkpoints" / "step-000005").is_dir()
    uptrain_folder(child, killed, resume=True)
    assert left(killed) == left(straight)


def test_ctrl_c_finishes_the_step_and_saves(child: Path, tmp_path: Path) -> None:
    out = tmp_path / "up"
    with pytest.raises(Interrupted, match="stopped after step 7; .* --resume"):
        uptrain_folder(child, out, said(), observer=At(7, lambda: os.kill(os.getpid(), signal.SIGINT)))
    assert (out / "checkpoints" / "step-000007").is_dir()
    assert uptrain_folder(child, out, resume=True).child.steps == 20


def test_a_stock_llama_learns_and_comes_back_as_one(
    stock: tuple[Path, Path], text: Path, tmp_path: Path
) -> None:
    import transformers

    parent, child = stock
    config = said(parent=str(parent), data=str(text), tokens=20 * 64, length=16, learning_rate=0.01)
    straight = uptrain_folder(child, tmp_path / "straight", config)
    with pytest.raises(Crash):
        uptrain_folder(child, tmp_path / "up", config, observer=At(8, crash))
    outcome = uptrain_folder(child, tmp_path / "up", resume=True)
    assert left(tmp_path / "up") == left(tmp_path / "straight")
    assert outcome.child.loss_after == straight.child.loss_after < outcome.child.loss_before
    assert outcome.original_tokens is outcome.share is None
    made = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "up")
    assert type(made).__name__ == "LlamaForCausalLM"
    assert made.config.num_key_value_heads == 1
    ids = torch.tensor([open_subject(child).encode(text.read_text(encoding="utf-8")[:16])])
    with torch.no_grad():
        expected = open_subject(tmp_path / "up").model(ids).logits
        torch.testing.assert_close(made(ids).logits, expected)


@pytest.mark.parametrize("kind", ["ours", "stock"])
def test_what_is_stored_in_bfloat16_comes_back_in_bfloat16(
    child: Path, stock: tuple[Path, Path], text: Path, tmp_path: Path, kind: str
) -> None:
    """Learned in float32: steps far smaller than bfloat16 tells apart would be lost in it."""
    config = said(tokens=20 * 32, learning_rate=1e-5, matrix_learning_rate=1e-5)
    start = tmp_path / "start"
    if kind == "ours":
        model, tokenizer = load_model(child)
        save_model(start, in_dtype(model, torch.bfloat16), tokenizer)
        write_origin(start, str(origin_of(child)))
    else:
        opened = open_subject(stock[1])
        save_transformers(start, in_dtype(opened.model, torch.bfloat16), opened.tokenizer)
        config = said(
            parent=str(stock[0]), data=str(text), tokens=20 * 64, length=16, learning_rate=1e-5, held_out=100
        )
    outcome = uptrain_folder(start, tmp_path / "up", config)
    stored = load_file(tmp_path / "up" / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {torch.bfloat16}
    assert open_subject(tmp_path / "up").stored_dtype == torch.bfloat16
    losses = [loss for _, loss in outcome.child.curve]
    assert losses == sorted(losses, reverse=True)  # each evaluation below the one before


def test_a_text_that_is_given_is_used_and_its_end_is_held_out(
    child: Path, text: Path, tmp_path: Path
) -> None:
    outcome = uptrain_folder(child, tmp_path / "up", said(data=str(text), held_out=100))
    assert outcome.held_out_tokens == 99
    assert (tmp_path / "up" / "text" / "train.tokens").is_file()


def refused(wanted: str, child: Path, out: Path, config: UptrainConfig | None = None, **more: Any) -> None:
    with pytest.raises((ValueError, OSError), match=wanted):
        uptrain_folder(child, out, config or said(), **more)


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({"tokens": 0}, "tokens: .*greater than or equal to 1; got 0"),
        ({"share": 0}, "share: .*greater than 0; got 0"),
        ({"share": 1.5}, "share: .*less than or equal to 1; got 1.5"),
        ({"share": 0.1, "tokens": 5}, "either share or tokens"),
        ({"held_out": 5}, "held_out=5 is about a text that is given as data"),
        ({"unknown": "skip"}, "unknown=skip is about a text that is given as data"),
        ({"kl": -1}, "kl: .*greater than or equal to 0"),
        ({"kl": math.inf}, "kl: .*finite"),
        ({"controls": {"other"}}, "controls"),
    ],
)
def test_settings_out_of_range_are_refused(values: dict[str, Any], wanted: str) -> None:
    with pytest.raises(ValueError, match=wanted):
        UptrainConfig.of(values)


def test_what_does_not_go_together_is_refused_and_nothing_is_written(
    child: Path, parent: Path, stock: tuple[Path, Path], text: Path, tmp_path: Path
) -> None:
    out = tmp_path / "up"
    refused("is both child and parent", child, out, said(parent=str(child)))
    bare = tmp_path / "bare"
    shutil.copytree(child, bare)
    (bare / "made_from.json").unlink()
    refused("does not say which model it was made of; give it with --parent", bare, out)
    refused("there is no folder .*nothing, and a model of that name does not say", tmp_path / "nothing", out)
    (bare / "made_from.json").write_text('{"parent": "../gone"}')
    refused("bare was made of .*gone, and there is no such folder any more; give", bare, out)
    (bare / "made_from.json").write_text('{"parent": null}')
    refused("made_from.json is damaged", bare, out)
    old = tmp_path / "old"
    shutil.copytree(parent, old)
    (old / "result.json").write_text('{"folder": "old", "val_loss": 1.0}')
    refused("result.json is damaged, or of another version", child, out, UptrainConfig(parent=str(old)))
    refused("no folder|no model folder", child, out, said(parent=str(tmp_path / "nowhere")))
    refused("length must be at most 8", child, out, said(length=9))
    refused(
        "matrix_learning_rate=0.1 has no effect",
        child,
        out,
        said(optimizer="adamw", matrix_learning_rate=0.1),
    )
    other = tmp_path / "other"
    save_model(other, load_model(child)[0], Tokenizer.train("char", ["ABCDEFGHIJKLMNOPQRSTUVWXYZ 가나다라"]))
    refused("have different tokenizers", child, out, said(parent=str(other)))
    refused("have different tokenizers", child, out, said(parent=str(stock[0]), data=str(text)))
    refused(
        "does not say how many tokens it was trained on", stock[1], out, UptrainConfig(parent=str(stock[0]))
    )
    refused("no text to learn from", stock[1], out, said(parent=str(stock[0])))
    refused("no file", child, out, said(data=str(tmp_path / "nowhere.txt")))
    short = tmp_path / "short.txt"
    short.write_text("abcdefgh")
    refused("has 8 tokens, .* give more text", child, out, said(data=str(short)))
    short.write_text("ABC" * 50)
    refused("never saw them in training", child, out, said(data=str(short)))
    assert not out.exists()


def test_an_encoder_is_refused(stock: tuple[Path, Path], text: Path, tmp_path: Path) -> None:
    import transformers

    tokenizer = open_subject(stock[0]).tokenizer
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=len(tokenizer), pad_token_id=0, **sizes)
    for name in ("child", "parent"):
        save_transformers(tmp_path / name, transformers.BertForMaskedLM(config), tokenizer)
    refused(
        "child does not predict the next token, which is what uptraining learns",
        tmp_path / "child",
        tmp_path / "up",
        said(parent=str(tmp_path / "parent"), data=str(text)),
    )


def test_damaged_weights_are_named_before_anything_is_written(
    child: Path, parent: Path, tmp_path: Path
) -> None:
    for name, source in (("child", child), ("parent", parent)):
        model, tokenizer = load_model(source)
        with torch.no_grad():
            model.blocks[0].attention.q_proj.weight[0, 0] = math.nan
        save_model(tmp_path / name, model, tokenizer)
    out = tmp_path / "up"
    refused(
        r"child has weights that are not finite .*q_proj", tmp_path / "child", out, said(parent=str(parent))
    )
    refused("parent has weights that are not finite", child, out, said(parent=str(tmp_path / "parent")))
    (tmp_path / "file").write_text("")
    refused("file is not a folder", child, tmp_path / "file" / "up")
    assert not out.exists()


def test_quantised_weights_are_refused(stock: tuple[Path, Path], text: Path, tmp_path: Path) -> None:
    folder = tmp_path / "quantised"
    shutil.copytree(stock[1], folder)
    values = json.loads((folder / "config.json").read_text())
    values["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (folder / "config.json").write_text(json.dumps(values))
    refused("quantised with gptq", folder, tmp_path / "up", said(parent=str(stock[0]), data=str(text)))


def test_a_folder_that_holds_something_is_not_written_over(child: Path, parent: Path, tmp_path: Path) -> None:
    refused("is there already", child, parent)
    refused("no uptraining to resume", child, tmp_path / "up", resume=True)
    with pytest.raises(Crash):
        uptrain_folder(child, tmp_path / "up", said(), observer=At(8, crash))
    refused("already holds an uptraining; go on with it with --resume", child, tmp_path / "up")


def test_what_decides_an_uptraining_cannot_be_changed(child: Path, parent: Path, tmp_path: Path) -> None:
    out = tmp_path / "up"
    with pytest.raises(Crash):
        uptrain_folder(child, out, said(), observer=At(8, crash))
    refused(
        "cannot change kl from 1.0 to 0.5, seed from 0 to 1",
        child,
        out,
        UptrainConfig(kl=0.5, seed=1),
        resume=True,
    )
    other = tmp_path / "other"
    shutil.copytree(child, other)
    model, tokenizer = load_model(other)
    with torch.no_grad():
        model.final_norm.weight.add_(0.1)
    save_model(other, model, tokenizer)
    refused("child changed", other, out, UptrainConfig(parent=str(parent)), resume=True)
    finished = tmp_path / "finished"
    uptrain_folder(child, finished, said(tokens=32))
    refused("child changed", other, finished, UptrainConfig(parent=str(parent)), resume=True)
    assert Path(origin_of(finished) or "").samefile(child)
    (out / "uptrain.json").write_text("{")
    refused("uptrain.json is damaged", child, out, resume=True)


def test_a_loss_that_is_no_number_keeps_the_last_good_state(child: Path, tmp_path: Path) -> None:
    config = said(optimizer="adamw", learning_rate=1e30, warmup_steps=0)
    with pytest.raises(NonFiniteError, match=r"step \d+ .*keeps those of step"):
        uptrain_folder(child, tmp_path / "up", config)
    made, _ = load_model(tmp_path / "up")
    kept, _ = load_model(child)
    assert all(torch.equal(a, b) for a, b in zip(made.parameters(), kept.parameters(), strict=True))
