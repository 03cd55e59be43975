"""What a drawn map shows: the weights themselves, literal labels, and hidden keys that are not zeros."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from headwise.report.heatmap import heatmaps, viridis

HIDDEN = (0x17, 0x17, 0x1C)


def maps_of(figure: Figure) -> list[Axes]:
    return [axes for axes in figure.axes if axes.get_images()]


def pixels_of(figure: Figure) -> Callable[[Axes, int, int], tuple[int, ...]]:
    """Draw, and read the colour in a corner of the cell (query, key), clear of any number in it."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    image = np.asarray(canvas.buffer_rgba())

    def pixel(axes: Axes, query: int, key: int) -> tuple[int, ...]:
        x, y = axes.transData.transform((key - 0.35, query - 0.35))
        return tuple(int(v) for v in image[image.shape[0] - 1 - round(y), round(x), :3])

    return pixel


def colour(level: float) -> tuple[int, ...]:
    return tuple(round(255 * v) for v in viridis()(level)[:3])


@pytest.mark.parametrize("scale", ["linear", "sqrt"])
def test_each_cell_has_the_colour_of_its_weight_on_a_scale_from_0_to_1(
    causal_weights: Callable, scale: str
) -> None:
    weights = causal_weights(2, 2, 5)
    figure = heatmaps(weights, list("abcde"), visible=np.tri(5, dtype=bool), layer=1, head=0, scale=scale)
    (axes,) = maps_of(figure)
    pixel = pixels_of(figure)
    for query in range(5):
        for key in range(query + 1):
            weight = float(np.float32(weights[1, 0, query, key]))
            expected = colour(weight if scale == "linear" else weight**0.5)
            np.testing.assert_allclose(pixel(axes, query, key), expected, atol=2)


def test_the_future_is_darker_than_a_weight_of_zero() -> None:
    figure = heatmaps(np.eye(4), list("abcd"), visible=np.tri(4, dtype=bool))
    (axes,) = maps_of(figure)
    pixel = pixels_of(figure)
    zero, hidden = pixel(axes, 3, 0), pixel(axes, 0, 3)
    assert zero == colour(0.0)
    assert hidden != zero
    assert max(hidden) <= 0x4F
    assert axes.get_images()[0].get_array().mask.tolist() == (~np.tri(4, dtype=bool)).tolist()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["hidden: this key cannot be read"]


def test_an_encoder_without_a_mask_shows_its_upper_triangle() -> None:
    weights = np.array([[0.25, 0.75], [0.5, 0.5]])
    figure = heatmaps(weights, ["a", "b"])
    (axes,) = maps_of(figure)
    np.testing.assert_allclose(pixels_of(figure)(axes, 0, 1), colour(0.75), atol=2)
    assert not figure.legends


def test_rows_are_queries_and_columns_are_keys_with_their_tokens() -> None:
    figure = heatmaps(np.full((2, 3), 1 / 3), ["q0", "q1"], key_labels=["k0", "k1", "k2"])
    (axes,) = maps_of(figure)
    assert [t.get_text() for t in axes.get_yticklabels()] == ["q0", "q1"]
    assert [t.get_text() for t in axes.get_xticklabels()] == ["k0", "k1", "k2"]
    assert axes.get_xlabel().startswith("key")
    assert axes.get_ylabel().startswith("query")
    assert axes.yaxis_inverted(), "the first query is at the top"


@pytest.mark.parametrize("label", ["$x_1$", "$", "\\frac{1", "a_b^c", "<s>", "%d", "{}"])
def test_labels_are_literal_text(label: str) -> None:
    figure = heatmaps(np.ones((1, 1)), [label])
    FigureCanvasAgg(figure).draw()
    tick = maps_of(figure)[0].get_yticklabels()[0]
    assert tick.get_text() == label
    assert not tick.get_parse_math()


def test_small_maps_carry_their_numbers_but_hidden_cells_none(causal_weights: Callable) -> None:
    weights = causal_weights(1, 1, 3)
    figure = heatmaps(weights, list("abc"), visible=np.tri(3, dtype=bool))
    written = [text.get_text() for text in maps_of(figure)[0].texts]
    assert written == [f"{weights[0, 0, i, j]:.2f}" for i in range(3) for j in range(i + 1)]


def test_labels_of_long_texts_are_thinned_evenly_and_stay_at_their_tokens() -> None:
    labels = [f"t{i}" for i in range(200)]
    (axes,) = maps_of(heatmaps(np.eye(200), labels))
    ticks = axes.get_yticks().astype(int).tolist()
    assert 30 < len(ticks) < 100
    assert len(set(np.diff(ticks))) == 1
    assert [t.get_text() for t in axes.get_yticklabels()] == [labels[i] for i in ticks]


def test_long_labels_are_cut() -> None:
    (axes,) = maps_of(heatmaps(np.ones((1, 1)), ["x" * 100]))
    assert axes.get_yticklabels()[0].get_text() == "x" * 15 + "…"


def test_the_grid_has_layers_down_and_heads_across(causal_weights: Callable) -> None:
    weights = causal_weights(2, 3, 4)
    figure = heatmaps(weights, list("abcd"), visible=np.tri(4, dtype=bool))
    axes = maps_of(figure)
    assert len(axes) == 6
    assert [a.get_title() for a in axes[:3]] == ["head 0", "head 1", "head 2"]
    assert [axes[0].get_ylabel(), axes[3].get_ylabel()] == ["layer 0", "layer 1"]
    for at, a in enumerate(axes):
        shown = a.get_images()[0]
        assert shown.get_clim() == (0, 1)
        np.testing.assert_allclose(shown.get_array().filled(0), weights[at // 3, at % 3], atol=1e-6)


def test_a_ragged_grid_leaves_gaps() -> None:
    eye = np.eye(2)
    figure = heatmaps([np.stack([eye]), np.stack([eye, eye])], list("ab"))
    assert len(maps_of(figure)) == 3


def test_one_layer_or_one_head_of_all_layers_can_be_asked_for(causal_weights: Callable) -> None:
    weights = causal_weights(3, 2, 4)
    row = maps_of(heatmaps(weights, list("abcd"), layer=2))
    column = maps_of(heatmaps(weights, list("abcd"), head=1))
    np.testing.assert_allclose(row[1].get_images()[0].get_array(), weights[2, 1], atol=1e-6)
    assert [a.get_ylabel() for a in column] == ["layer 0", "layer 1", "layer 2"]
    np.testing.assert_allclose(column[2].get_images()[0].get_array(), weights[2, 1], atol=1e-6)


def test_the_scale_is_named_on_the_bar_and_unknown_ones_refused() -> None:
    assert heatmaps(np.eye(2), list("ab")).axes[-1].get_ylabel() == "attention weight"
    bar = heatmaps(np.eye(2), list("ab"), scale="sqrt").axes[-1]
    assert bar.get_ylabel() == "attention weight (square-root scale)"
    with pytest.raises(ValueError, match="scale must be one of"):
        heatmaps(np.eye(2), list("ab"), scale="log")  # type: ignore[arg-type]
