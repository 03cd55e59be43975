"""Every field of a configuration is alive: changing it changes what a run does, or is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headwise.training.config_file import fields

WILD = {"learning_rate": 0.5, "matrix_learning_rate": 0.5, "schedule": "constant", "max_steps": 12}

# Field → (what both runs share, what the second changes).
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "preset": ({}, {"preset": "gpt2"}),
    "data": ({}, {"data": "OTHER"}),
    "tokenizer": ({}, {"tokenizer": "bpe"}),
    "bpe_vocab_size": ({"tokenizer": "bpe"}, {"bpe_vocab_size": 270}),
    "validation_fraction": ({}, {"validation_fraction": 0.3}),
    "block_size": ({}, {"block_size": 4}),
    "n_layer": ({}, {"n_layer": 2}),
    "n_head": ({}, {"n_head": 4}),
    "n_kv_head": ({}, {"n_kv_head": 1}),
    "d_model": ({}, {"d_model": 32}),
    "d_head": ({}, {"d_head": 4}),
    "d_ff": ({}, {"d_ff": 8}),
    "position": ({}, {"position": "none"}),
    "rope_base": ({}, {"rope_base": 500.0}),
    "norm": ({}, {"norm": "layer"}),
    "norm_eps": ({}, {"norm_eps": 0.1}),
    "mlp": ({}, {"mlp": "gelu"}),
    "residual": ({}, {"residual": False}),
    "bias": ({}, {"bias": True}),
    "output_projection": ({}, {"output_projection": "identity"}),
    "tied_embeddings": ({}, {"tied_embeddings": False}),
    "dropout": ({}, {"dropout": 0.5}),
    "batch_size": ({}, {"batch_size": 5}),
    "grad_accumulation": ({}, {"grad_accumulation": 2}),
    "max_steps": ({}, {"max_steps": 7}),
    "optimizer": ({}, {"optimizer": "adamw"}),
    "learning_rate": ({}, {"learning_rate": 0.01}),
    "matrix_learning_rate": ({}, {"matrix_learning_rate": 0.1}),
    "matrix_momentum": ({}, {"matrix_momentum": 0.5}),
    "beta1": ({}, {"beta1": 0.5}),
    "beta2": ({}, {"beta2": 0.5}),
    "weight_decay": ({}, {"weight_decay": 1.0}),
    "schedule": ({}, {"schedule": "cosine"}),
    "final_learning_rate_ratio": ({}, {"final_learning_rate_ratio": 0.9}),
    "warmup_steps": ({}, {"warmup_steps": 3}),
    "grad_clip": ({}, {"grad_clip": 0.01}),
    "eval_every": ({}, {"eval_every": 3}),
    "eval_batches": ({}, {"eval_batches": 1}),
    "checkpoint_every": (WILD | {"eval_every": 100}, {"checkpoint_every": 5}),
    "keep_checkpoints": ({}, {"keep_checkpoints": 1}),
    "early_stop_patience": (WILD | {"eval_every": 1}, {"early_stop_patience": 1}),
    "seed": ({}, {"seed": 1}),
    "device": ({}, {"device": "tpu"}),
    "compile": ({}, {"compile": True}),
    "tensorboard": ({}, {"tensorboard": True}),
}


def test_there_is_a_case_for_every_field() -> None:
    assert list(CASES) == list(fields())


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling takes many seconds; that it is tried is enough here."""

    def fail(_: nn.Module) -> nn.Module:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(torch, "compile", fail)


@pytest.mark.parametrize("field", list(CASES))
@pytest.mark.usefixtures("no_compiler")
def test_changing_the_field_changes_the_run(
    field: str, new_run: Callable[[str], Any], tmp_path: Path
) -> None:
    shared, change = CASES[field]
    if change.get("data") == "OTHER":
        other = tmp_path / "other.txt"
        other.write_text("another text, of other letters. " * 40, encoding="utf-8")
        change = {"data": str(other)}
    first = behaviour(new_run("first"), shared)
    try:
        second = behaviour(new_run("second"), shared | change)
    except ValueError as refusal:
        assert field in str(refusal)  # noqa: PT017 — being refused is one of two good ends
        return
    assert first["config"] != second["config"]
    assert first["rest"] != second["rest"]


def behaviour(run: Any, options: dict[str, Any]) -> dict[str, Any]:
    """All that can be seen of a run, but for its configuration file apart."""
    listener = run.Listener()
    run.train(observer=listener, **options)
    weights: dict[str, Tensor] = run.weights
    return {
        "config": (run.folder / "config.toml").read_text(),
        "rest": {
            "metrics": run.metrics,
            "weights": {name: value.flatten().tolist() for name, value in weights.items()},
            "checkpoints": [path.name for path in run.checkpoints],
            "folders": sorted(path.name for path in run.folder.iterdir() if path.is_dir()),
            "messages": listener.messages,
        },
    }
