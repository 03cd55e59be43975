"""Attention maps on paper: one head large, or all heads as a grid, as PNG or SVG."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Patch
from numpy.typing import NDArray
from rich.cells import cell_len

from headwise.report.fonts import Lettering, lettering
from headwise.report.maps import AttentionMaps, Scale, attention_maps, check_scale
from headwise.report.tables import shorten

# Hidden keys are darker than any weight and hatched, so that "may not be read" never looks like "read as 0".
_HIDDEN: dict[str, Any] = {"facecolor": "#17171c", "edgecolor": "#44444f", "hatch": "////", "linewidth": 0.0}
_LONGEST_LABEL = 16  # terminal columns, so that a Hangul syllable counts twice
_LARGEST_CELL, _LONGEST_SIDE = 0.42, 10.0  # inches
_SMALLEST_PITCH = 8.0  # points between labels; closer ones are thinned out
_NUMBERED_CELLS = 12  # tokens up to which the weights are written into the cells
_QUIET = "#555555"


def heatmaps(
    weights: Any,
    labels: Sequence[str],
    *,
    key_labels: Sequence[str] | None = None,
    visible: Any = None,
    layer: int | None = None,
    head: int | None = None,
    scale: Scale = "linear",
) -> Figure:
    """Draw attention weights: rows are queries, columns are keys, colours run from 0 to 1 in every map.

    One head is drawn large with its tokens as labels; several are drawn as a grid, layers down and heads
    across. Labels are taken literally (`$` and `_` are no mathematics) and set in installed fonts that have
    their characters.

    Args:
        weights, labels, key_labels, visible: see `attention_maps`.
        layer, head: which to draw, counted from 0; None draws all.
        scale: colour by the weight or, to see small weights, by its square root. The colour bar says which.

    Returns:
        A figure of its own, not known to pyplot; write it with `figures.save_figure`.

    Raises:
        ValueError: see `attention_maps`; or no such layer, head or scale.
    """
    check_scale(scale)
    maps = attention_maps(weights, labels, key_labels=key_labels, visible=visible)
    chosen = maps.select(layer, head)
    norm = Normalize(0, 1) if scale == "linear" else PowerNorm(0.5, 0, 1)
    if len(chosen) == 1:
        return _draw_one(maps, *chosen[0], norm)
    return _draw_grid(maps, chosen, norm)


def viridis() -> Colormap:
    """The colour map of every attention map: perceptually even, readable by the colour-blind."""
    return matplotlib.colormaps["viridis"]


def _draw_one(maps: AttentionMaps, layer: int, head: int, norm: Normalize) -> Figure:
    weights = maps.layers[layer][head]
    rows, columns = weights.shape
    letters = lettering((*maps.queries, *maps.keys))
    cell = min(_LARGEST_CELL, _LONGEST_SIDE / max(rows, columns))
    figure = Figure(figsize=(cell * columns + 2.8, cell * rows + 2.0), layout="constrained")
    axes = figure.add_subplot()
    image = _image(axes, weights, maps.visible, norm)
    _label(axes, "y", maps.queries, letters, cell)
    _label(axes, "x", maps.keys, letters, cell)
    axes.xaxis.set_ticks_position("top")
    axes.xaxis.set_label_position("top")
    axes.set_xlabel("key: the token looked at", color=_QUIET)
    axes.set_ylabel("query: the token that looks", color=_QUIET)
    if max(rows, columns) <= _NUMBERED_CELLS:
        _number(axes, weights, maps.visible, norm)
    axes.set_title(f"Layer {layer}, head {head}", fontweight="bold", pad=12)
    _add_bar(figure, [axes], image, norm)
    _explain_hidden(figure, maps)
    return figure


def _draw_grid(maps: AttentionMaps, chosen: list[tuple[int, int]], norm: Normalize) -> Figure:
    layers = sorted({layer for layer, _ in chosen})
    heads = sorted({head for _, head in chosen})
    side = min(1.9, 16 / max(len(layers), len(heads)))
    figure = Figure(figsize=(side * len(heads) + 1.6, side * len(layers) + 1.2), layout="constrained")
    grid = figure.subplots(len(layers), len(heads), squeeze=False)
    for row, layer in enumerate(layers):
        for column, head in enumerate(heads):
            axes = grid[row, column]
            axes.set_xticks([])
            axes.set_yticks([])
            if (layer, head) in chosen:
                _image(axes, maps.layers[layer][head], maps.visible, norm)
            else:  # layers may have different numbers of heads
                axes.set_frame_on(False)
            if row == 0:
                axes.set_title(f"head {head}", fontsize=9)
            if column == 0:
                axes.set_ylabel(f"layer {layer}", fontsize=9)
    _add_bar(figure, list(grid.flat), ScalarMappable(norm, viridis()), norm)
    figure.suptitle("Each head: rows (queries) look at columns (keys)", fontsize=10, color=_QUIET)
    _explain_hidden(figure, maps)
    return figure


def _image(
    axes: Axes, weights: NDArray[np.float32], visible: NDArray[np.bool_], norm: Normalize
) -> AxesImage:
    axes.patch.set(**_HIDDEN)
    axes.spines[:].set_color("#999999")
    shown = np.ma.masked_where(~visible, weights.clip(0, 1))
    return axes.imshow(shown, cmap=viridis(), norm=norm, interpolation="nearest", aspect="equal")


def _label(axes: Axes, which: str, texts: Sequence[str], letters: Lettering, cell: float) -> None:
    pitch = cell * 72  # points from one token to the next
    step = int(np.ceil(_SMALLEST_PITCH / pitch))
    ticks = range(0, len(texts), step)
    shown = [shorten(letters.legible(texts[i]), _LONGEST_LABEL) for i in ticks]
    options: dict[str, Any] = {
        "parse_math": False,
        "usetex": False,
        "fontfamily": [*letters.families, "sans-serif"],
        "fontsize": min(9.5, 0.8 * pitch * step),
    }
    if which == "x":
        upright = max(map(cell_len, shown)) <= 2 and pitch * step >= 10
        axes.set_xticks(ticks, shown, rotation=0 if upright else 90, **options)
    else:
        axes.set_yticks(ticks, shown, **options)
    axes.tick_params(length=2, color="#999999")


def _number(axes: Axes, weights: NDArray[np.float32], visible: NDArray[np.bool_], norm: Normalize) -> None:
    for i, j in zip(*np.nonzero(visible), strict=True):
        weight = float(weights[i, j])
        colour = "black" if norm(weight) > 0.5 else "white"
        axes.text(float(j), float(i), f"{weight:.2f}", ha="center", va="center", color=colour, fontsize=8)


def _add_bar(figure: Figure, axes: list[Axes], mappable: ScalarMappable, norm: Normalize) -> None:
    bar = figure.colorbar(mappable, ax=axes, shrink=0.8, aspect=28, pad=0.03)
    bar.set_label(
        "attention weight" + (" (square-root scale)" if isinstance(norm, PowerNorm) else ""), fontsize=9
    )
    bar.set_ticks([0, 0.25, 0.5, 0.75, 1])
    bar.ax.tick_params(labelsize=8)
    bar.outline.set_visible(False)


def _explain_hidden(figure: Figure, maps: AttentionMaps) -> None:
    if not maps.visible.all():
        patch = Patch(label="hidden: this key cannot be read", **_HIDDEN)
        figure.legend(handles=[patch], loc="outside lower center", frameon=False, fontsize=8)
