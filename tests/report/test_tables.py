"""Plain tables that line up in any script."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path

import pandas as pd
import pytest
from rich.cells import cell_len

from headwise.report import save_table
from headwise.report.tables import aligned, pad, shorten


def test_columns_line_up_under_double_width_hangul() -> None:
    lines = aligned([["", "나는", "a"], ["학교에", "0.13", "1"], ["x", "10", "22"]])
    assert lines == ["        나는   a", "학교에  0.13   1", "x         10  22"]
    assert {cell_len(line) for line in lines} == {16}


def test_columns_named_as_left_start_at_the_left() -> None:
    assert aligned([["a", "b", "c"], ["aa", "bb", "cc"]], left=(0, 1)) == ["a   b    c", "aa  bb  cc"]


def test_rows_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match=r"equally long, got lengths \[1, 2\]"):
        aligned([["a"], ["a", "b"]])


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [
        ("abc", 3, "abc"),
        ("abcd", 3, "ab…"),
        ("학교에서", 8, "학교에서"),
        ("학교에서", 7, "학교에…"),
        ("학교에서", 6, "학교…"),
    ],
)
def test_shorten_counts_terminal_columns(text: str, width: int, expected: str) -> None:
    assert shorten(text, width) == expected
    assert cell_len(pad(expected, width)) == width


def test_files_hold_the_numbers_in_full(tmp_path: Path) -> None:
    table = pd.DataFrame({"head": [0, 1], "머리": [1 / 3, math.nan]})
    save_table(table, tmp_path / "a.csv")
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "a.csv"), table)
    save_table(table, str(tmp_path / "a.json"))
    read = json.loads((tmp_path / "a.json").read_text("utf-8"))
    assert [row["머리"] for row in read] == [pytest.approx(1 / 3, abs=1e-15), None]


def test_parquet_gives_the_table_back_exactly(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    table = pd.DataFrame({"head": [0, 1], "머리": [1 / 3, math.nan], "role": ["first token", "귀납"]})
    save_table(table, tmp_path / "a.parquet")
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "a.parquet"), table)


def test_parquet_says_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyarrow" else found(name))
    with pytest.raises(ValueError, match="pyarrow"):
        save_table(pd.DataFrame({"a": [1]}), tmp_path / "a.parquet")
    assert not list(tmp_path.iterdir())
