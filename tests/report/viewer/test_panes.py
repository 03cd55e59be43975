"""What of the maps fits into a page, and how exact it is there."""

from __future__ import annotations

import numpy as np
import pytest

from headwise.report.viewer.panes import Pane, binned, plan, quantised


def read(levels: np.ndarray) -> np.ndarray:
    return np.where(levels > 0, ((levels.astype(float) - 1) / 254) ** 2, np.nan)


def test_a_byte_keeps_a_weight_to_four_thousandths_and_tells_hidden_from_zero() -> None:
    weights = np.linspace(0, 1, 5001)
    levels = quantised(weights, np.ones(5001, dtype=bool))
    assert np.abs(read(levels) - weights).max() < 0.004
    assert read(levels)[0] == 0
    assert read(levels)[-1] == 1
    assert quantised(np.zeros(1), np.zeros(1, dtype=bool))[0] == 0


def test_a_text_that_fits_is_one_pane_and_a_causal_one_a_triangle() -> None:
    (whole,) = plan(256, 256, 144, causal=True)
    assert whole.triangle
    assert whole.cells == 256 * 257 // 2
    (square,) = plan(100, 100, 144, causal=False)
    assert square.cells == 10_000
    (oblong,) = plan(100, 30, 4, causal=True)
    assert not oblong.triangle


@pytest.mark.parametrize(("tokens", "heads"), [(512, 144), (2048, 144), (2048, 1024), (16_384, 4), (600, 1)])
def test_a_longer_text_stays_within_bounds(tokens: int, heads: int) -> None:
    panes = plan(tokens, tokens, heads, causal=True)
    assert sum(pane.cells for pane in panes) * heads <= 5_500_000
    *windows, overview = panes
    assert overview.block > 1
    assert max(overview.shape) <= 256
    assert windows
    assert windows[0].rows[0] == 0
    assert windows[-1].rows[1] == tokens or len(windows) == 1
    assert all(pane.rows == pane.columns for pane in windows)


def test_windows_are_as_wide_as_there_is_room() -> None:
    few = plan(2048, 2048, 16, causal=True)
    many = plan(2048, 2048, 144, causal=True)
    assert few[0].rows == (0, 512)
    assert many[0].rows == (0, 128)


def test_more_heads_than_a_page_holds_are_refused() -> None:
    with pytest.raises(ValueError, match="heads are too many"):
        plan(2048, 2048, 10_000_000, causal=True)


def test_block_maxima_are_of_seen_weights_and_blocks_unseen_are_hidden() -> None:
    weights = np.arange(25, dtype=np.float32).reshape(5, 5) / 25
    seen = np.tri(5, dtype=bool)
    cells = Pane((0, 5), (0, 5), 2, triangle=False).cut(weights, seen).reshape(3, 3)
    wanted = np.array([[6, np.nan, np.nan], [16, 18, np.nan], [21, 23, 24]]) / 25
    np.testing.assert_allclose(read(cells), wanted, atol=0.004)
    np.testing.assert_array_equal(
        Pane((0, 5), (0, 5), 2, triangle=True).cut(weights, seen), cells[np.tri(3, dtype=bool)]
    )


def test_a_long_curve_is_averaged_and_a_short_one_kept() -> None:
    np.testing.assert_array_equal(binned([1.0, 2.0]), np.float32([1, 2]))
    thin = binned(np.arange(1000.0), 10)
    np.testing.assert_allclose(thin, np.arange(10) * 100 + 49.5)
