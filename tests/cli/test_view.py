"""headwise view."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from headwise.model import GPT, GPTConfig, save_model
from headwise.text import Tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    tokenizer = Tokenizer.train("char", ["abc de fgh.\n"])
    model = GPT(GPTConfig(vocab_size=tokenizer.vocab_size, n_layer=2, n_head=2, d_model=16, block_size=32))
    path = tmp_path_factory.mktemp("view") / "model"
    save_model(path, model, tokenizer)
    return path


def test_view_writes_a_page_of_a_text(headwise: Callable[..., Any], folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    done = headwise("view", folder, "--text", "abc abc", "-o", out, "--json")
    assert done.code == 0
    result = json.loads(done.out)
    assert result == {"file": str(out), "bytes": out.stat().st_size, "tokens": 7, "heads": 4}


def test_view_measures_on_a_corpus_and_silences(
    headwise: Callable[..., Any], folder: Path, tmp_path: Path
) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("abc de fgh. " * 40)
    out = tmp_path / "page.html"
    done = headwise(
        "view",
        folder,
        "--data",
        corpus,
        "--texts",
        "3",
        "--length",
        "16",
        "--silence",
        "mean",
        "-o",
        out,
        "-q",
    )
    assert (done.code, done.out, done.err) == (0, "", "")
    page = out.read_text(encoding="utf-8")
    assert '"delta","low"' in page
    assert '"how":"mean"' in page
    assert "corpus.txt: 3" in page


def test_view_lets_the_model_go_on(headwise: Callable[..., Any], folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    done = headwise("view", folder, "--text", "abc", "--continue", "5", "-o", out, "--json")
    assert json.loads(done.out)["tokens"] == 8
    assert '"prompt":3' in out.read_text(encoding="utf-8")


def test_view_puts_another_model_beside(headwise: Callable[..., Any], folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    done = headwise("view", folder, "--text", "abc abc", "--beside", folder, "-o", out)
    assert (done.code, done.err) == (0, "")
    assert '"other":{' in out.read_text(encoding="utf-8")


def test_a_corpus_tells_what_heads_are_worth_where_that_is_cheap(
    headwise: Callable[..., Any], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus, out = tmp_path / "corpus.txt", tmp_path / "page.html"
    corpus.write_text("abc de fgh. " * 40)
    options = ["--data", corpus, "--texts", "3", "--length", "16", "-o", out]
    assert "note" not in headwise("view", folder, *options).out
    assert '"delta","low"' in out.read_text(encoding="utf-8")
    monkeypatch.setattr("headwise.cli.view._CHEAP", 10)
    assert "--silence zero" in headwise("view", folder, *options).out
    assert '"delta","low"' not in out.read_text(encoding="utf-8")


def test_view_takes_a_pair_of_texts(headwise: Callable[..., Any], folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    done = headwise("view", folder, "--text", "abc", "--second", "de", "-o", out, "--json")
    assert json.loads(done.out)["tokens"] == 5
    assert '"second":3' in out.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--second", "abc", "--data", "python-docs"], "give --text"),
        (["--text", "abc", "--second", " "], "neither empty"),
        (["--text", "abc", "--second", "de", "--continue", "2"], "leave out --second"),
        ([], "something to look at"),
        (["--text", "  "], "--text is empty"),
        (["--text", "abc", "--silence", "zero"], "give --data"),
        (["--text", "abc", "--texts", "4"], "--texts says what to take from a corpus; give --data"),
        (["--text", "abc", "--length", "64"], "--length says what to take from a corpus; give --data"),
        (["--text", "a" * 33], "reads at most 32"),
        (["--text", "Ω"], "Ω"),
        (["--text", "a", "--continue", "-1"], "--continue must be"),
        (["--text", "a" * 32, "--continue", "3"], "reads at most 32 tokens"),
        (["--text", "a", "--out", "/"], "is a folder"),
        (["--text", "a", "--out", "book.txt"], "must end in .html"),
    ],
)
def test_view_says_what_is_wrong(
    headwise: Callable[..., Any], folder: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    done = headwise("view", folder, "-o", tmp_path / "x.html", *arguments)
    assert done.code == 2
    assert message in done.err
    assert len(done.err.splitlines()) == 1
    assert not (tmp_path / "x.html").exists()


def test_view_of_no_model(headwise: Callable[..., Any], tmp_path: Path) -> None:
    done = headwise("view", tmp_path, "--text", "abc", "-o", tmp_path / "x.html")
    assert done.code == 2
    assert len(done.err.splitlines()) == 1


def test_the_way_out_that_unknown_characters_name_is_there(
    headwise: Callable[..., Any], folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "page.html"
    refused = headwise("view", folder, "--text", "abXc", "-o", out)
    assert refused.code == 2
    assert "--unknown skip" in refused.err
    done = headwise("view", folder, "--text", "abXc", "--unknown", "skip", "-o", out, "--json")
    assert json.loads(done.out)["tokens"] == 3
