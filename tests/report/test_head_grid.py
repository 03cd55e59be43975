"""The grid of heads: every number and mark stands where its head is."""

from __future__ import annotations

import io
import re

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from headwise.report.figures import figure_svg
from headwise.report.head_grid import grid_figure, head_grid, print_grid


def table() -> pd.DataFrame:
    # layer 1 has lost its head 1
    return pd.DataFrame(
        [(0, 0, 0.0), (0, 1, 0.5), (1, 0, 1.0), (1, 2, 0.25)], columns=["layer", "head", "score"]
    )


def printed(grid, **options) -> str:  # type: ignore[no-untyped-def]
    out = io.StringIO()
    print_grid(grid, console=Console(file=out, width=60, highlight=False, **options))
    return out.getvalue()


def test_numbers_stand_at_their_heads_and_gaps_stay_gaps() -> None:
    grid = head_grid(table(), "score", marks={(1, 0): "P"})
    np.testing.assert_array_equal(grid.values, [[0.0, 0.5, np.nan], [1.0, np.nan, 0.25]])
    assert grid.marks == [["", "", ""], ["P", "", ""]]
    assert grid.span == (0.0, 1.0)


def test_without_colour_shades_grow_with_the_number() -> None:
    lines = printed(head_grid(table(), "score", marks={(1, 0): "P"})).splitlines()
    assert lines[0] == "score"
    assert lines[1] == "layer  0  1  2"
    assert lines[3].startswith("    1  @P")
    assert lines[2].startswith("    0   ")  # nothing of it
    assert lines[4] == "0  .:-=+*#%@ 1"


def test_with_colour_the_ends_of_the_scale_are_the_ends_of_the_colours() -> None:
    text = printed(
        head_grid(table(), "score", marks={(1, 0): "P"}), force_terminal=True, color_system="truecolor"
    )
    assert re.search(r"\x1b\[30;48;2;253;231;37m P ", text)  # the brightest, with black ink
    assert "48;2;68;1;84m" in text


def test_signed_numbers_have_nothing_in_the_middle() -> None:
    grid = head_grid(
        pd.DataFrame({"layer": [0, 0], "head": [0, 1], "loss": [-0.1, 0.4]}), "loss", signed=True
    )
    _, norm = grid.colours()
    assert printed(grid).splitlines()[2:] == ["    0 -: +@", "0  .:-=+*#%@ 0.4, with its sign before it"]
    assert grid.span == (-0.4, 0.4)
    assert norm(0.0) == 0.5


@pytest.mark.parametrize("numbers", [[np.nan, np.nan], [0.0, 0.0], [0.3, 0.3]])
def test_numbers_that_span_nothing_still_have_a_scale(numbers: list[float]) -> None:
    for signed in (False, True):
        grid = head_grid(pd.DataFrame({"layer": [0, 0], "head": [0, 1], "x": numbers}), "x", signed=signed)
        low, high = grid.span
        assert low < high
        assert printed(grid)
        assert figure_svg(grid_figure(grid))


def test_marks_are_drawn_as_text_and_never_as_mathematics() -> None:
    svg = figure_svg(
        grid_figure(head_grid(table(), "score", marks={(0, 0): "$", (1, 0): "P"}, title="a $b$ <c>"))
    )
    assert ">P</text>" in svg
    assert ">$</text>" in svg
    assert "a $b$ &lt;c&gt;" in svg


def test_a_missing_column_or_an_empty_table_is_refused() -> None:
    with pytest.raises(ValueError, match="no column 'loss'; it has layer, head, score"):
        head_grid(table(), "loss")
    with pytest.raises(ValueError, match="no rows"):
        head_grid(table().iloc[:0], "score")
