"""A saved model is the same model, and a damaged folder is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from headwise.model import GPT, PRESETS, load_model, save_model
from headwise.text import Tokenizer

Make = Callable[..., GPT]


@pytest.mark.parametrize("preset", list(PRESETS))
def test_a_saved_model_is_the_same_model(
    make_gpt: Make, tokenizer: Tokenizer, tmp_path: Path, preset: str
) -> None:
    model = make_gpt(preset)
    save_model(tmp_path / "m", model, tokenizer)
    loaded, same_tokenizer = load_model(tmp_path / "m")
    ids = torch.tensor([tokenizer.encode("the fox")])
    assert torch.equal(loaded(ids), model(ids))
    assert not loaded.training
    assert same_tokenizer.hash == tokenizer.hash
    assert sorted(p.name for p in (tmp_path / "m").iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]


def test_tied_embeddings_are_stored_once_and_tied_again(
    make_gpt: Make, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    save_model(tmp_path, make_gpt("gpt"), tokenizer)
    assert "head.weight" not in load_file(tmp_path / "model.safetensors")
    loaded, _ = load_model(tmp_path)
    assert loaded.head.weight.data_ptr() == loaded.token_embedding.weight.data_ptr()


@pytest.fixture
def folder(make_gpt: Make, tokenizer: Tokenizer, tmp_path: Path) -> Path:
    save_model(tmp_path / "m", make_gpt("gpt"), tokenizer)
    return tmp_path / "m"


def change_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changes), encoding="utf-8")


def drop_a_tensor(folder: Path) -> None:
    state = load_file(folder / "model.safetensors")
    del state["blocks.0.attention.q_proj.weight"]
    save_file(state, folder / "model.safetensors")


def truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def another_tokenizer(folder: Path) -> None:
    Tokenizer.train("char", ["abc"]).save(folder / "tokenizer.json")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "config.json").unlink(), "config.json is missing"),
        (lambda f: (f / "model.safetensors").unlink(), "model.safetensors is missing"),
        (lambda f: (f / "tokenizer.json").unlink(), "tokenizer.json is missing; a model folder holds"),
        (lambda f: (f / "config.json").write_text("{"), "config.json is damaged"),
        (lambda f: (f / "config.json").write_text("[]"), "does not describe a headwise model"),
        (
            lambda f: (f / "config.json").write_text('{"model_type": "llama"}'),
            "does not describe a headwise model",
        ),
        (lambda f: change_config(f, version=99), "version 99"),
        (lambda f: change_config(f, n_head="x"), r"config.json does not describe a model: n_head: Input"),
        (lambda f: change_config(f, d_ff=8), r"gate_proj.weight has shape .* wanted \(8, 16\)"),
        (lambda f: change_config(f, n_layer=1), "has unknown blocks.1"),
        (lambda f: change_config(f, n_layer=10**12), "n_layer: Input should be less than or equal to 10000"),
        (lambda f: change_config(f, n_layer=9_999), "describes a model of more than .* but its weights are"),
        (lambda f: change_config(f, d_model=10**30), "describes a model of more than"),
        (lambda f: change_config(f, vocab_size=10**12), "describes a model of more than"),
        (truncate, "model.safetensors is damaged"),
        (drop_a_tensor, "lacks blocks.0.attention.q_proj.weight"),
        (another_tokenizer, "not the tokenizer of this model"),
    ],
)
def test_a_damaged_folder_is_refused_by_name(folder: Path, damage: Callable, message: str) -> None:
    damage(folder)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        load_model(folder)


def test_a_file_is_no_model_folder(folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"config\.json is a file; give the model folder"):
        load_model(folder / "config.json")


def test_a_missing_folder_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no model folder at .*nowhere"):
        load_model(tmp_path / "nowhere")


def test_a_failed_write_leaves_the_old_model(
    folder: Path, make_gpt: Make, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (folder / "model.safetensors").read_bytes()

    def full_disk(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("headwise.model.folder.save_file", full_disk)
    with pytest.raises(OSError, match="No space left"):
        save_model(folder, make_gpt("gpt", seed=1), tokenizer)
    assert (folder / "model.safetensors").read_bytes() == before
    assert len(list(folder.iterdir())) == 3


def test_a_foreign_tokenizer_is_not_saved_with_a_model(make_gpt: Make, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the tokenizer has 3 tokens but the model"):
        save_model(tmp_path, make_gpt("gpt"), Tokenizer.train("char", ["abc"]))
