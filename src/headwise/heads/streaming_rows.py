"""What a pass over scores is told about its queries and keys, and what it leaves of each query.

Letters: B batch, H query heads, T queries, S keys; i a query, j a key, s_j its score.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from headwise.heads.visibility import Visible

LOWEST = -1e30
"""Stands for a row that has seen nothing yet; minus infinity has no differences."""


def least_difference(dtype: torch.dtype) -> float:
    """Return below what score - top is raised to it: smaller weights take processors many times as long."""
    return math.log(torch.finfo(dtype).tiny) + 1.0


@dataclass(frozen=True, eq=False)
class Marks:
    """What is known about the queries and keys of a request."""

    counted: Tensor
    """(B, T) bool, the queries that count."""
    first: Tensor
    """(B,) int64, the first real key, -1 where there is none."""
    special: Tensor
    """(B, S) bool."""
    punctuation: Tensor
    """(B, S) bool."""
    corner: int | None
    """The key at the position of query 0, None where queries and keys are not of one sequence."""
    step: int = 1
    """How many keys further the next query stands."""

    @cached_property
    def set_apart(self) -> Tensor:
        """The keys that are no content: the first real one and special ones, (B, S) bool."""
        index = torch.arange(self.special.shape[1], device=self.first.device)
        return self.special | (index == self.first.unsqueeze(1))


@dataclass(eq=False)
class Rows:
    """What the pass leaves of each query: scores and sums of exp(score - top), all (B, H, T)."""

    top: Tensor
    """The largest visible score, LOWEST of a query that sees nothing."""
    total: Tensor
    """sum_j exp(s_j - top), the sink not among them."""
    moment: Tensor
    """sum_j (s_j - top) exp(s_j - top)."""
    distance: Tensor
    """sum_j |i - j| exp(s_j - top)."""
    punctuation: Tensor
    special: Tensor
    norm: Tensor
    """sum_j ‖f(x_j)‖ exp(s_j - top)."""
    special_norm: Tensor
    first: Tensor
    """The score of the first real key, -inf where it is not seen, as in those that follow."""
    near: dict[int, Tensor]
    """By their distance from the query (-1 is the one before), the scores of the keys around it."""
    content: Tensor
    """The largest score of keys that are content and at distance neither -1 nor 1."""
    apart: Tensor
    """The largest score of keys that are set apart and at distance neither -1 nor 1."""


@dataclass(frozen=True, eq=False)
class Swept:
    """What the pass found."""

    rows: Rows
    seen: Visible
    received: Tensor | None
    """(B, H, S), what keys receive from the queries that count, if it was asked for."""
    equal: Tensor
    """(B, H|1, S), what they would get from equal weights."""
