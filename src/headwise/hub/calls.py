"""What an observer is shown each time a layer of attention runs.

Letters: B batch, H query heads, G key/value heads, T queries, S keys, K head width of q and k, V that of v.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from headwise.attention import Mask
from headwise.hub.layers import AttentionLayer


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """What one layer of attention was given, and what its heads gave."""

    layer: AttentionLayer
    q: Tensor
    """(B, H, T, K), turned by its positions where the model does that."""
    k: Tensor
    """(B, G, S, K), likewise."""
    v: Tensor
    """(B, G, S, V)."""
    out: Tensor
    """(B, H, T, V), what the heads gave, before any gate and the output projection."""
    mask: Mask | None
    """With the last query at the last key, as `Mask` counts. What a query that sees nothing gave (one that
    is padding) is the model's affair: 0, or anything."""
    scale: float
    bias: Tensor | None = None
    """Added to the scores, broadcastable to (B, H, T, S)."""
    softcap: float | None = None
    sink: Tensor | None = None
    """(H,), a score in the denominator of the softmax."""
    cross: bool = False
    """Whether keys and values came from another sequence than the queries, in this call."""
