"""Keys and values of a context, projected once for any number of cross-attention calls.

Letters: B batch, G key/value heads, S keys, K head width of keys, V that of values.
"""

from __future__ import annotations

import weakref

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headwise.attention.cache import check_rows


class CrossCache:
    """What one module made of one context; `MultiHeadAttention.cross_cache` makes it.

    It is right as long as the weights stay and belongs to that module and context only. Make it under
    ``torch.no_grad()`` for inference; made with gradients on, it carries them to the projections and the
    context.
    """

    def __init__(
        self,
        owner: nn.Module,
        context: Tensor,
        keys: Float[Tensor, "B G S K"],
        values: Float[Tensor, "B G S V"],
    ) -> None:
        self._owner = weakref.ref(owner)
        self._context: weakref.ref[Tensor] | None = weakref.ref(context)
        self._version = _version(context)
        # each head's keys lie together, for as many reads as there will be
        self.keys, self.values = keys.contiguous(), values.contiguous()

    @property
    def batch(self) -> int:
        """Sequences held."""
        return self.keys.shape[0]

    @property
    def length(self) -> int:
        """Positions of the context."""
        return self.keys.shape[2]

    @property
    def nbytes(self) -> int:
        """Bytes held: B · G · S · (K + V) · bytes per number."""
        return self.keys.nbytes + self.values.nbytes

    def check(self, owner: nn.Module, context: Tensor | None) -> None:
        """Raise ValueError if this was made by another module, or not from the context, if one is given."""
        if self._owner() is not owner:
            raise ValueError(
                "cache was made by another module; make one with this module's cross_cache(context)"
            )
        if context is None:
            return
        known = None if self._context is None else self._context()
        version = _version(context)
        written = self._version is not None and version is not None and self._version != version
        if known is not context or written:
            raise ValueError(
                "context is not, or no longer, the tensor this cache was made from; leave it out, "
                "or make a new cache with cross_cache(context)"
            )

    def reorder(self, index: Int[Tensor, " B"]) -> None:
        """Let row b hold what row index[b] held; errors as for `LayerCache.reorder`."""
        check_rows(index, self.batch, self.keys.device)
        self.keys, self.values = self.keys[index], self.values[index]
        self._context = None  # the rows are no longer those of the context

    def __repr__(self) -> str:
        batch, groups, length, d_head = self.keys.shape
        return (
            f"CrossCache({length} positions, batch={batch}, n_kv_head={groups}, d_head={d_head}, "
            f"d_value={self.values.shape[3]}, {self.nbytes:,} bytes)"
        )


def _version(context: Tensor) -> int | None:
    """Return a number that changes when the tensor is written in place, None where PyTorch keeps none."""
    if torch.compiler.is_compiling() or context.is_inference():
        return None
    return context._version
