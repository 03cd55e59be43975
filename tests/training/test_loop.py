"""The loop: what is computed, what is kept, and how it stops."""

from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from headwise.model import GPT, GPTConfig, load_model, save_model
from headwise.text import TokenFile, open_prepared
from headwise.training import (
    Interrupted,
    NonFiniteError,
    RunConfig,
    TrainResult,
    evaluate,
    learner,
    loop,
    train,
    trainer,
)
from headwise.training.evaluation import Evaluation
from headwise.training.learner import accumulate
from headwise.training.run_folder import RunFolder


def gradients(
    model: GPT, batches: list[tuple[torch.Tensor, torch.Tensor]]
) -> tuple[float, list[torch.Tensor]]:
    model.zero_grad()
    loss = accumulate(model, batches).item()
    return loss, [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("ignored", [0, 3, 14])
def test_parts_have_the_gradient_of_the_whole_batch(ignored: int) -> None:
    """Also where the parts hold unequally many targets: the loss is their sum over their number."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(n_layer=2, n_head=2, d_model=16, block_size=8, vocab_size=11))
    x, y = torch.randint(0, 11, (2, 8, 8))
    y.flatten()[:ignored] = -100
    loss, whole = gradients(model, [(x, y)])
    for parts in (2, 4):
        split = list(zip(x.chunk(parts), y.chunk(parts), strict=True))
        part_loss, part = gradients(model, split)
        assert part_loss == pytest.approx(loss, abs=1e-6)
        for a, b in zip(whole, part, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-6)
    expected = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=-100)
    assert loss == pytest.approx(expected.item(), abs=1e-6)


def test_nothing_to_learn_from_is_an_error_not_nan() -> None:
    model = GPT(GPTConfig(n_layer=1, n_head=2, d_model=16, block_size=8, vocab_size=11))
    x = torch.zeros(1, 8, dtype=torch.int64)
    with pytest.raises(ValueError, match="no target"):
        accumulate(model, [(x, torch.full_like(x, -100))])


def test_accumulation_trains_like_the_large_batch(new_run: Callable[[str], Any]) -> None:
    large, parts = new_run("large"), new_run("parts")
    large.train(batch_size=8, optimizer="adamw")
    parts.train(batch_size=2, grad_accumulation=4, optimizer="adamw")
    for a, b in zip(large.metrics, parts.metrics, strict=True):
        if a["event"] == "step":
            assert a["loss"] == pytest.approx(b["loss"], abs=1e-4)
            assert a["tokens"] == b["tokens"] == a["step"] * 8 * 8


def test_a_run_leaves_a_model_folder_and_its_own_record(run: Any) -> None:
    result = run.train()
    names = {path.name for path in run.folder.iterdir()}
    model_folder = {"config.json", "model.safetensors", "tokenizer.json"}
    assert names == model_folder | {"config.toml", "metrics.jsonl", "result.json", "checkpoints", "tokens"}
    assert RunFolder(run.folder).read_result() == result
    assert RunFolder(run.folder).read_config() == run.config()
    model, tokenizer = load_model(run.folder)
    assert result.parameters == model.num_parameters()
    tokens = TokenFile(run.folder / "tokens" / "validation.tokens", tokenizer)
    assert result.val_loss == evaluate(model, tokens).loss
    assert result.validation_tokens == tokens.count - 1
    assert result.tokens == 6 * 4 * 8
    assert result.tokens_per_second == result.tokens / result.seconds
    assert [r["step"] for r in run.metrics if r["event"] == "step"] == list(range(1, 7))
    assert [r["step"] for r in run.metrics if r["event"] == "validation"] == [0, 2, 4, 6]


def test_training_learns(run: Any) -> None:
    result = run.train(max_steps=100, eval_every=50, batch_size=8)
    vocab_size = load_model(run.folder)[1].vocab_size
    start = next(r["loss"] for r in run.metrics if r["event"] == "validation")
    assert start == pytest.approx(math.log(vocab_size), abs=0.3)
    assert result.val_loss is not None
    assert result.val_loss < 0.7 * start


def test_an_evaluation_tells_the_mean_training_loss_since_the_last(run: Any) -> None:
    run.train()
    losses = {r["step"]: r["loss"] for r in run.metrics if r["event"] == "step"}
    told = {r["step"]: r["train_loss"] for r in run.metrics if r["event"] == "validation"}
    assert told[0] is None
    assert told[2] == pytest.approx((losses[1] + losses[2]) / 2)
    assert told[6] == pytest.approx((losses[5] + losses[6]) / 2)


def test_the_same_seed_gives_the_same_run_and_another_seed_another(new_run: Callable[[str], Any]) -> None:
    runs = {name: new_run(name) for name in ("a", "b", "c")}
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        torch.manual_seed(len(name))  # what the caller drew before does not matter
        torch.rand(seed)
        runs[name].train(seed=seed, dropout=0.2)
    assert runs["a"].equals(runs["b"])
    assert runs["a"].metrics != runs["c"].metrics


def test_the_callers_random_numbers_are_left_alone(run: Any) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    run.train(dropout=0.5)
    assert torch.equal(torch.rand(3), expected)


def test_observers_hear_everything_once(run: Any) -> None:
    listener = run.Listener()
    run.train(observer=listener)
    assert [s.step for s in listener.steps] == [1, 2, 3, 4, 5, 6]
    assert [v.step for v in listener.validations] == [0, 2, 4, 6]
    assert listener.ends == 1
    assert listener.messages == []
    (start,) = listener.starts
    assert (start.step, start.max_steps, start.tokens_per_step, start.device) == (0, 6, 32, "cpu")
    assert start.validation_tokens > 0


def test_the_best_weights_are_kept_not_the_last(run: Any) -> None:
    """With an absurd rate the start is never beaten, and the model folder still holds it."""
    listener = run.Listener()
    result = run.train(learning_rate=0.5, matrix_learning_rate=0.5, schedule="constant", observer=listener)
    by_step = {v.step: v.loss for v in listener.validations}
    assert result.best_step == min(by_step, key=by_step.__getitem__) < 6
    assert [v.step for v in listener.validations if v.best][-1] == result.best_step
    model, _ = load_model(run.folder)
    assert not torch.equal(model.head.weight, run.weights["token_embedding.weight"])


def test_patience_stops_early_and_says_so_in_the_result(run: Any) -> None:
    options = {"learning_rate": 0.5, "matrix_learning_rate": 0.5, "eval_every": 1, "max_steps": 50}
    result = run.train(early_stop_patience=3, **options)
    assert result.stopped_early
    assert result.steps == result.best_step + 3
    again = run.train(resume=True, early_stop_patience=3, **options)
    assert again.steps == result.steps  # it stays stopped
    longer = run.train(resume=True, early_stop_patience=5, **options)
    assert longer.steps >= result.steps + 2


def test_strong_overfitting_is_told_once(new_run: Callable[[str], Any], tmp_path: Path) -> None:
    small = tmp_path / "small.txt"
    small.write_text("".join(chr(97 + (i * i * 7 + i * 3) % 23) for i in range(60)) + "zyxwvutsrq" * 3)
    run, listener = new_run("over"), new_run("over").Listener()
    result = run.train(
        data=str(small), max_steps=120, eval_every=20, d_model=32, validation_fraction=0.4, observer=listener
    )
    told = [text for text in listener.messages if text.startswith("overfitting")]
    assert len(told) == 1
    assert f"the weights of step {result.best_step} are kept" in told[0]
    assert result.best_step < 120


def test_without_validation_the_loss_is_none_and_the_last_weights_are_kept(
    new_run: Callable[[str], Any],
) -> None:
    run = new_run("run")
    listener = run.Listener()
    config = RunConfig.from_toml(
        None,
        {"data": run.config().data.data, "validation_fraction": 0.0, "block_size": 8, "d_model": 16}
        | {
            "n_head": 2,
            "n_layer": 1,
            "batch_size": 4,
            "max_steps": 5,
            "checkpoint_every": 2,
            "device": "cpu",
        },
    )
    result = train(config, run.folder, observer=listener)
    assert result.val_loss is None
    assert result.bits_per_byte is None
    assert result.best_step == 5
    assert listener.validations == []
    assert any("no validation split" in text for text in listener.messages)
    last = run.weights
    kept = load_file(run.folder / "model.safetensors")
    assert all(torch.equal(kept[name], last[name]) for name in kept)
    assert "NaN" not in (run.folder / "metrics.jsonl").read_text() + (run.folder / "result.json").read_text()


@pytest.mark.parametrize(
    "given",
    [{"early_stop_patience": 3}, {"eval_every": 2}, {"eval_batches": 2}],
    ids=lambda given: next(iter(given)),
)
def test_what_is_said_about_evaluations_is_refused_where_the_text_is_too_short_for_them(
    tmp_path: Path, given: dict[str, int]
) -> None:
    """As with validation_fraction=0, but known only once the text has been read."""
    path = tmp_path / "short.txt"
    path.write_text("abcdefghij" * 3)
    common = {
        "data": str(path),
        "block_size": 8,
        "d_model": 16,
        "n_layer": 1,
        "max_steps": 2,
        "device": "cpu",
    }
    ((name, value),) = given.items()
    with pytest.raises(
        ValueError, match=f"{name}={value} needs held-out text, but the validation part .* has 3"
    ):
        train(RunConfig.from_toml(None, common | given), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert train(RunConfig.from_toml(None, common), tmp_path / "run").val_loss is None
    with pytest.raises(ValueError, match=f"{name}={value} has no effect, as no text is held out"):
        train(
            RunConfig.from_toml(None, common | given),
            tmp_path / "other",
            prepared=open_prepared(tmp_path / "run" / "tokens"),
        )
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_a_loss_or_gradient_that_is_not_finite_stops_before_the_update(
    run: Any, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    steps = iter(range(1, 100))

    def poisoned(forward: Any, batches: Any, _loss: Any) -> torch.Tensor:
        loss = accumulate(forward, batches)
        if next(steps) == 5:
            if what == "loss":
                return loss * torch.nan
            forward.blocks[0].attention.v_proj.weight.grad[0, 0] = torch.inf
        return loss

    monkeypatch.setattr(learner, "accumulate", poisoned)
    listener = run.Listener()
    with pytest.raises(NonFiniteError, match=f"the {what} of step 5 is (nan|inf)") as caught:
        run.train(eval_every=4, checkpoint_every=4, max_steps=10, observer=listener)
    assert "keeps those of step 4" in str(caught.value)
    assert run.checkpoints[-1].name == "step-000004"
    assert listener.ends == 1
    model, _ = load_model(run.folder)
    assert all(bool(p.isfinite().all()) for p in model.parameters())
    assert run.metrics[-1]["step"] == 4  # nothing of the bad step is logged


def test_a_first_evaluation_that_is_not_finite_names_no_step_as_saved(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "evaluate_batches", lambda *_: Evaluation(math.inf, 1))
    with pytest.raises(NonFiniteError, match="the validation loss of step 0 is inf; .* Nothing is saved yet"):
        run.train()


def test_an_absurd_learning_rate_ends_with_good_weights_on_disk(run: Any) -> None:
    with pytest.raises(NonFiniteError, match="step"):
        run.train(learning_rate=1e30, optimizer="adamw", warmup_steps=0, max_steps=50, checkpoint_every=1)
    assert all(bool(value.isfinite().all()) for value in run.weights.values())
    load_model(run.folder)


def test_weights_are_saved_before_the_final_evaluation(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_memory(*_: Any, **__: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(loop, "evaluate", out_of_memory)
        run.train()
    assert run.checkpoints[-1].name == "step-000006"
    load_model(run.folder)
    assert run.train(resume=True).val_loss is not None  # only what was missing is done


def test_ctrl_c_finishes_the_step_saves_and_can_be_resumed(new_run: Callable[[str], Any]) -> None:
    run, straight = new_run("run"), new_run("straight")
    straight.train(dropout=0.3)

    def ctrl_c() -> None:
        os.kill(os.getpid(), signal.SIGINT)

    listener = run.Listener({4: ctrl_c})
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted, match="stopped after step 4; .* --resume"):
        run.train(dropout=0.3, observer=listener)
    assert [s.step for s in listener.steps] == [1, 2, 3, 4]
    assert run.checkpoints[-1].name == "step-000004"
    assert signal.getsignal(signal.SIGINT) is before
    run.train(dropout=0.3, resume=True)
    assert run.equals(straight)


def test_a_second_ctrl_c_stops_at_once(run: Any) -> None:
    def twice() -> None:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as caught:
        run.train(observer=run.Listener({5: twice}))
    assert not isinstance(caught.value, Interrupted)
    assert run.checkpoints[-1].name == "step-000004"
    run.train(resume=True)


def test_training_works_outside_the_main_thread(run: Any) -> None:
    results: list[TrainResult] = []
    thread = threading.Thread(target=lambda: results.append(run.train()))
    thread.start()
    thread.join()
    assert results[0].steps == 6


def test_an_ignored_ctrl_c_stays_ignored(run: Any) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        result = run.train(observer=run.Listener({2: lambda: os.kill(os.getpid(), signal.SIGINT)}))
    finally:
        signal.signal(signal.SIGINT, before)
    assert result.steps == 6


def test_a_full_disk_names_what_is_kept(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = iter(range(100))

    def full(*arguments: Any, **options: Any) -> None:
        if next(calls) >= 2:
            raise OSError(28, "No space left on device")
        real(*arguments, **options)

    real = trainer.save_checkpoint
    monkeypatch.setattr(trainer, "save_checkpoint", full)
    with pytest.raises(OSError, match=r"No space left on device.* saved as of step 2; .*--resume"):
        run.train()
    monkeypatch.undo()
    assert run.train(resume=True).steps == 6


def test_a_folder_that_holds_a_run_is_not_overwritten(run: Any) -> None:
    run.train()
    before = (run.folder / "model.safetensors").read_bytes()
    with pytest.raises(ValueError, match=r"already holds a run; continue it with --resume"):
        run.train(seed=1)
    assert (run.folder / "model.safetensors").read_bytes() == before


def test_two_trainings_in_one_folder_do_not_disturb_each_other(run: Any) -> None:
    run.train()
    before = sorted(path.name for path in run.folder.rglob("*"))
    with RunFolder(run.folder).alone(), pytest.raises(ValueError, match="another process is training in"):
        run.train(resume=True)
    assert sorted(path.name for path in run.folder.rglob("*")) == before
    assert run.train(resume=True).steps == 6  # the lock is gone with its holder


def test_a_folder_that_holds_a_model_is_not_overwritten(run: Any, new_run: Callable[[str], Any]) -> None:
    run.train()
    other = new_run("other")
    save_model(other.folder, *load_model(run.folder))
    with pytest.raises(ValueError, match=r"already holds config.json; choose another"):
        other.train()


def test_a_file_in_place_of_the_folder_is_refused(run: Any) -> None:
    run.folder.write_text("not a folder")
    with pytest.raises(ValueError, match="is a file"):
        run.train()


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        (b"", "empty"),
        (b"abcdefgh", "has 7 tokens, but block_size 8 needs at least 9"),
        (b"ab\xff" * 50, "not UTF-8"),
        (None, "no file"),
    ],
)
def test_bad_text_is_refused_before_anything_is_written(
    run: Any, tmp_path: Path, content: bytes | None, wanted: str
) -> None:
    path = tmp_path / "bad.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=wanted):
        run.train(data=str(path))
    assert not run.folder.exists()


def test_block_size_plus_one_tokens_train(tmp_path: Path) -> None:
    path = tmp_path / "short.txt"
    path.write_text("abcabcabc")
    options = {"data": str(path), "validation_fraction": 0.0, "block_size": 8, "d_model": 16, "n_head": 2}
    config = RunConfig.from_toml(None, options | {"n_layer": 1, "max_steps": 3, "device": "cpu"})
    assert train(config, tmp_path / "run").steps == 3


def test_a_device_that_is_not_there_is_refused_before_any_work(run: Any) -> None:
    with pytest.raises(ValueError, match="'quantum' is not one of"):
        run.train(device="quantum")
    assert not run.folder.exists()


def test_a_compiler_that_fails_is_named_and_the_run_goes_on_as_without(
    new_run: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch.rand(3)  # a failed attempt may already have drawn
            raise RuntimeError("\nno C++ compiler found\nlong explanation")

    eager, compiled = new_run("eager"), new_run("compiled")
    eager.train(dropout=0.3)
    monkeypatch.setattr(torch, "compile", Broken)
    listener = compiled.Listener()
    compiled.train(dropout=0.3, compile=True, observer=listener)
    assert listener.messages == [
        "torch.compile does not work here (no C++ compiler found); going on without it"
    ]
    assert compiled.equals(eager)


def test_a_compiled_model_is_used_and_saved_as_the_inner_one(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Compiled(nn.Module):
        calls = 0

        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self._orig_mod = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            Compiled.calls += 1
            return self._orig_mod(x)

    monkeypatch.setattr(torch, "compile", Compiled)
    listener = run.Listener()
    run.train(compile=True, observer=listener)
    assert Compiled.calls == 1 + 6  # the attempt and every step
    assert listener.messages == []
    assert not any("_orig_mod" in name for name in run.weights)
    load_model(run.folder)


def test_tensorboard_without_its_package_is_refused_before_any_work(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ValueError, match="pip install .headwise.tensorboard"):
        run.train(tensorboard=True)
    assert not run.folder.exists()
