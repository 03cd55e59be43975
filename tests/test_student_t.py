"""Student's t, against the printed tables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwise.student_t import mean_interval, t_probability, t_quantile


@pytest.mark.parametrize(
    ("confidence", "degrees", "expected"),
    [
        (0.95, 1, 12.706204736),
        (0.95, 2, 4.302652730),
        (0.95, 3, 3.182446305),
        (0.95, 4, 2.776445105),
        (0.95, 9, 2.262157163),
        (0.99, 10, 3.169272673),
        (0.90, 30, 1.697260887),
        (0.95, 99, 1.984216952),
    ],
)
def test_quantiles_are_those_of_the_tables(confidence: float, degrees: int, expected: float) -> None:
    assert t_quantile(confidence, degrees) == pytest.approx(expected, abs=1e-8)


@given(confidence=st.floats(0.01, 0.999), degrees=st.integers(1, 60))
def test_quantile_and_probability_undo_each_other(confidence: float, degrees: int) -> None:
    assert t_probability(t_quantile(confidence, degrees), degrees) == pytest.approx(confidence, abs=1e-12)


def test_the_interval_of_a_mean() -> None:
    # mean 3, standard deviation sqrt(2.5), 5 values, t = 2.776445
    low, high = mean_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (low + high) / 2 == pytest.approx(3)
    assert (high - low) / 2 == pytest.approx(2.776445105 * (2.5 / 5) ** 0.5)
    assert mean_interval([0.5, 0.5, 0.5]) == (0.5, 0.5)


def test_what_cannot_be_answered_is_refused() -> None:
    with pytest.raises(ValueError, match="at least two values, got 1"):
        mean_interval([1.0])
    with pytest.raises(ValueError, match="between 0 and 1"):
        t_quantile(1.0, 3)
    with pytest.raises(ValueError, match="degrees of freedom"):
        t_quantile(0.95, 0)
