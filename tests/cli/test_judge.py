"""headwise judge."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import torch

from headwise.hub.origin import write_origin
from headwise.model import GPT, GPTConfig, load_model, save_model
from headwise.text import Tokenizer

TEXT = "the quick brown fox 12 jumps over.\n the lazy dog sits there. " * 6
FAST = ("--no-timing", "--quiet", "--recall-rows", "4", "--recall-power", "1", "--skip", "0")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, make_recaller: Callable) -> Path:
    """A model that recalls, one that forgets some letters, and one of another tokenizer."""
    folder = tmp_path_factory.mktemp("models")
    for name, knows in (("parent", None), ("forgets", 24)):
        subject = make_recaller(knows=knows)
        save_model(folder / name, subject.gpt, subject.tokenizer)
    other = Tokenizer.from_alphabet("abc")
    write_origin(folder / "forgets", str(folder / "parent"))
    save_model(folder / "other", GPT(GPTConfig(vocab_size=3, d_model=8, n_head=2)), other)
    (folder / "text.txt").write_text(TEXT, "utf-8")
    return folder


def test_everything_is_in_one_table_one_plot_and_json(
    headwise: Callable, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    out, plot = tmp_path / "t.csv", tmp_path / "p.png"
    timing = ("--timing", "--seconds", "0", "--length", "40")
    done = headwise(
        "judge", "parent", "forgets", "--data", "text.txt", *FAST, *timing, "--check-probe", "-o", out,
        "--plot", plot, "--json",
    )  # fmt: skip
    assert done.code == 0, done.err
    result = json.loads(done.out.splitlines()[-1])
    parent, child = result["models"]
    assert (parent["name"], child["name"]) == ("parent", "forgets")
    assert parent["cache_bytes"] == parent["predicted"] == 2 * 2 * 4 * 40 * 80 * 4
    assert parent["speed"]["decode"]["median"] > 0
    assert result["cache_length"] == 40
    assert result["check"]["valid"]
    assert [r["pairs"] for r in result["recall"] if "gaps" not in r] == [4, 8, 16]
    assert all(r["shares"][0] == 1.0 >= r["shares"][1] and r["verdict"] == "" for r in result["recall"])
    assert all(r["shares"][1] < 1.0 for r in result["recall"] if "gaps" not in r)
    assert result["recall_tokens"]["keys"] == list("02468acegikmoqsuwy")
    assert "no pass keys were asked for: parent has no tokens for" in result["notes"][0]
    assert (result["file"], result["plot"]) == (str(out), str(plot))
    assert re.search(r" threads?, PyTorch ", result["machine"])
    table = pd.read_csv(out)
    assert table[table["measure"] == "cache_bytes"]["value"].tolist() == [parent["cache_bytes"]] * 2
    assert plot.stat().st_size > 20_000


def test_the_terminal_gets_a_column_for_each_model_as_wide_as_it_is(
    headwise: Callable, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "60")
    done = headwise("judge", "forgets", "parent", "parent", "parent", "--data", "text.txt", *FAST)
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert [line.split() for line in lines if line.startswith(" " * 20)] == [
        ["forgets", "parent", "parent"],
        ["forgets", "parent"],
    ]
    told = "cannot judge, as the parent itself is right in less than 95% there: recall of 4, 8, 16 pairs"
    assert told in " ".join(lines)
    assert done.out.count("cannot judge") == 1
    table = [line for line in lines if not line.startswith(("recall: ", "     ", "note: "))]
    assert max(map(len, table)) <= 60
    assert any("the parent does not recall what was drawn from its vocabulary" in line for line in lines)


def test_options_reach_what_they_speak_of(
    headwise: Callable, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    base = ("judge", "parent", "--text", TEXT, "--no-timing", "--quiet", "--json")

    def run(*options: str) -> dict:  # type: ignore[type-arg]
        done = headwise(*base, *options)
        assert done.code == 0, done.err
        return json.loads(done.out.splitlines()[-1])

    result = run(
        "--recall-keys", "abcde", "--recall-values", "12345", "--recall-pairs", "2,5",
        "--recall-power", "0.5,2", "--recall-length", "40", "--recall-blank", ".", "--no-recall-answers",
        "--recall-gaps", "10,20", "--recall-rows", "3", "--tokens", "160",
        "--skip", "30", "--length", "12", "--seed", "5",
    )  # fmt: skip
    whole = [r for r in result["recall"] if "gaps" not in r]
    assert [(r["pairs"], r["power"], r["asked"]) for r in whole] == [
        (2, 0.5, 6), (5, 0.5, 15), (2, 2.0, 6), (5, 2.0, 15)
    ]  # fmt: skip
    assert {tuple(r["gaps"]) for r in result["recall"] if "gaps" in r} == {(0, 10), (10, 20), (20, 41)}
    assert whole[0]["chance"] == 0.2
    assert result["recall_tokens"] == {"keys": list("abcde"), "values": list("12345")}
    assert (result["skipped"], result["tokens"], result["cache_length"]) == (30, 158, 12)
    assert result["models"][0]["speed"] is None
    none = run("--no-recall", "--no-passkey")
    assert (none["recall"], none["passkey"], none["notes"]) == ([], [], [])
    assert none["skipped"] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("parent", "other"), "parent has 39 tokens and other 3; models are judged on the same tokens"),
        (("parent", "--text", "a b c"), "give either --text or --data, not both"),
        (("parent", "--tokens", "1"), "--tokens must be at least 2, got 1"),
        (("parent", "--skip", "-1"), "--skip must be at least 0, got -1"),
        (("parent",), "the first 24,000 are to be left out; give more text, or leave out only what models"),
        (
            ("parent", "--skip", "0", "--tokens", "40"),
            "at least 2 rows of text, got 1, of 40 tokens; give more",
        ),
        (("parent", "--no-recall", "--check-probe"), "--no-recall asks for no recall, so leave out"),
        (("parent", "--no-recall", "--recall-rows", "64"), "asks for no recall, so leave out --recall-rows"),
        (("parent", "--no-passkey", "--passkey-tries", "3"), "no pass keys, so leave out --passkey-tries"),
        (("parent", "--seconds", "3"), "--no-timing times nothing, so leave out --seconds"),
        (("parent", "--skip", "0", "--passkey-tries", "2"), "no pass keys can be asked for: parent has no"),
        (("parent", "--passkey-tries", "0"), "--passkey-tries must be at least 1, got 0"),
        (
            ("parent", "--skip", "0", "--recall-power", "nan"),
            "power must be numbers above 0, got rows=64, pairs=4",
        ),
        (("parent", "--skip", "0", "--recall-power", "inf"), "power must be numbers above 0"),
        (("parent", "--skip", "0", "--recall-power", "1e9"), "leaves places that no question ever gets"),
        (
            ("parent", "--skip", "0", "--recall-blank", "한"),
            "blank '한' has no effect: rows as long as their pairs",
        ),
        (
            ("parent", "--skip", "0", "--recall-length", "40", "--recall-blank", ""),
            "'' is 0 tokens to parent",
        ),
        (
            ("parent", "--skip", "0", "--recall-keys", "", "--recall-values", "a"),
            "at least one character each",
        ),
        (("parent", "--recall-gaps", "8,8"), "--recall-gaps must rise and be above 0, got '8,8'"),
        (("parent", "--recall-gaps", "-1,8"), "--recall-gaps must rise and be above 0, got '-1,8'"),
        (("parent", "--seed", "-1"), "--seed must be from 0 to 2^63 - 1, got -1"),
        (("parent", "--seed", str(2**64)), "--seed must be from 0 to 2^63 - 1, got 18446744073709551616"),
        (("parent", "--timing", "--seconds", "inf"), "--seconds must be a number of at least 0, got inf"),
        (("parent", "--timing", "--seconds", "nan"), "--seconds must be a number of at least 0, got nan"),
        (("parent", "--skip", "0", "--length", "0"), "length must lie in 1"),
        (("forgets", "-o", "forgets/made_from.json"), "is a part of the model forgets; give another name"),
        (("parent", "--recall-pairs", "4,8,4"), "--recall-pairs names 4 twice; name each number once"),
        (("parent", "--recall-power", "1,0.5,1.0"), "--recall-power names 1 twice; name each number once"),
        (("parent", "--recall-pairs", "x"), "--recall-pairs must be numbers with commas, got 'x'"),
        (("parent", "--skip", "0", "--recall-keys", "a"), "give keys and values both, or neither"),
        (("parent", "--skip", "0", "--passkey"), "no pass keys can be asked for: parent has no tokens"),
        (("parent", "--plot", "p.pdf"), "cannot draw 'p.pdf'"),
        (("parent", "-o", "t.xls"), "cannot write 't.xls'"),
        (("parent", "nowhere/at/all"), "nowhere/at/all"),
    ],
)
def test_mistakes_are_one_line(
    arguments: tuple[str, ...],
    message: str,
    headwise: Callable,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(folder)
    done = headwise("judge", *arguments, "--data", "text.txt", "--no-timing")
    assert done.code == 2
    assert message in done.err
    assert len(done.err.splitlines()) == 1


def test_models_of_different_tokenizers_are_compared_by_bytes_when_losses_alone_are_asked_for(
    headwise: Callable, folder: Path, tmp_path: Path
) -> None:
    bpe = Tokenizer.train("bpe", [TEXT], vocab_size=270)
    torch.manual_seed(0)
    save_model(tmp_path / "bpe", GPT(GPTConfig(vocab_size=270, d_model=8, n_head=2, n_layer=1)), bpe)
    data = ("--data", folder / "text.txt", "--skip", "40")
    done = headwise("judge", folder / "parent", tmp_path / "bpe", *data)
    assert done.code == 2
    assert "bits per byte, with --loss-only" in done.err
    out = tmp_path / "t.csv"
    done = headwise("judge", folder / "parent", tmp_path / "bpe", *data, "--loss-only", "-o", out, "--json")
    assert done.code == 0, done.err
    result = json.loads(done.out.splitlines()[-1])
    assert result["bytes"] == len(TEXT) - 40 - 32
    ours, other = (model["bits_per_byte"] for model in result["models"])
    assert result["models"][1]["more"] == pytest.approx(other - ours)
    assert pd.read_csv(out)["bits_per_byte"].tolist() == pytest.approx([ours, other])
    told = headwise("judge", folder / "parent", tmp_path / "bpe", *data, "--loss-only", "-q").out
    assert f"{ours:.4f}" in told
    assert f"on the same {result['bytes']:,} bytes of" in told
    for extra in ("--recall-pairs=4", "--passkey", "--plot=p.png", "--unknown=skip"):
        done = headwise("judge", folder / "parent", "--loss-only", extra)
        assert done.code == 2
        assert "--loss-only compares losses on every byte alone, so leave out --" in done.err


def test_a_hugging_face_folder_is_judged_beside_ours(
    headwise: Callable, folder: Path, tmp_path: Path
) -> None:
    tokenizer = Tokenizer.train("char", [TEXT])
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=tokenizer.vocab_size, n_layer=2, n_head=4, d_model=16, block_size=32))
    save_model(tmp_path / "ours", model, tokenizer)
    assert headwise("export", tmp_path / "ours", "-o", tmp_path / "theirs").code == 0
    done = headwise(
        "judge", tmp_path / "ours", tmp_path / "theirs", "--data", folder / "text.txt", *FAST, "--timing",
        "--seconds", "0", "--json",
    )  # fmt: skip
    assert done.code == 0, done.err
    ours, theirs = json.loads(done.out.splitlines()[-1])["models"]
    assert abs(theirs["text"]["more"]) < 1e-5
    for name in ("cache_bytes", "predicted"):
        assert ours[name] == theirs[name] == 2 * 2 * 16 * 32 * 4
    assert ours["parameters"] == theirs["parameters"]


def test_a_parent_without_heads_has_no_cache_to_share(
    headwise: Callable, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    heads = ",".join(f"{layer}.{head}" for layer in range(2) for head in range(4))
    numbers = ("--data", "text.txt", "--tokens", "80", "--held-out", "80")
    done = headwise("prune", "parent", "--heads", heads, *numbers, "-o", tmp_path / "none")
    assert done.code == 0, done.err
    plot, lean = tmp_path / "p.png", ("--no-timing", "--no-recall", "--quiet")
    done = headwise(
        "judge", tmp_path / "none", "parent", "--data", "text.txt", "--skip", "0", *lean, "--plot", plot
    )
    assert done.code == 0, done.err
    (line,) = [line for line in done.out.splitlines() if "share of the parent's" in line]
    assert line.split()[-1] == "–"
    assert plot.stat().st_size > 10_000


def test_a_child_with_damaged_weights_is_not_judged(
    headwise: Callable, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    model, tokenizer = load_model(folder / "parent")
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    save_model(tmp_path / "broken", model, tokenizer)
    done = headwise("judge", "parent", tmp_path / "broken", "--data", "text.txt", *FAST)
    assert done.code == 2
    assert "broken gives numbers that are not finite (NaN or infinite)" in done.err
    assert len(done.err.splitlines()) == 1
