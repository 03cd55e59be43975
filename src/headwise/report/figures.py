"""Figures into files: PNG and SVG, whole or not at all, with text that stays text."""

from __future__ import annotations

import io
from pathlib import Path
from typing import IO, Any

import matplotlib
from matplotlib.figure import Figure

from headwise.files import check_place, replacing

SUFFIXES = (".png", ".svg")


def check_picture(path: Path) -> None:
    """Raise a ValueError unless `path` names a PNG or SVG file that can be written; ask before long work."""
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"cannot draw {path.name!r}: the name must end in {' or '.join(SUFFIXES)}")
    check_place(path)


def save_figure(figure: Figure, path: Path) -> None:
    """Write `figure` as PNG or SVG, by the suffix; `path` is replaced whole or not at all.

    Text in an SVG stays text. The same figure gives the same bytes.

    Raises:
        ValueError: another suffix, or `path` is a folder.
    """
    check_picture(path)
    with replacing(path) as temporary:
        _write(figure, temporary, path.suffix.lower()[1:])


def figure_svg(figure: Figure) -> str:
    """`figure` as the text of an SVG file, for the page."""
    text = io.StringIO()
    _write(figure, text, "svg")
    return text.getvalue()


def _write(figure: Figure, target: Path | IO[str], kind: str) -> None:
    options: dict[str, Any] = {"metadata": {"Date": None}} if kind == "svg" else {"dpi": 150}
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "headwise"}):
        figure.savefig(target, format=kind, bbox_inches="tight", **options)
