"""Loss curves and the comparison plot: the right numbers in the right places."""

from __future__ import annotations

import io
from typing import Any

import matplotlib
import pytest

from headwise.report.curves import comparison_plot, loss_curves


def records(shift: float = 0.0, steps: int = 6) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"event": "validation", "step": 0, "loss": 4.0 + shift}]
    for step in range(1, steps + 1):
        found.append({"event": "step", "step": step, "loss": 4.0 + shift - 0.1 * step})
        if step % 3 == 0:
            found.append({"event": "validation", "step": step, "loss": 4.05 + shift - 0.1 * step})
    return found


def test_one_run_has_its_training_and_its_validation_curve() -> None:
    (axes,) = loss_curves({"": records()}).axes
    training, validation = axes.lines
    assert training.get_xdata().tolist() == [1, 2, 3, 4, 5, 6]
    assert training.get_ydata().tolist() == pytest.approx([3.9, 3.8, 3.7, 3.6, 3.5, 3.4])
    assert validation.get_xdata().tolist() == [0, 3, 6]
    assert validation.get_ydata().tolist() == pytest.approx([4.0, 3.75, 3.45])
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["training", "validation"]


def test_several_runs_are_told_apart_by_name_and_colour() -> None:
    (axes,) = loss_curves({"가": records(), "b": records(1.0)}).axes
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names[2:] == ["b: training", "b: validation"]
    assert axes.lines[0].get_color() == axes.lines[1].get_color() != axes.lines[2].get_color()


def test_a_run_without_validation_has_one_curve() -> None:
    (axes,) = loss_curves({"": [r for r in records() if r["event"] == "step"]}).axes
    assert len(axes.lines) == 1


def test_a_long_run_is_averaged_down() -> None:
    (axes,) = loss_curves({"": [{"event": "step", "step": s, "loss": float(s)} for s in range(1, 1001)]}).axes
    x, y = axes.lines[0].get_data()
    assert len(x) <= 400
    assert x[0] == y[0] == 2.0  # the mean of 1, 2, 3
    assert x.tolist() == y.tolist()


def test_no_runs_are_refused() -> None:
    with pytest.raises(ValueError, match="no runs"):
        loss_curves({})


def comparison(seeds: int = 2) -> dict[str, Any]:
    def variant(
        name: str, losses: list[float], difference: float, interval: list[float] | None
    ) -> dict[str, Any]:
        curves = [
            {"seed": seed, "steps": [0, 2, 4][: 3 - seed], "losses": [4.0 + seed, 3.0, 2.0][: 3 - seed]}
            for seed in range(seeds)
        ]
        return {
            "name": name,
            "losses": losses[:seeds],
            "difference": difference,
            "interval": interval if seeds > 1 else None,
            "curves": curves,
        }

    return {
        "variants": [
            variant("한 머리", [2.0, 2.2], 0.0, None),
            variant("여러 머리", [1.9, 2.0], -0.15, [-0.4, 0.1]),
        ]
    }


def test_the_comparison_shows_each_seed_their_mean_and_the_interval() -> None:
    left, right = comparison_plot(comparison()).axes
    each, other, mean = left.lines[:3]
    assert each.get_ydata().tolist() == [4.0, 3.0, 2.0]
    assert other.get_ydata().tolist() == [5.0, 3.0]
    assert mean.get_xdata().tolist() == [0, 2]  # where both seeds have been
    assert mean.get_ydata().tolist() == [4.5, 3.0]
    assert right.lines[0].get_xdata().tolist() == pytest.approx([-0.1, -0.2])
    (bar,) = right.collections
    ((start, end),) = bar.get_segments()
    assert (start[0], end[0]) == pytest.approx((-0.4, 0.1))
    assert len(right.get_yticklabels()) == 1


def test_one_seed_draws_no_bar() -> None:
    _, right = comparison_plot(comparison(seeds=1)).axes
    (bar,) = right.collections
    ((start, end),) = bar.get_segments()
    assert start[0] == end[0] == pytest.approx(-0.15)


def test_drawing_needs_no_window_and_leaves_the_backend_alone() -> None:
    before = matplotlib.rcParams["backend"]
    for figure in (loss_curves({"": records()}), comparison_plot(comparison())):
        picture = io.BytesIO()
        figure.savefig(picture, format="png")
        assert picture.getvalue().startswith(b"\x89PNG")
    assert matplotlib.rcParams["backend"] == before
