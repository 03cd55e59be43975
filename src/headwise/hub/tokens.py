"""Texts as a batch of token ids, with what is known about each token.

Letters: B texts, T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class TokenBatch:
    """Texts of different lengths side by side, padded on the right or on the left."""

    ids: Tensor
    """(B, T) int64."""
    real: Tensor
    """(B, T) bool, False for padding. The real tokens of a text are neighbours."""
    special: Tensor
    """(B, T) bool, True for tokens such as <s>, [CLS] and [SEP]."""
    punctuation: Tensor
    """(B, T) bool, True for tokens that are punctuation only."""
