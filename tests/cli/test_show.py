"""headwise show."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from headwise.model import GPT, PRESETS, GPTConfig, load_model, save_model
from headwise.text import Tokenizer

TEXT = "a $b$\n나"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model folder, its weights large enough that heads differ."""
    tokenizer = Tokenizer.train("char", ["abc $_<>\n나는 학교에"])
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=tokenizer.vocab_size, n_layer=2, n_head=3, d_model=12, block_size=8))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(10)
    folder = tmp_path_factory.mktemp("models") / "run"
    save_model(folder, model, tokenizer)
    return folder


def weights_of(run: Path) -> list[np.ndarray]:
    model, tokenizer = load_model(run)
    with torch.no_grad():
        _, weights = model(torch.tensor([tokenizer.encode(TEXT)]), return_weights=True)
    return [layer[0].numpy() for layer in weights]


def test_json_has_the_models_own_weights_and_visible_labels(headwise: Callable, run: Path) -> None:
    done = headwise("show", run, "--text", TEXT, "--device", "cpu", "--json")
    result = json.loads(done.out.splitlines()[-1])
    assert result["tokens"] == ["a", "␣", "$", "b", "$", "⏎", "나"]
    assert [(head["layer"], head["head"]) for head in result["heads"]] == [
        (layer, head) for layer in range(2) for head in range(3)
    ]
    for head, expected in zip(result["heads"], np.concatenate(weights_of(run)), strict=True):
        np.testing.assert_allclose(head["weights"], expected, atol=1e-6)
    assert result["file"] is None


def test_one_head_is_printed_with_its_weights(headwise: Callable, run: Path) -> None:
    lines = headwise("show", run, "--text", TEXT, "--layer", "1", "--head", "2").out.splitlines()
    assert lines[0] == "Layer 1, head 2: rows (queries) look at columns (keys)"
    for i, row in enumerate(weights_of(run)[1][2]):
        cells = lines[2 + i].split()[2:]
        assert cells == [f"{100 * row[j]:.0f}" if j <= i else "·" for j in range(7)]


def test_all_heads_are_printed_when_none_is_named(headwise: Callable, run: Path) -> None:
    out = headwise("show", run, "--text", TEXT).out
    assert all(f"layer {layer} head {head}" in out for layer in range(2) for head in range(3))


def test_svg_has_each_token_on_both_sides(headwise: Callable, run: Path, tmp_path: Path) -> None:
    path = tmp_path / "new" / "head.svg"
    done = headwise("show", run, "--text", "ab $", "--layer", "0", "--head", "1", "-o", path)
    assert done.out == f"drew 1 head to {path}\n"
    texts = [node.text for node in ElementTree.parse(path).getroot().iter("{http://www.w3.org/2000/svg}text")]
    for label in ("a", "b", "␣", "$"):
        assert texts.count(label) == 2
    assert "Layer 0, head 1" in texts


def test_png_of_one_layer(headwise: Callable, run: Path, tmp_path: Path) -> None:
    path = tmp_path / "layer.png"
    assert (
        headwise("show", run, "--text", TEXT, "--layer", "0", "-o", path).out == f"drew 3 heads to {path}\n"
    )
    assert path.read_bytes().startswith(b"\x89PNG")


def test_json_after_drawing_names_the_file(headwise: Callable, run: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.svg"
    done = headwise("show", run, "--text", "ab", "--head", "0", "--out", path, "--json")
    assert json.loads(done.out)["file"] == str(path)
    assert path.exists()


def test_the_scale_is_alive(headwise: Callable, run: Path, tmp_path: Path) -> None:
    for scale in ("linear", "sqrt"):
        headwise("show", run, "--text", TEXT, "--scale", scale, "-o", tmp_path / f"{scale}.svg")
    assert "square-root scale" in (tmp_path / "sqrt.svg").read_text("utf-8")
    assert "square-root scale" not in (tmp_path / "linear.svg").read_text("utf-8")


def test_unknown_characters_can_be_left_out(headwise: Callable, run: Path) -> None:
    done = headwise("show", run, "--text", "aXb", "--unknown", "skip", "--json")
    assert json.loads(done.out)["tokens"] == ["a", "b"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--text", ""], "--text holds no tokens"),
        (["--text", "Q", "--unknown", "skip"], "--text holds no tokens"),
        (["--text", "aQ"], "'Q' (U+0051) at 1"),
        (["--text", "abcabcabc"], "--text has 9 tokens but this model sees at most 8 (block_size)"),
        (["--text", "ab", "--layer", "2"], "layer=2 does not exist; the layers are 0 … 1"),
        (["--text", "ab", "--head", "3"], "head=3 does not exist; the heads are 0 … 2"),
        (["--text", "ab", "--head", "-1"], "head=-1 does not exist"),
    ],
)
def test_mistakes_are_told_before_a_file_is_written(
    headwise: Callable, run: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    done = headwise("show", run, *arguments, "-o", tmp_path / "a.png")
    assert done.code == 2
    assert message in done.err
    assert done.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_suffix_is_told_before_the_model_is_read(headwise: Callable, tmp_path: Path) -> None:
    done = headwise("show", tmp_path / "missing", "--text", "a", "-o", tmp_path / "a.gif")
    assert done.code == 2
    assert "the name must end in .png or .svg" in done.err


def test_a_missing_model_is_named(headwise: Callable, tmp_path: Path) -> None:
    done = headwise("show", tmp_path / "missing", "--text", "a")
    assert done.code == 2
    assert str(tmp_path / "missing") in done.err


def test_a_model_without_attention_says_so(headwise: Callable, tmp_path: Path) -> None:
    tokenizer = Tokenizer.train("char", ["ab"])
    settings = PRESETS["bigram"].model_dump(exclude_unset=True)
    save_model(tmp_path / "run", GPT(GPTConfig(**settings, vocab_size=2)), tokenizer)
    done = headwise("show", tmp_path / "run", "--text", "ab")
    assert done.code == 2
    assert "no layer" in done.err
