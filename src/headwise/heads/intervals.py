"""Means over texts with their intervals, and correlation of ranks.

Letters: M texts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.student_t import t_quantile


@dataclass(frozen=True)
class Estimate:
    """A mean per token, with the ends of its 95 % interval, NaN where there is none."""

    mean: float
    low: float
    high: float


def per_token(sums: Tensor, counts: Tensor) -> Estimate:
    """Estimate a mean per token from texts, which are the sample.

    The ratio Σ_t s_t / Σ_t c_t with the interval of Student's t over the residuals s_t - ratio · c_t
    (Cochran, Sampling Techniques, 1977, eq. 6.13); with equal counts this is the interval of the texts' mean.
    Texts without a token say nothing; fewer than two with some make no interval.

    sums: (M,) per text, of paired differences as a rule; counts: (M,) tokens.
    """
    there = counts > 0
    sums, counts = sums[there].double(), counts[there].double()
    texts, total = len(counts), float(counts.sum())
    if texts == 0:
        return Estimate(math.nan, math.nan, math.nan)
    mean = float(sums.sum()) / total
    if texts == 1:
        return Estimate(mean, math.nan, math.nan)
    residuals = sums - mean * counts
    error = math.sqrt(texts / (texts - 1) * float((residuals**2).sum())) / total
    half = t_quantile(0.95, texts - 1) * error
    return Estimate(mean, mean - half, mean + half)


def rank_correlation(a: Tensor, b: Tensor) -> float:
    """Return Spearman's ρ of two series (M,): Pearson's r of their ranks, ties sharing their mean rank.

    NaN where a series is constant or shorter than two.
    """
    if a.shape != b.shape or a.ndim != 1:
        raise ValueError(f"two series of one length are needed, got {tuple(a.shape)} and {tuple(b.shape)}")
    if bool(a.isnan().any() or b.isnan().any()):
        raise ValueError("a series holds NaN, which has no rank")
    x, y = (r - r.mean() for r in (_ranks(a), _ranks(b)))
    spread = float(x.norm() * y.norm())
    return float(x @ y) / spread if spread else math.nan


def _ranks(series: Tensor) -> Tensor:
    _, place, counts = torch.unique(series.double(), return_inverse=True, return_counts=True)
    last = counts.cumsum(0)
    mean: Tensor = (last - counts + last - 1).double() / 2
    ranks: Tensor = mean[place]
    return ranks
