"""headwise generate, as a stranger runs it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from headwise.model import GPT, GPTConfig, generate, load_model, save_model
from headwise.text import Tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = Tokenizer.train("char", ["나는 학교에 버스로 갔다 abc"])  # no line break on purpose
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("model")
    save_model(path, GPT(GPTConfig(vocab_size=tokenizer.vocab_size, d_model=16, block_size=8)), tokenizer)
    return path


def test_the_same_seed_prints_the_same_text_as_the_library(headwise: Callable, folder: Path) -> None:
    arguments = ("--prompt", "학교", "--max-new-tokens", "20", "--seed", "3", "--top-k", "5")
    text, as_json = (
        headwise("generate", folder, *arguments),
        headwise("generate", folder, *arguments, "--json"),
    )
    assert text.code == as_json.code == 0, text.err + as_json.err
    result = json.loads(as_json.out.splitlines()[-1])
    expected = generate(*load_model(folder), "학교", max_new_tokens=20, seed=3, top_k=5)
    assert result["prompt"] + result["text"] == text.out.rstrip("\n") == "학교" + expected


def test_the_default_prompt_comes_from_the_vocabulary(headwise: Callable, folder: Path) -> None:
    done = headwise("generate", folder, "--max-new-tokens", "4", "--temperature", "0", "--json")
    assert done.code == 0, done.err
    assert len(json.loads(done.out)["prompt"]) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prompt", ""], "the prompt is empty"),
        (["--prompt", "abQ"], "'Q'"),
        (["--temperature", "-1"], "temperature"),
        (["--top-p", "0"], "top_p"),
        (["--top-k", "999"], "top_k=999"),
        (["--max-new-tokens", "0"], "max_new_tokens"),
        (["--device", "tpu"], "device 'tpu'"),
    ],
)
def test_a_bad_request_is_one_line_on_stderr(
    headwise: Callable, folder: Path, arguments: list[str], message: str
) -> None:
    done = headwise("generate", folder, *arguments)
    assert done.code == 2
    assert done.out == ""
    assert done.err.startswith("headwise: ")
    assert message in done.err
    assert done.err.count("\n") == 1


def test_a_missing_model_says_how_to_make_one(headwise: Callable, tmp_path: Path) -> None:
    done = headwise("generate", tmp_path / "nowhere")
    assert done.code == 2
    assert "headwise train --out" in done.err
