"""Means per token with their intervals, and rank correlation, against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from headwise.heads.intervals import per_token, rank_correlation
from headwise.student_t import mean_interval


def test_with_equal_counts_it_is_the_interval_of_the_mean() -> None:
    values = [0.3, -0.1, 0.4, 0.2]
    counts = torch.full((4,), 7.0)
    estimate = per_token(torch.tensor(values, dtype=torch.float64) * 7, counts)
    assert (estimate.low, estimate.high) == pytest.approx(mean_interval(values))
    assert estimate.mean == pytest.approx(0.2)


def test_long_texts_weigh_more() -> None:
    estimate = per_token(torch.tensor([10.0, 0.0]), torch.tensor([10.0, 90.0]))
    assert estimate.mean == pytest.approx(0.1)
    # residuals ±9, error √(2/1 · 162) / 100 = 0.18, t of 0.95 with 1 degree 12.7062
    assert estimate.high - estimate.mean == pytest.approx(0.18 * 12.7062, rel=1e-4)
    assert estimate.mean - estimate.low == pytest.approx(0.18 * 12.7062, rel=1e-4)


def test_texts_without_tokens_say_nothing() -> None:
    sums, counts = torch.tensor([1.0, 0.0, 3.0]), torch.tensor([1.0, 0.0, 1.0])
    assert per_token(sums, counts) == per_token(sums[[0, 2]], counts[[0, 2]])
    nothing = per_token(torch.zeros(2), torch.zeros(2))
    assert math.isnan(nothing.mean)
    one = per_token(torch.tensor([1.0, 0.0]), torch.tensor([2.0, 0.0]))
    assert one.mean == 0.5
    assert math.isnan(one.low)
    assert math.isnan(one.high)


def test_ranks_correlate() -> None:
    rising = torch.tensor([1.0, 2.0, 3.0, 10.0])
    assert rank_correlation(rising, rising.exp()) == pytest.approx(1.0)
    assert rank_correlation(rising, -rising) == pytest.approx(-1.0)
    # 1 - 6·Σd²/(n(n²-1)) with d = 0, 1, 1, 0
    assert rank_correlation(rising, torch.tensor([0.0, 2.0, 1.0, 3.0])) == pytest.approx(0.8)
    # ties share rank 1.5: r of (1, 2, 3, 4) and (1.5, 1.5, 3, 4)
    assert rank_correlation(rising, torch.tensor([5.0, 5.0, 6.0, 7.0])) == pytest.approx(
        4.5 / (5 * 4.5) ** 0.5
    )
    assert math.isnan(rank_correlation(rising, torch.ones(4)))
    with pytest.raises(ValueError, match="one length"):
        rank_correlation(rising, rising[:2])
    with pytest.raises(ValueError, match="NaN"):
        rank_correlation(rising, rising * math.nan)
