"""Plots of losses: of runs as they trained, and of variants side by side."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headwise.report.fonts import Lettering, lettering

_MOST_POINTS = 400  # a longer training curve is averaged down to this


def loss_curves(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """Training loss (thin) and validation loss (with points) of one or several runs by step.

    Args:
        runs: name → records as `headwise.training.read_metrics` returns them.

    Raises:
        ValueError: no runs.
    """
    if not runs:
        raise ValueError("there are no runs to plot")
    letters = lettering(runs)
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for index, (name, records) in enumerate(runs.items()):
        prefix = f"{letters.legible(name)}: " if name else ""
        steps = [(r["step"], r["loss"]) for r in records if r["event"] == "step"]
        validations = [(r["step"], r["loss"]) for r in records if r["event"] == "validation"]
        if steps:
            x, y = zip(*_averaged(steps), strict=True)
            axes.plot(x, y, color=f"C{index}", linewidth=0.8, alpha=0.6, label=f"{prefix}training")
        if validations:
            x, y = zip(*validations, strict=True)
            axes.plot(x, y, color=f"C{index}", marker="o", markersize=3, label=f"{prefix}validation")
    _finish(axes, letters, "loss (nats per token)")
    return figure


def comparison_plot(comparison: Mapping[str, Any]) -> Figure:
    """Variants of a comparison: validation loss by step (each seed thin, their mean thick), and the paired
    difference to the first variant with its 95 % interval.

    Args:
        comparison: as `headwise.training.Comparison.to_json` returns it.
    """
    variants = comparison["variants"]
    letters = lettering([variant["name"] for variant in variants])
    names = [letters.legible(variant["name"]) for variant in variants]
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for index, variant in enumerate(variants):
        colour = f"C{index}"
        for curve in variant["curves"]:
            left.plot(curve["steps"], curve["losses"], color=colour, linewidth=0.6, alpha=0.5)
        steps, means = _mean_curve(variant["curves"])
        left.plot(steps, means, color=colour, linewidth=2, label=names[index])
    _finish(left, letters, "validation loss (nats per token)")
    others = list(enumerate(variants))[1:]
    for index, variant in others:
        pairs = zip(variant["losses"], variants[0]["losses"], strict=True)
        differences = [loss - first for loss, first in pairs]
        right.plot(differences, [index] * len(differences), ".", color=f"C{index}", alpha=0.5)
        low, high = variant["interval"] or (variant["difference"], variant["difference"])
        around = [[variant["difference"] - low], [high - variant["difference"]]]
        right.errorbar(variant["difference"], index, xerr=around, fmt="o", capsize=4, color=f"C{index}")
    right.axvline(0, color="grey", linewidth=0.8)
    right.set_yticks([i for i, _ in others], [names[i] for i, _ in others], fontfamily=letters.families)
    right.set_ylim(len(variants) - 0.5, 0.5)
    right.set_xlabel(f"loss minus that of {names[0]}", fontfamily=letters.families)
    right.set_title("left of 0 is better; bars: 95 % intervals", fontsize="medium")
    return figure


def _finish(axes: Axes, letters: Lettering, label: str) -> None:
    axes.set_xlabel("step")
    axes.set_ylabel(label)
    axes.grid(alpha=0.3)
    axes.legend(prop={"family": letters.families})


def _averaged(points: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
    """At most `_MOST_POINTS` points, each the mean of as many neighbours."""
    size = -(-len(points) // _MOST_POINTS)
    parts = [points[start : start + size] for start in range(0, len(points), size)]
    return [(statistics.fmean(s for s, _ in part), statistics.fmean(v for _, v in part)) for part in parts]


def _mean_curve(curves: Sequence[Mapping[str, Any]]) -> tuple[list[int], list[float]]:
    """Mean over the seeds at the steps that all of them reached."""
    by_step = [dict(zip(curve["steps"], curve["losses"], strict=True)) for curve in curves]
    steps = sorted(set.intersection(*(set(losses) for losses in by_step)))
    return steps, [statistics.fmean(losses[step] for losses in by_step) for step in steps]
