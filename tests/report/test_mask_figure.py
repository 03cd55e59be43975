"""Masks on paper."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headwise.attention import Mask
from headwise.attention.mask_picture import HIDDEN, SEEN, SOME
from headwise.report.mask_figure import mask_figure


def cells(axes: Axes) -> Any:
    return np.asarray(axes.images[0].get_array())


def said(figure: Figure) -> str:
    title = figure.get_suptitle()
    return " ".join(title.split())


def test_rows_are_queries_and_columns_are_keys() -> None:
    figure = mask_figure(Mask.window(2), 3, 5)
    (axes,) = figure.axes
    wanted = np.where(Mask.window(2).to_tensor(3, 5).numpy(), SEEN, HIDDEN)
    assert (cells(axes) == wanted).all()
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("key", "query")
    assert "A query sees its own key and the one before it" in said(figure)
    assert "3 queries (rows) at positions 2 … 4, 5 keys (columns)" in said(figure)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["seen", "hidden"]


def test_each_sequence_has_its_grid_and_blind_queries_are_named() -> None:
    mask = Mask.lengths(torch.tensor([0, 2, 3])) & Mask.causal()
    figure = mask_figure(mask, 3, 3)
    drawn = [axes for axes in figure.axes if axes.images]
    assert [axes.get_title() for axes in drawn] == [
        "sequence 0\nqueries 0 … 2 see no key",
        "sequence 1",
        "sequence 2",
    ]
    table = mask.to_tensor(3, 3)
    for b, axes in enumerate(drawn):
        assert (cells(axes) == np.where(table[b, 0].numpy(), SEEN, HIDDEN)).all()
    assert len([axes for axes in mask_figure(mask, 3, 3, sequence=1).axes if axes.images]) == 1


def test_many_sequences_are_not_all_drawn_and_that_is_said() -> None:
    figure = mask_figure(Mask.lengths(torch.arange(7)), 2, 6)
    assert len([axes for axes in figure.axes if axes.images]) == 4
    assert "3 more are not drawn" in said(figure)


def test_a_long_mask_is_thinned_and_says_so() -> None:
    figure = mask_figure(Mask.causal(), 1000, 1000)
    (axes,) = figure.axes
    assert cells(axes).shape == (125, 125)
    assert (np.diag(cells(axes)) == SOME).all()
    assert "each cell stands for 8 × 8 pairs" in said(figure)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "seen",
        "some of them seen",
        "hidden",
    ]
    assert axes.get_xticklabels()[1].get_text() == "64"


@pytest.mark.parametrize(("T", "S"), [(0, 3), (3, 0), (0, 0)])
def test_empty_masks_are_drawn(T: int, S: int) -> None:
    assert f"{T} queries" in said(mask_figure(Mask.causal(), T, S))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="sequence=1 cannot be drawn"):
        mask_figure(Mask.causal(), 2, 2, sequence=1)
