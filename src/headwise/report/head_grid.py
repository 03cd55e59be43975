"""All heads of a model at once: a row per layer, a cell per head, coloured by a number, marked by role."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from numpy.typing import NDArray
from rich.console import Console
from rich.style import Style
from rich.text import Text

from headwise.report.heatmap import viridis

if TYPE_CHECKING:
    import pandas as pd

_QUIET = "#555555"
_ABSENT = "#e6e6ea"
_LARGEST_CELL, _LONGEST_SIDE = 0.5, 12.0  # inches
_SHADES = " .:-=+*#%@"


@dataclass(frozen=True)
class HeadGrid:
    """One number and one mark for each head; layers may have different numbers of heads."""

    values: NDArray[np.float64]
    """(layers, heads), NaN for heads that do not exist or have no number."""
    marks: list[list[str]]
    """(layers, heads), a character or nothing."""
    title: str
    unit: str
    signed: bool
    """Whether 0 is the middle of the colours."""

    @property
    def span(self) -> tuple[float, float]:
        """The numbers at the ends of the colours."""
        known = self.values[np.isfinite(self.values)]
        if not known.size:
            return (-1.0, 1.0) if self.signed else (0.0, 1.0)
        if self.signed:
            most = float(np.abs(known).max()) or 1.0
            return -most, most
        low, high = min(0.0, float(known.min())), float(known.max())
        return (low, high) if high > low else (low, low + 1.0)

    def shade(self, value: float) -> str:
        """Return a character that is the darker the larger the number; of a signed one, a sign before it."""
        low, high = self.span
        level = abs(value) / high if self.signed else (value - low) / (high - low)
        shade = _SHADES[min(int(level * len(_SHADES)), len(_SHADES) - 1)]
        return f"{'-' if value < 0 else '+'}{shade}" if self.signed else shade

    def colours(self) -> tuple[Colormap, Normalize]:
        """Return the colours and how numbers are placed on them."""
        low, high = self.span
        return colormaps["PuOr_r"] if self.signed else viridis(), Normalize(low, high)


def head_grid(
    table: pd.DataFrame,
    column: str,
    *,
    marks: Mapping[tuple[int, int], str] | None = None,
    title: str | None = None,
    unit: str = "",
    signed: bool = False,
) -> HeadGrid:
    """Arrange one column of a table with the columns layer and head.

    marks: what to write into the cell of (layer, head).
    signed: colour by the distance from 0 to both sides.

    Raises ValueError for a table without such a column, and one without rows.
    """
    import pandas as pd

    for name in ("layer", "head", column):
        if name not in table.columns:
            raise ValueError(f"the table has no column {name!r}; it has {', '.join(map(str, table.columns))}")
    if table.empty:
        raise ValueError("the table has no rows, so there is no head to draw")
    numbers = pd.to_numeric(table[column]).to_numpy(dtype=float)
    layers, heads = table["layer"].astype(int).tolist(), table["head"].astype(int).tolist()
    values = np.full((max(layers) + 1, max(heads) + 1), np.nan)
    written = [["" for _ in range(max(heads) + 1)] for _ in range(max(layers) + 1)]
    for layer, head, number in zip(layers, heads, numbers, strict=True):
        values[layer, head] = number
        written[layer][head] = (marks or {}).get((layer, head), "")
    return HeadGrid(values, written, title or column, unit, signed)


def grid_figure(grid: HeadGrid) -> Figure:
    """Draw the grid; write it with `figures.save_figure`."""
    rows, columns = grid.values.shape
    cell = min(_LARGEST_CELL, _LONGEST_SIDE / max(rows, columns))
    figure = Figure(figsize=(max(4.0, columns * cell + 1.8), max(2.0, rows * cell + 1.2)))
    figure.set_layout_engine(ConstrainedLayoutEngine())
    axes = figure.subplots()
    colours, norm = grid.colours()
    colours = colours.with_extremes(bad=_ABSENT)
    axes.imshow(np.ma.masked_invalid(grid.values), cmap=colours, norm=norm, aspect="equal")
    for layer in range(rows):
        for head in range(columns):
            if mark := grid.marks[layer][head]:
                value = grid.values[layer, head]
                shade = colours(norm(value)) if np.isfinite(value) else (1.0, 1.0, 1.0, 1.0)
                axes.text(
                    head,
                    layer,
                    mark,
                    ha="center",
                    va="center",
                    fontsize=max(4.0, cell * 22),
                    color=_ink(shade),
                    parse_math=False,
                )
    axes.set_xticks(range(0, columns, -(-columns // 24)))
    axes.set_yticks(range(0, rows, -(-rows // 32)))
    axes.tick_params(length=0, labelsize=8, colors=_QUIET)
    axes.set_xlabel("head", color=_QUIET, fontsize=9)
    axes.set_ylabel("layer", color=_QUIET, fontsize=9)
    axes.set_title(grid.title, fontsize=10, loc="left", parse_math=False)
    for side in axes.spines.values():
        side.set_visible(False)
    bar = figure.colorbar(ScalarMappable(norm, colours), ax=axes, shrink=0.8, pad=0.02)
    bar.set_label(grid.unit, color=_QUIET, fontsize=9)
    bar.ax.tick_params(labelsize=8, colors=_QUIET)
    return figure


def print_grid(grid: HeadGrid, *, console: Console | None = None) -> None:
    """Print the grid: coloured cells with marks; without colour, shades beside the marks."""
    console = console or Console(highlight=False)
    colour = console.color_system is not None and not console.no_color
    colours, norm = grid.colours()
    rows, columns = grid.values.shape
    margin = max(len("layer"), len(str(rows - 1))) + 1
    width = 3
    console.print(Text(grid.title, Style(bold=True)), soft_wrap=True)
    numbers = "".join(str(head).rjust(width - 1) + " " for head in range(columns))
    console.print(Text("layer".ljust(margin) + numbers.rstrip()), soft_wrap=True)
    for layer in range(rows):
        line = Text(str(layer).rjust(margin - 1) + " ")
        for head in range(columns):
            value, mark = grid.values[layer, head], grid.marks[layer][head]
            if not np.isfinite(value):
                line.append(f" {mark or ' '} ", Style())
            elif colour:
                shade = colours(norm(value))
                ink = _ink(shade)
                line.append(f" {mark or ' '} ", Style(color=ink, bgcolor=_hex(shade)))
            else:
                line.append(f"{grid.shade(value)}{mark or ' '}".rjust(width), Style())
        if not colour:
            line.rstrip()
        console.print(line, soft_wrap=True)
    console.print(_legend(grid, colour), soft_wrap=True)


def _legend(grid: HeadGrid, colour: bool) -> Text:
    low, high = grid.span
    colours, _ = grid.colours()
    if grid.signed and not colour:
        number = f"{high:.3g} {grid.unit}".rstrip()
        return Text(f"0 {_SHADES} {number}, with its sign before it")
    text = Text(f"{low:.3g} ")
    if colour:
        for level in np.linspace(0, 1, 24):
            text.append(" ", Style(bgcolor=_hex(colours(float(level)))))
    else:
        text.append(_SHADES)
    return text.append(f" {high:.3g} {grid.unit}".rstrip())


def _ink(shade: tuple[float, float, float, float]) -> str:
    """Return the colour of text that stands out more: both do so equally at a luminance of 0.18."""
    return "black" if _luminance(shade) > 0.18 else "white"


def _hex(shade: tuple[float, float, float, float]) -> str:
    return "#" + "".join(f"{round(255 * part):02x}" for part in shade[:3])


def _luminance(shade: tuple[float, float, float, float]) -> float:
    """Return how bright a colour is, 0 to 1 (WCAG 2.2, relative luminance)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in shade[:3]]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
