"""Keys and values of earlier positions, kept so that each new token costs one step.

Letters: B batch, G key/value heads, T new positions, K head width of keys, V head width of values.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


class LayerCache:
    """The keys (B, G, capacity, K) and values (B, G, capacity, V) of one layer, written from the front.

    Memory is taken once, at construction. What `append` returns are views of what is written, never of free
    slots. Gradients flow through it, but only until the next `append`: it is meant for ``torch.no_grad()``.
    """

    def __init__(
        self,
        batch: int,
        n_kv_head: int,
        capacity: int,
        d_head: int,
        d_value: int | None = None,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        """Make an empty cache; d_value defaults to d_head. Raises ValueError for a size below 1."""
        d_value = d_head if d_value is None else d_value
        sizes = {
            "batch": batch,
            "n_kv_head": n_kv_head,
            "capacity": capacity,
            "d_head": d_head,
            "d_value": d_value,
        }
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"{name} of a cache must be at least 1, got {size}")
        self._keys = torch.zeros(batch, n_kv_head, capacity, d_head, dtype=dtype, device=device)
        self._values = torch.zeros(batch, n_kv_head, capacity, d_value, dtype=dtype, device=device)
        self.capacity = capacity
        self.length = 0
        """Positions written so far, which is the position of the next one."""

    @property
    def nbytes(self) -> int:
        """Bytes held: B · G · capacity · (K + V) · bytes per number, whether written or not."""
        return self._keys.nbytes + self._values.nbytes

    def append(
        self, k: Float[Tensor, "B G T K"], v: Float[Tensor, "B G T V"]
    ) -> tuple[Float[Tensor, "B G S K"], Float[Tensor, "B G S V"]]:
        """Write T more positions and return all keys and values so far (views; S is the new length).

        Raises ValueError if the shapes or devices are not those of the cache or there is no room, TypeError
        for another dtype; nothing is written then.
        """
        self._check("k", k, self._keys)
        self._check("v", v, self._values)
        if k.shape[2] != v.shape[2]:
            raise ValueError(f"k and v must have the same length, got {k.shape[2]} and {v.shape[2]}")
        end = self.length + k.shape[2]
        if end > self.capacity:
            raise ValueError(
                f"the cache holds {self.capacity} positions, {self.length} are written and {k.shape[2]} more "
                "do not fit; make it larger or reset() it"
            )
        self._keys[:, :, self.length : end] = k
        self._values[:, :, self.length : end] = v
        self.length = end
        return self._keys[:, :, :end], self._values[:, :, :end]

    def reset(self) -> None:
        """Forget everything written; the memory stays."""
        self.length = 0
        self._keys, self._values = self._keys.detach(), self._values.detach()

    @staticmethod
    def _check(name: str, new: Tensor, kept: Tensor) -> None:
        # compared one by one, as a batch of 1 would otherwise be broadcast into all rows
        if new.ndim != 4 or new.shape[:2] != kept.shape[:2] or new.shape[3] != kept.shape[3]:
            batch, groups, _, width = kept.shape
            raise ValueError(
                f"{name} must be (batch, n_kv_head, T, width) = ({batch}, {groups}, T, {width}) "
                f"for this cache, got shape {tuple(new.shape)}"
            )
        if new.dtype != kept.dtype:
            raise TypeError(
                f"{name} is {new.dtype} and the cache {kept.dtype}; make the cache with dtype={new.dtype}"
            )
        if new.device != kept.device:
            raise ValueError(
                f"{name} is on {new.device} and the cache on {kept.device}; make both on one device"
            )

    def __repr__(self) -> str:
        batch, groups, _, d_head = self._keys.shape
        return (
            f"LayerCache({self.length} of {self.capacity} positions, batch={batch}, n_kv_head={groups}, "
            f"d_head={d_head}, d_value={self._values.shape[3]}, {self.nbytes:,} bytes)"
        )


class KVCache:
    """One `LayerCache` per layer of a model."""

    def __init__(
        self,
        n_layer: int,
        batch: int,
        n_kv_head: int,
        capacity: int,
        d_head: int,
        d_value: int | None = None,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        """Make empty caches for ``capacity`` positions. Raises ValueError for a size below 1."""
        if n_layer < 1:
            raise ValueError(f"n_layer of a cache must be at least 1, got {n_layer}")
        self.layers = tuple(
            LayerCache(batch, n_kv_head, capacity, d_head, d_value, dtype=dtype, device=device)
            for _ in range(n_layer)
        )

    def layer(self, index: int) -> LayerCache:
        """Return the cache of layer ``index``, counted from 0; raises ValueError if there is none."""
        if not 0 <= index < len(self.layers):
            raise ValueError(f"this cache has layers 0 … {len(self.layers) - 1}, got {index}")
        return self.layers[index]

    @property
    def length(self) -> int:
        """Positions written so far in every layer (the least of them, during a forward pass)."""
        return min(layer.length for layer in self.layers)

    @property
    def capacity(self) -> int:
        """Positions each layer can hold."""
        return self.layers[0].capacity

    @property
    def nbytes(self) -> int:
        """Bytes held: n_layer · B · G · capacity · (K + V) · bytes per number."""
        return sum(layer.nbytes for layer in self.layers)

    def reset(self) -> None:
        """Forget everything written; the memory stays."""
        for layer in self.layers:
            layer.reset()

    def __repr__(self) -> str:
        return f"KVCache({len(self.layers)} × {self.layers[0]!r})"
