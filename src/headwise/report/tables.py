"""Tables for the terminal, aligned by what a terminal shows: a Hangul syllable is two columns wide."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size


def pad(text: str, width: int, *, right: bool = False) -> str:
    """Fill `text` with spaces to `width` terminal columns; `right` puts the text at the right edge."""
    space = " " * max(width - cell_len(text), 0)
    return space + text if right else text + space


def shorten(text: str, width: int) -> str:
    """Cut `text` to `width` terminal columns; what was cut off is shown as `…`."""
    return text if cell_len(text) <= width else set_cell_size(text, width - 1).rstrip() + "…"


def aligned(rows: Sequence[Sequence[str]], *, left: Sequence[int] = (0,), gap: str = "  ") -> list[str]:
    """One line per row, columns aligned; columns listed in `left` to the left, the others to the right.

    Raises:
        ValueError: rows of different lengths.
    """
    if len({len(row) for row in rows}) > 1:
        raise ValueError(f"rows must be equally long, got lengths {sorted({len(row) for row in rows})}")
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [pad(text, widths[i], right=i not in left) for i, text in enumerate(row)]
        lines.append(gap.join(cells).rstrip())
    return lines
