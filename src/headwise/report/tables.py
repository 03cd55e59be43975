"""Tables: for the terminal, where a Hangul syllable is two columns wide, and as files."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size

from headwise.files import check_place, replacing

if TYPE_CHECKING:
    import pandas as pd

TABLE_SUFFIXES = (".csv", ".json", ".parquet")


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


def check_table_file(path: Path) -> None:
    """Raise ValueError unless `path` names a file that `save_table` can write; ask before long work."""
    if path.suffix not in TABLE_SUFFIXES:
        raise ValueError(f"cannot write {path.name!r}: the name must end in {', '.join(TABLE_SUFFIXES)}")
    check_place(path)
    if path.suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise ValueError(
            "writing .parquet needs the package pyarrow; pip install 'headwise[parquet]', "
            "or write .csv or .json"
        )


def save_table(table: pd.DataFrame, path: Path | str) -> None:
    """Write a table as CSV, JSON (a list of objects, NaN as null) or Parquet, by the suffix, all or nothing.

    Raises ValueError as `check_table_file` does.
    """
    path = Path(path)
    check_table_file(path)
    with replacing(path) as temporary:
        if path.suffix == ".csv":
            table.to_csv(temporary, index=False, lineterminator="\n")
        elif path.suffix == ".json":
            table.to_json(temporary, orient="records", double_precision=15, force_ascii=False, indent=1)
        else:
            table.to_parquet(temporary, engine="pyarrow", index=False)
