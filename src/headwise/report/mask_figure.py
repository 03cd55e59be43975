"""A mask on paper: which query may see which key, as PNG or SVG."""

from __future__ import annotations

import textwrap

from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch

from headwise.attention.mask_picture import HIDDEN, SEEN, SOME, Survey, survey
from headwise.attention.masks import Mask

_COLOURS = {HIDDEN: "#17171c", SOME: "#2f7f86", SEEN: "#5ec9b5"}
_NAMES = {SEEN: "seen", SOME: "some of them seen", HIDDEN: "hidden"}
_SIDE = 128  # cells
_DRAWN = 4  # grids
_LARGEST_CELL, _LONGEST_SIDE = 0.36, 6.0  # inches
_MOST_LINES = 32  # cells up to which they are ruled apart
_MOST_NUMBERS = 16  # on an axis
_QUIET = "#555555"


def mask_figure(
    mask: Mask,
    T: int,
    S: int,
    offset: int | None = None,
    *,
    sequence: int | None = None,
    head: int | None = None,
) -> Figure:
    """Draw who may see whom: a row per query, a column per key; long masks are thinned and say so.

    T, S, offset, sequence, head and what is raised: as for `Mask.picture`.
    Returns a figure of its own, not known to pyplot; write it with `figures.save_figure`.
    """
    found = survey(mask, T, S, offset, side=_SIDE)
    chosen = found.choose(sequence, head)
    drawn = chosen[:_DRAWN]
    across = min(2, len(drawn))
    down = -(-len(drawn) // across)
    rows, columns = found.levels.shape[2:]
    cell = min(_LARGEST_CELL, _LONGEST_SIDE / across / max(rows, columns, 1))
    width, height = max(cell * columns + 0.9, 3.4 / across), max(cell * rows + 0.9, 1.4)
    notes = [
        *textwrap.wrap(f"A query sees {found.words}", max(40, int(across * width * 11))),
        *filter(None, [found.sizes(), found.scale()]),
        *([f"{len(chosen) - _DRAWN} more are not drawn"] if len(chosen) > _DRAWN else []),
    ]
    figure = Figure(
        figsize=(across * width + 0.4, down * height + 0.22 * len(notes) + 0.6),
        layout=ConstrainedLayoutEngine(h_pad=0.12),
    )
    grid = figure.subplots(down, across, squeeze=False)
    for axes, (b, h) in zip(grid.flat, drawn, strict=False):
        _draw(axes, found, b, h)
    for axes in grid.flat[len(drawn) :]:
        axes.set_axis_off()
    figure.suptitle("\n".join(notes), fontsize=9, color=_QUIET)
    levels = [level for level in _NAMES if level != SOME or found.thinned]
    handles = [Patch(facecolor=_COLOURS[level], edgecolor="#999999", label=_NAMES[level]) for level in levels]
    figure.legend(handles=handles, loc="outside lower center", frameon=False, fontsize=8, ncols=len(handles))
    return figure


def _draw(axes: Axes, found: Survey, sequence: int, head: int) -> None:
    levels = found.levels[sequence, head]
    rows, columns = levels.shape
    axes.imshow(
        levels.reshape(rows, columns) if levels.size else [[HIDDEN]],
        cmap=ListedColormap([_COLOURS[level] for level in (HIDDEN, SOME, SEEN)]),
        vmin=HIDDEN,
        vmax=SEEN,
        interpolation="nearest",
        aspect="equal",
        visible=bool(levels.size),
    )
    if max(rows, columns) <= _MOST_LINES:
        axes.hlines([i - 0.5 for i in range(rows + 1)], -0.5, columns - 0.5, color="white", linewidth=0.8)
        axes.vlines([j - 0.5 for j in range(columns + 1)], -0.5, rows - 0.5, color="white", linewidth=0.8)
    for count, block, put in (
        (rows, found.block[0], axes.set_yticks),
        (columns, found.block[1], axes.set_xticks),
    ):
        ticks = range(0, count, max(1, -(-count // _MOST_NUMBERS)))
        put(list(ticks), [str(tick * block) for tick in ticks])
    axes.xaxis.set_ticks_position("top")
    axes.xaxis.set_label_position("top")
    axes.tick_params(length=0, labelsize=8)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("key", color=_QUIET, fontsize=9)
    axes.set_ylabel("query", color=_QUIET, fontsize=9)
    title = "\n".join(filter(None, [found.title(sequence, head), found.blind_rows(sequence, head)]))
    if title:
        axes.set_title(title, fontsize=9, pad=8)
