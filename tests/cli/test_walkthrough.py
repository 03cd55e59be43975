"""headwise walkthrough."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest
from rich.cells import cell_len

WORDS = "나는 학교에 버스로 갔다"
WEIGHTS = """\
weights: row looks at column (H, T, T) = (2, 4, 4)
head 0
          나는  학교에  버스로  갔다
  나는    0.13    0.04    0.57  0.26
  학교에  0.12    0.69    0.01  0.18
  버스로  0.16    0.71    0.02  0.11
  갔다    0.08    0.80    0.01  0.11
head 1
          나는  학교에  버스로  갔다
  나는    0.05    0.89    0.03  0.03
  학교에  0.06    0.49    0.10  0.34
  버스로  0.56    0.01    0.34  0.10
  갔다    0.22    0.09    0.46  0.22
"""


def test_seed_1_prints_the_published_tables_aligned(headwise: Callable) -> None:
    done = headwise("walkthrough", "--words", WORDS, "--d-model", "8", "--heads", "2", "--seed", "1")
    assert done.code == 0
    assert WEIGHTS in done.out
    assert len({cell_len(line) for line in WEIGHTS.splitlines() if line.startswith(" ")}) == 1
    assert "-1.19  -2.72  -0.72   2.36" in done.out
    assert "256 weights in W_Q, W_K, W_V and W_O" in done.out
    for shape in (
        "q = x W_Q: what each word looks for (T, D) = (4, 8)",
        "q of each head (H, T, K) = (2, 4, 4)",
    ):
        assert shape in done.out


def test_these_are_the_defaults(headwise: Callable) -> None:
    assert headwise("walkthrough").out == headwise("walkthrough", "--words", WORDS).out


def test_causal_hides_later_words(headwise: Callable) -> None:
    out = headwise("walkthrough", "--causal").out
    assert "  나는    1.00    0.00    0.00  0.00\n" in out
    assert "  학교에   0.49    2.26       ·     ·\n" in out
    assert out != headwise("walkthrough").out


def test_json_is_one_object_with_every_array(headwise: Callable) -> None:
    done = headwise("walkthrough", "--causal", "--json")
    (line,) = done.out.splitlines()
    result = json.loads(line)
    assert result["words"] == WORDS.split()
    assert result["parameters"] == 256
    assert len(result["arrays"]) == 16
    assert result["arrays"]["scores"][0][0][1:] == [None, None, None]
    assert result["arrays"]["weights"][1][0] == [1, 0, 0, 0]
    assert result["arrays"]["q_heads"][0][0] == pytest.approx([-1.19, -2.72, -0.72, 2.36], abs=0.005)


def test_long_rows_of_numbers_are_cut_but_never_the_words(headwise: Callable) -> None:
    out = headwise("walkthrough", "--words", " ".join(f"w{i}" for i in range(20)), "--d-model", "64").out
    lines = out.splitlines()
    assert max(map(len, lines)) < 200
    assert sum("w19" in line and "w0" in line for line in lines) == 4
    assert any(line.endswith("…") for line in lines)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--words", "  "], "--words holds no words"),
        (["--heads", "3"], "d_model=8 cannot be divided among n_head=3 heads; head counts that fit: 2 or 4"),
        (["--d-model", "0"], "d_model must be at least 1, got 0"),
        (["--seed", "-1"], "--seed must be from 0"),
    ],
)
def test_mistakes_are_one_line(headwise: Callable, arguments: list[str], message: str) -> None:
    done = headwise("walkthrough", *arguments)
    assert done.code == 2
    assert done.out == ""
    assert message in done.err


def test_the_command_runs_without_torch() -> None:
    code = (
        "import sys; sys.argv = ['headwise', 'walkthrough']\nfrom headwise.cli import main\n"
        "try: main()\nexcept SystemExit as stop: sys.exit('torch' in sys.modules or stop.code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "0.57" in done.stdout
