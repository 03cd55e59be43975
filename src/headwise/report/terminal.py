"""Attention maps on the terminal: coloured cells, or numbers and shades where there is no colour."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.colors import to_hex
from numpy.typing import NDArray
from rich.cells import cell_len
from rich.console import Console
from rich.style import Style
from rich.text import Text

from headwise.report.heatmap import viridis
from headwise.report.maps import AttentionMaps, Scale, attention_maps, check_scale
from headwise.report.tables import pad, shorten

_HIDDEN = "#17171c"
_LONGEST_LABEL = 16  # terminal columns
_TILE = 24  # cells along a side of a small map
_SHADES = " .:-=+*#%@"


def print_heatmap(
    weights: Any,
    labels: Sequence[str],
    *,
    key_labels: Sequence[str] | None = None,
    visible: Any = None,
    layer: int | None = None,
    head: int | None = None,
    scale: Scale = "linear",
    console: Console | None = None,
) -> None:
    """Print attention weights: rows are queries, columns are keys, colours run from 0 to 1.

    One head is printed with its labels, columns aligned also where labels are two columns wide; several
    are printed as small maps. Without colour, one head is printed in hundredths (100 is all the weight)
    and small maps in shades; `·` is a hidden key.

    Args:
        weights, labels, key_labels, visible: see `attention_maps`.
        layer, head: which to print, counted from 0; None prints all.
        scale: colour by the weight or by its square root.
        console: where to print; standard output by default.

    Raises:
        ValueError: see `attention_maps`; or no such layer, head or scale.
    """
    check_scale(scale)
    maps = attention_maps(weights, labels, key_labels=key_labels, visible=visible)
    chosen = maps.select(layer, head)
    console = console or Console(highlight=False)
    painter = _Painter(scale, colour=console.color_system is not None and not console.no_color)
    if len(chosen) == 1:
        lines = _one(maps, *chosen[0], painter, console)
    else:
        lines = _small_maps(maps, chosen, painter, console)
    for line in lines:
        console.print(line, no_wrap=True, overflow="ignore", crop=False)
    if painter.colour:
        console.print(painter.legend(bool(maps.visible.all())))


class _Painter:
    """Turns weights into styled cells."""

    def __init__(self, scale: Scale, *, colour: bool) -> None:
        self.scale = scale
        self.colour = colour
        self._palette = [to_hex(c) for c in viridis()(np.linspace(0, 1, 256))]

    def level(self, weight: float) -> float:
        """How far along the colours a weight lies, 0 to 1."""
        weight = min(max(weight, 0.0), 1.0)
        return weight**0.5 if self.scale == "sqrt" else weight

    def hex(self, weight: float, seen: bool) -> str:
        return self._palette[round(self.level(weight) * 255)] if seen else _HIDDEN

    def cell(self, weight: float, seen: bool, width: int) -> tuple[str, Style]:
        if self.colour:
            return " " * width, Style(bgcolor=self.hex(weight, seen))
        return (f"{100 * weight:.0f}" if seen else "·").rjust(width), Style()

    def shade(self, weight: float, seen: bool) -> str:
        return _SHADES[min(int(self.level(weight) * len(_SHADES)), len(_SHADES) - 1)] if seen else "·"

    def legend(self, all_visible: bool) -> Text:
        text = Text("0 ")
        for level in np.linspace(0, 1, 24):
            text.append(" ", Style(bgcolor=self._palette[round(float(level) * 255)]))
        text.append(" 1" + (" (square-root scale)" if self.scale == "sqrt" else ""))
        if not all_visible:
            text.append("   ").append("  ", Style(bgcolor=_HIDDEN)).append(" hidden")
        return text


def _one(maps: AttentionMaps, layer: int, head: int, painter: _Painter, console: Console) -> list[Text]:
    weights = maps.layers[layer][head]
    rows, columns = weights.shape
    digits = len(str(max(rows, columns) - 1))
    names = min(_LONGEST_LABEL, max(map(cell_len, maps.queries)))
    margin = digits + 1 + names + 1
    width = 4
    first = 0
    if painter.colour:
        width = 2 if margin + 2 * columns <= console.width else 1
        room = max(1, (console.width - margin) // width)
        first = max(0, columns - room)  # the newest keys are the ones to keep
    lines = [Text(f"Layer {layer}, head {head}: rows (queries) look at columns (keys)", Style(bold=True))]
    if first:
        lines.append(Text(f"columns {first} … {columns - 1} (no room for those before)"))
    if maps.keys != maps.queries:
        listing = "  ".join(f"{j} {text}" for j, text in enumerate(maps.keys) if j >= first)
        lines.append(Text(f"columns: {listing}"))
    for place in range(digits):  # column numbers are written downwards where cells are narrower than they
        lines.append(Text(" " * margin + _column_numbers(range(first, columns), width, digits, place)))
        if width > digits:
            break
    for i in range(rows):
        line = Text(f"{i:>{digits}} " + pad(shorten(maps.queries[i], names), names) + " ")
        for j in range(first, columns):
            line.append(*painter.cell(float(weights[i, j]), bool(maps.visible[i, j]), width))
        lines.append(line)
    return lines


def _column_numbers(numbers: range, width: int, digits: int, place: int) -> str:
    if width > digits:
        return "".join(str(j).rjust(width) for j in numbers)
    return "".join(str(j).rjust(digits)[place].rjust(width) for j in numbers)


def _small_maps(
    maps: AttentionMaps, chosen: list[tuple[int, int]], painter: _Painter, console: Console
) -> list[Text]:
    seen = _pool(maps.visible)
    tiles = [
        _tile(_pool(maps.layers[at][head]), seen, f"layer {at} head {head}", painter) for at, head in chosen
    ]
    width = max(line.cell_len for tile in tiles for line in tile)
    across = max(1, (console.width + 2) // (width + 2))
    lines = [Text("Each head: rows (queries) look at columns (keys)", Style(bold=True))]
    if max(maps.visible.shape) > _TILE:
        lines.append(Text("each cell shows the largest of several weights"))
    for start in range(0, len(tiles), across):
        if start:
            lines.append(Text())
        for parts in zip(*tiles[start : start + across], strict=True):
            line = Text()
            for part in parts:
                line.append_text(part).append(" " * (width - part.cell_len + 2))
            line.rstrip()
            lines.append(line)
    return lines


def _tile(weights: NDArray[Any], seen: NDArray[np.bool_], title: str, painter: _Painter) -> list[Text]:
    rows, columns = weights.shape
    lines = [Text(title)]
    if not painter.colour:
        for i in range(rows):
            lines.append(
                Text("".join(painter.shade(weights[i, j], bool(seen[i, j])) for j in range(columns)))
            )
        return lines
    for i in range(0, rows, 2):  # a half block shows two rows in one line, so that cells are nearly square
        line = Text()
        for j in range(columns):
            upper = painter.hex(float(weights[i, j]), bool(seen[i, j]))
            lower = painter.hex(float(weights[i + 1, j]), bool(seen[i + 1, j])) if i + 1 < rows else None
            line.append("▀", Style(color=upper, bgcolor=lower))
        lines.append(line)
    return lines


def _pool(values: NDArray[Any]) -> NDArray[Any]:
    """Shrink to at most `_TILE` cells a side, each the largest value (for visibility: any) of its block."""
    for axis in (0, 1):
        size = values.shape[axis]
        block = -(-size // _TILE)
        values = np.maximum.reduceat(values, range(0, size, block), axis=axis)
    return values
