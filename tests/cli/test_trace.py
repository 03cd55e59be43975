"""headwise trace."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from rich.cells import cell_len


def test_the_default_is_the_classic_layer(headwise: Callable) -> None:
    lines = headwise("trace").out.splitlines()
    assert lines[0] == "B=32  T=128  D=512  H=8  G=8  K=64  V=64"
    assert "scores   scores   (B, H, T, T)  (32, 8, 128, 128)" in lines
    table = lines[3:-2]
    square = [line.split()[0] for line in table if line.count("128") == 2]
    assert square == ["scores", "weights"]
    assert len({cell_len(line[: line.rindex("(")]) for line in table}) == 1
    assert "T·T: 4,194,304 numbers each" in lines[-1]


def test_cross_attention_and_grouped_heads(headwise: Callable) -> None:
    out = headwise("trace", "--batch", "2", "--kv-heads", "2", "--context-length", "77").out
    assert "split    k        (B, G, S, K)  (2, 2, 77, 64)" in out
    assert "scores   scores   (B, H, T, S)  (2, 8, 128, 77)" in out
    assert "T·S: 157,696 numbers each" in out


def test_json_holds_every_step(headwise: Callable) -> None:
    done = headwise("trace", "--batch", "1", "--length", "3", "--d-model", "4", "--heads", "2", "--json")
    (line,) = done.out.splitlines()
    steps = json.loads(line)["steps"]
    assert steps[0] == {"step": "project", "name": "q", "letters": "B T H·K", "shape": [1, 3, 4]}
    assert [step["shape"] for step in steps if step["name"] == "scores"] == [[1, 2, 3, 3]]


def test_sizes_that_fit_no_machine_can_be_asked_for(headwise: Callable) -> None:
    done = headwise("trace", "--batch", "4096", "--length", "1000000", "--d-model", "16384", "--heads", "128")
    assert done.code == 0
    assert "(4096, 128, 1000000, 1000000)" in done.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--heads", "7"], ["512", "7", "4", "8"]),
        (["--batch", "0"], ["--batch must be at least 1, got 0"]),
        (["--context-length", "0"], ["--context-length must be at least 1, got 0"]),
        (["--kv-heads", "3"], ["n_kv_head", "3", "8"]),
    ],
)
def test_impossible_sizes_are_one_line(headwise: Callable, arguments: list[str], words: list[str]) -> None:
    done = headwise("trace", *arguments)
    assert done.code == 2
    assert done.err.count("\n") == 1
    for word in words:
        assert word in done.err
