"""Configurations: from files and flags, all problems at once, and back to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from headwise.model import PRESETS, ModelSettings
from headwise.training import DataConfig, RunConfig, TrainingConfig
from headwise.training.config_file import fields, parse_value


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_replaces_defaults_and_overrides_replace_the_file(tmp_path: Path) -> None:
    path = write(
        tmp_path / "c.toml",
        'preset = "gpt2"\n[data]\ndata = "글.txt"\n'
        "[model]\nn_layer = 2\n[training]\nmax_steps = 50\nseed = 3\n",
    )
    config = RunConfig.from_toml(path, {"seed": 4, "n_head": 8})
    assert config.data.data == "글.txt"
    assert config.model == PRESETS["gpt2"].model_copy(update={"n_layer": 2, "n_head": 8})
    assert (config.training.max_steps, config.training.seed) == (50, 4)
    assert config.training.batch_size == TrainingConfig().batch_size


@pytest.mark.parametrize("preset", list(PRESETS))
def test_the_model_starts_from_the_preset(preset: str) -> None:
    assert RunConfig(preset=preset).model == PRESETS[preset]
    assert RunConfig.from_toml(None, {"preset": preset}).model == PRESETS[preset]


def test_all_problems_come_at_once(tmp_path: Path) -> None:
    path = write(
        tmp_path / "c.toml",
        '[data]\ntokenizer = "words"\n[model]\nn_head = 3\n'
        '[training]\nbatch_size = "4"\nmax_steps = 0\nlr = 1\n',
    )
    with pytest.raises(ValueError, match="5 problems in") as caught:
        RunConfig.from_toml(path)
    message = str(caught.value)
    assert "data.tokenizer must be one of 'char' or 'bpe'; got 'words'" in message
    assert "d_model=128 cannot be divided among n_head=3" in message
    assert "2 or 4" in message
    assert "training.batch_size" in message
    assert "'4'" in message
    assert "training.max_steps" in message
    assert "unknown field training.lr; did you mean learning_rate in [training]?" in message


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("nhead", "did you mean n_head in [model]?"),
        ("wd", "did you mean weight_decay in [training]?"),
        ("tokeniser", "did you mean tokenizer in [data]?"),
        ("prset", "did you mean preset at the top?"),
        ("zzz", "the fields are preset, data,"),
    ],
)
def test_an_unknown_field_is_answered_with_the_nearest(name: str, wanted: str) -> None:
    with pytest.raises(ValueError, match=f"unknown field {name}") as caught:
        RunConfig.from_toml(None, {name: 1})
    assert wanted in str(caught.value)


def test_a_field_in_the_wrong_section_is_sent_home(tmp_path: Path) -> None:
    path = write(tmp_path / "c.toml", "n_head = 2\n[training]\ndropout = 0.1\n")
    with pytest.raises(ValueError, match="2 problems") as caught:
        RunConfig.from_toml(path)
    assert "unknown field n_head; it belongs in [model]" in str(caught.value)
    assert "unknown field training.dropout; it belongs in [model]" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("preset = ", "is not valid TOML"),
        ("model = 3", "model must be a table of fields"),
        ('preset = "gtp"', "preset must be one of bigram, single-head"),
        ("[training]\nlearning_rate = nan", "finite number; got nan"),
        ("[training]\nseed = true", "training.seed"),
        ("[training]\ncompile = 1", "training.compile"),
        ("[model]\nn_layer = 2.0", "model.n_layer"),
    ],
)
def test_a_file_that_is_wrong_says_how(tmp_path: Path, text: str, wanted: str) -> None:
    with pytest.raises(ValueError, match="c.toml") as caught:
        RunConfig.from_toml(write(tmp_path / "c.toml", text))
    assert wanted in str(caught.value)


def test_a_file_that_is_not_utf8_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    with pytest.raises(FileNotFoundError, match="c.toml"):
        RunConfig.from_toml(path)
    path.write_bytes(b"preset = '\xff'")
    with pytest.raises(ValueError, match=r"not UTF-8 \(byte 10\)"):
        RunConfig.from_toml(path)


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"bpe_vocab_size": 300}, "bpe_vocab_size=300 has no effect with tokenizer=char"),
        (
            {"optimizer": "adamw", "matrix_momentum": 0.9},
            "matrix_momentum=0.9 has no effect with optimizer=adamw",
        ),
        ({"optimizer": "adamw", "matrix_learning_rate": 0.1}, "matrix_learning_rate=0.1 has no effect"),
        ({"schedule": "constant", "final_learning_rate_ratio": 0.2}, "has no effect with schedule=constant"),
        ({"validation_fraction": 0.0, "early_stop_patience": 2}, "early_stop_patience=2 has no effect"),
        (
            {"validation_fraction": 0.0, "eval_every": 2},
            "eval_every=2 has no effect with validation_fraction=0",
        ),
        ({"validation_fraction": 0.0, "eval_batches": 2}, "eval_batches=2 has no effect"),
        ({"preset": "bigram", "matrix_momentum": 0.5}, "matrix_momentum=0.5 has no effect with n_layer=0"),
        ({"warmup_steps": 10, "max_steps": 10}, "warmup_steps=10 must be less than max_steps=10"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(changes: dict[str, Any], wanted: str) -> None:
    with pytest.raises(ValueError, match="no effect|must be less") as caught:
        RunConfig.from_toml(None, changes)
    assert wanted in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"preset": "gpt2", "n_layer": 2, "n_kv_head": 2, "dropout": 0.25},
        {"preset": "bigram", "tied_embeddings": True},
        {"data": 'a "quoted" \\ 한글\n\x7f.txt', "tokenizer": "bpe", "bpe_vocab_size": 300},
        {"learning_rate": 1e-05, "optimizer": "adamw", "compile": True, "warmup_steps": 0, "seed": 2**63 - 1},
    ],
)
def test_a_written_configuration_reads_back_the_same(tmp_path: Path, changes: dict[str, Any]) -> None:
    config = RunConfig.from_toml(None, changes)
    assert RunConfig.from_toml(write(tmp_path / "c.toml", config.to_toml())) == config


def test_a_written_configuration_lets_another_preset_take_effect(tmp_path: Path) -> None:
    path = write(tmp_path / "c.toml", RunConfig.from_toml(None, {"n_layer": 2}).to_toml())
    assert RunConfig.from_toml(path, {"preset": "gpt2"}).model == PRESETS["gpt2"].model_copy(
        update={"n_layer": 2}
    )


def test_every_field_is_described_and_has_one_home() -> None:
    sections = [DataConfig, ModelSettings, TrainingConfig]
    assert len(fields()) == 1 + sum(len(section.model_fields) for section in sections)
    for name, (_, info) in fields().items():
        assert info.description, name


def test_configurations_cannot_be_changed_in_place() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        RunConfig().training.seed = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("n_head", "4", 4),
        ("n_kv_head", "none", None),
        ("n_kv_head", "2", 2),
        ("norm", "none", "none"),
        ("learning_rate", "1e-3", 0.001),
        ("bias", "true", True),
        ("residual", "false", False),
        ("preset", "gpt2", "gpt2"),
    ],
)
def test_text_is_read_by_the_type_of_the_field(name: str, text: str, value: object) -> None:
    assert parse_value(name, text) == value
    assert type(parse_value(name, text)) is type(value)


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("n_head", "many", "n_head=many: input should be a valid integer"),
        ("norm", "batch", "norm=batch"),
        ("n_haed", "4", "did you mean n_head"),
        ("n_head", "none", "n_head=none"),
    ],
)
def test_text_of_another_type_is_refused(name: str, text: str, wanted: str) -> None:
    with pytest.raises(ValueError, match=name) as caught:
        parse_value(name, text)
    assert wanted in str(caught.value)


def test_a_short_run_has_a_short_warmup() -> None:
    assert TrainingConfig().warmup == 50
    assert TrainingConfig(max_steps=40).warmup == 4
    assert TrainingConfig(max_steps=5).warmup == 0
    assert TrainingConfig(max_steps=50, warmup_steps=20).warmup == 20
