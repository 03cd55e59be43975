"""Maps on the terminal: exact without colour, aligned in any script, coloured by weight."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex
from rich.cells import cell_len
from rich.console import Console

from headwise.report.heatmap import viridis
from headwise.report.terminal import print_heatmap

WEIGHTS = np.array([[1.0, 0, 0], [0.25, 0.75, 0], [0.004, 0.496, 0.5]])
CAUSAL = np.tri(3, dtype=bool)
WORDS = ["나는", " ", "go"]


def plain(*arguments: Any, width: int = 80, **options: Any) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    print_heatmap(*arguments, console=console, **options)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def coloured(
    *arguments: Any, width: int = 80, **options: Any
) -> list[list[tuple[str, str | None, str | None]]]:
    """The printed lines as (character, colour, background)."""
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=True,
        color_system="truecolor",
        record=True,
        no_color=False,
    )
    print_heatmap(*arguments, console=console, **options)
    lines: list[list[tuple[str, str | None, str | None]]] = [[]]
    for segment in console._record_buffer:
        style = segment.style
        colours = [c.name if c else None for c in (style.color, style.bgcolor)] if style else [None, None]
        for character in segment.text:
            if character == "\n":
                lines.append([])
            else:
                lines[-1].append((character, *colours))
    return lines


def test_one_head_without_colour_is_a_table_of_hundredths() -> None:
    assert plain(WEIGHTS, WORDS, visible=CAUSAL) == [
        "Layer 0, head 0: rows (queries) look at columns (keys)",
        "          0   1   2",
        "0 나는  100   ·   ·",
        "1 ␣      25  75   ·",
        "2 go      0  50  50",
    ]


def test_rows_line_up_under_double_width_labels() -> None:
    lines = plain(np.eye(4), ["학교에", "a", "😀", "a_very_long_token_indeed"])
    assert len({cell_len(line) for line in lines[1:]}) == 1


def test_one_head_in_colour_has_the_colour_of_each_weight() -> None:
    lines = coloured(WEIGHTS, WORDS, visible=CAUSAL)
    for query in range(3):
        cells = [background for _, _, background in lines[2 + query] if background]
        expected = [
            to_hex(viridis()(round(WEIGHTS[query, key] * 255))) if key <= query else "#17171c"
            for key in range(3)
        ]
        assert cells[::2] == expected
        assert cells[1::2] == expected


def test_square_root_scale_brightens_small_weights() -> None:
    lines = coloured(WEIGHTS, WORDS, visible=CAUSAL, scale="sqrt")
    assert lines[3][-2][2] == "#17171c"
    backgrounds = [background for _, _, background in lines[3] if background]
    assert backgrounds[0] == to_hex(viridis()(round(0.5 * 255)))
    assert "square-root scale" in "".join(character for character, *_ in lines[-2])


def test_a_narrow_terminal_keeps_the_newest_columns_and_says_so() -> None:
    lines = coloured(np.eye(50), ["x"] * 50, width=40)
    said = "".join(character for character, *_ in lines[1])
    assert said == "columns 15 … 49 (no room for those before)"
    last = [background for _, _, background in lines[-3] if background]
    assert len(last) == 35
    assert last[-1] == to_hex(viridis()(255))
    assert all(len(line) <= 40 for line in lines[2:-2])


def test_column_numbers_are_written_downwards_over_narrow_cells() -> None:
    lines = coloured(np.eye(12), ["x"] * 12)
    tens, ones = ("".join(character for character, *_ in line) for line in lines[1:3])
    assert tens.split() == ["1", "1"]
    assert ones.split() == [str(i % 10) for i in range(12)]


def test_all_heads_are_small_maps_side_by_side() -> None:
    both = np.stack([np.eye(3), np.tri(3, k=-1) + np.diag([1.0, 0, 0])]) / np.array([1, 1, 2]).reshape(3, 1)
    both[0, 2, 2] = 1
    assert plain(both, WORDS, visible=CAUSAL) == [
        "Each head: rows (queries) look at columns (keys)",
        "layer 0 head 0  layer 0 head 1",
        "@··             @··",
        " @·             @ ·",
        "  @             ++",
    ]


def test_large_maps_are_shrunk_to_the_largest_weight_of_each_block() -> None:
    weights = np.zeros((2, 48, 48))
    weights[0, 47, 1] = 1
    lines = plain(weights, ["x"] * 48, width=100)
    assert "each cell shows the largest of several weights" in lines
    assert lines[-1].rstrip() == "@"
    assert len(lines) == 3 + 24


def test_small_maps_in_colour_put_two_rows_in_a_line() -> None:
    lines = coloured(np.stack([np.eye(3), np.eye(3)]), WORDS)
    bright, dark = to_hex(viridis()(255)), to_hex(viridis()(0))
    assert lines[2][:3] == [("▀", bright, dark), ("▀", dark, bright), ("▀", dark, dark)]
    assert lines[3][:3] == [("▀", dark, None), ("▀", dark, None), ("▀", bright, None)]


def test_cross_attention_lists_its_columns() -> None:
    lines = plain(np.full((1, 2), 0.5), ["q"], key_labels=["나", "b"])
    assert lines[1] == "columns: 0 나  1 b"


def test_markup_in_tokens_is_printed_literally() -> None:
    lines = plain(np.eye(2), ["[red]", "[/red]"])
    assert lines[2].startswith("0 [red] ")
    assert lines[3].startswith("1 [/red]")


def test_unknown_heads_are_refused() -> None:
    with pytest.raises(ValueError, match="head=1 does not exist"):
        plain(WEIGHTS, WORDS, head=1)
