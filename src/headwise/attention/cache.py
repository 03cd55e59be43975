"""Keys and values of earlier positions, kept so that each new token costs one step.

Letters: B batch, G key/value heads, T new positions, S keys returned, K head width of keys, V that of values.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor


class LayerCache:
    """The keys (B, G, capacity, K) and values (B, G, capacity, V) of one layer.

    Memory is taken once, at construction, and written from the front. What comes back are views of what is
    written, never of free slots; a view holds until the next `append`, `reorder` or `reset`.

    With ``window=n`` only the last n positions stay. There may be any number of positions, in chunks of any
    length: where a chunk does not fit behind what is written, the n - 1 positions before it and the chunk are
    joined in a tensor of their own, and the last n positions of it move to the front. That costs a copy of n
    positions; with n + m slots it falls due at every (m + 1)-th single step.

    Use it under ``torch.no_grad()``. With gradients on, they flow from what an append returns to all that was
    appended before, until the next append writes: PyTorch then refuses the older backward pass.
    """

    def __init__(
        self,
        batch: int,
        n_kv_head: int,
        capacity: int,
        d_head: int,
        d_value: int | None = None,
        *,
        window: int | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        """Make an empty cache.

        capacity: slots, each for one position. d_value: default d_head.
        window: keep the last so many positions; default all, which then are at most capacity.

        n_kv_head: 0 for a layer without heads, whose positions are only counted.

        Raises ValueError for another size below 1 or a window beyond capacity.
        """
        d_value = d_head if d_value is None else d_value
        sizes = {
            "batch": batch,
            "n_kv_head": n_kv_head,
            "capacity": capacity,
            "d_head": d_head,
            "d_value": d_value,
            "window": 1 if window is None else window,
        }
        for name, size in sizes.items():
            least = 0 if name == "n_kv_head" else 1
            if size < least:
                raise ValueError(f"{name} of a cache must be at least {least}, got {size}")
        if window is not None and window > capacity:
            raise ValueError(
                f"window={window} does not fit into capacity={capacity} slots; "
                f"give at least {window} slots, and more for fewer copies"
            )
        self._keys = torch.zeros(batch, n_kv_head, capacity, d_head, dtype=dtype, device=device)
        self._values = torch.zeros(batch, n_kv_head, capacity, d_value, dtype=dtype, device=device)
        self.capacity = capacity
        self.window = window
        self.length = 0
        """Positions written so far, dropped ones included: the position of the next one."""
        self._end = 0  # slots in use; the last of them holds position length - 1

    @property
    def positions(self) -> range:
        """The positions that are kept."""
        return range(0 if self.window is None else max(0, self.length - self.window), self.length)

    @property
    def keys(self) -> Float[Tensor, "B G S K"]:
        """The keys of `positions`, a view."""
        return self._keys[:, :, self._end - len(self.positions) : self._end]

    @property
    def values(self) -> Float[Tensor, "B G S V"]:
        """The values of `positions`, a view."""
        return self._values[:, :, self._end - len(self.positions) : self._end]

    @property
    def batch(self) -> int:
        """Sequences held."""
        return self._keys.shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes held: B · G · capacity · (K + V) · bytes per number, whether written or not."""
        return self._keys.nbytes + self._values.nbytes

    def append(
        self, k: Float[Tensor, "B G T K"], v: Float[Tensor, "B G T V"]
    ) -> tuple[Float[Tensor, "B G S K"], Float[Tensor, "B G S V"]]:
        """Write T more positions and return all keys and values that their queries may see.

        Without a window that is everything so far; with one of n, the n - 1 positions before and the T new
        ones. The last one returned is at position length - 1.

        Raises ValueError if the shapes or devices are not those of the cache or there is no room, TypeError
        for another dtype; nothing is written then.
        """
        keys, values = self.propose(k, v)
        self.accept(keys, values, k.shape[2])
        return keys, values

    def propose(
        self, k: Float[Tensor, "B G T K"], v: Float[Tensor, "B G T V"]
    ) -> tuple[Float[Tensor, "B G S K"], Float[Tensor, "B G S V"]]:
        """Return what `append` would, without counting it as written; raises as `append` does.

        `accept` makes it count. Without it the cache is as before, so that a call which fails after this
        leaves no trace: what was proposed lies in free slots or in tensors of its own.
        """
        self._check("k", k, self._keys)
        self._check("v", v, self._values)
        if k.shape[2] != v.shape[2]:
            raise ValueError(f"k and v must have the same length, got {k.shape[2]} and {v.shape[2]}")
        before = self._end if self.window is None else min(self.length, self.window - 1)
        start, end = self._end - before, self._end + k.shape[2]
        if end <= self.capacity:
            self._keys[:, :, self._end : end] = k
            self._values[:, :, self._end : end] = v
            return self._keys[:, :, start:end], self._values[:, :, start:end]
        if self.window is None:
            raise ValueError(
                f"the cache holds {self.capacity} positions, {self.length} are written and {k.shape[2]} more "
                "do not fit; make it larger or reset() it"
            )
        old_keys, old_values = self._keys[:, :, start : self._end], self._values[:, :, start : self._end]
        return torch.cat((old_keys, k), dim=2), torch.cat((old_values, v), dim=2)

    def accept(self, keys: Tensor, values: Tensor, new: int) -> None:
        """Count as written what `propose` returned last, of which the last ``new`` positions are new."""
        end = self._end + new
        if self.window is not None and end > self.capacity:
            end = min(self.window, keys.shape[2])
            self._keys[:, :, :end] = keys[:, :, keys.shape[2] - end :]
            self._values[:, :, :end] = values[:, :, values.shape[2] - end :]
        self._end = end
        self.length += new

    def reorder(self, index: Int[Tensor, " B"]) -> None:
        """Let row b hold what row index[b] held, as beam search needs; rows may repeat.

        Raises TypeError if index holds no integers, ValueError unless it holds B of them in 0 … B - 1 on the
        cache's device; nothing is changed then.
        """
        check_rows(index, self.batch, self._keys.device)
        self._keys[:, :, : self._end] = self._keys[:, :, : self._end][index]
        self._values[:, :, : self._end] = self._values[:, :, : self._end][index]

    def reset(self) -> None:
        """Forget everything written, leaving the memory as it was at first; gradients are let go of."""
        self.length = self._end = 0
        self._keys, self._values = self._keys.detach().zero_(), self._values.detach().zero_()

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
        window = "" if self.window is None else f"the last {self.window} kept, "
        return (
            f"LayerCache({self.length} {'positions' if window else f'of {self.capacity} positions'}, {window}"
            f"batch={batch}, n_kv_head={groups}, "
            f"d_head={d_head}, d_value={self._values.shape[3]}, {self.nbytes:,} bytes)"
        )


class KVCache:
    """One `LayerCache` per layer of a model."""

    def __init__(
        self,
        n_layer: int,
        batch: int,
        n_kv_head: int | Sequence[int],
        capacity: int,
        d_head: int,
        d_value: int | None = None,
        *,
        window: int | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        """Make empty caches of ``capacity`` slots; arguments and errors as for `LayerCache`.

        n_kv_head: one number, or one for each layer.
        """
        if n_layer < 1:
            raise ValueError(f"n_layer of a cache must be at least 1, got {n_layer}")
        counts = [n_kv_head] * n_layer if isinstance(n_kv_head, int) else list(n_kv_head)
        if len(counts) != n_layer:
            raise ValueError(f"n_kv_head gives {len(counts)} numbers for the {n_layer} layers of the cache")
        self.layers = tuple(
            LayerCache(batch, count, capacity, d_head, d_value, window=window, dtype=dtype, device=device)
            for count in counts
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
        """Slots of each layer."""
        return self.layers[0].capacity

    @property
    def window(self) -> int | None:
        """How many positions are kept, None for all."""
        return self.layers[0].window

    @property
    def batch(self) -> int:
        """Sequences held."""
        return self.layers[0].batch

    @property
    def nbytes(self) -> int:
        """Bytes held, for each layer B · G · capacity · (K + V) · bytes per number."""
        return sum(layer.nbytes for layer in self.layers)

    def reorder(self, index: Int[Tensor, " B"]) -> None:
        """Reorder the rows of every layer; as `LayerCache.reorder`."""
        for layer in self.layers:
            layer.reorder(index)

    def reset(self) -> None:
        """Forget everything written in every layer; as `LayerCache.reset`."""
        for layer in self.layers:
            layer.reset()

    def __repr__(self) -> str:
        return f"KVCache({len(self.layers)} × {self.layers[0]!r})"


def check_rows(index: Tensor, batch: int, device: torch.device) -> None:
    """Raise TypeError or ValueError unless index is (batch,) of row numbers on this device."""
    integer = (
        isinstance(index, Tensor)
        and not index.dtype.is_floating_point
        and not index.dtype.is_complex
        and index.dtype != torch.bool
    )
    if not integer:
        got = index.dtype if isinstance(index, Tensor) else type(index).__name__
        raise TypeError(f"index must be an integer tensor of rows, got {got}")
    if index.shape != (batch,):
        raise ValueError(f"index must name a row for each of the {batch}, got shape {tuple(index.shape)}")
    if index.device != device:
        raise ValueError(f"index is on {index.device} and the cache on {device}; make both on one device")
    if torch.compiler.is_compiling() or device.type == "meta":
        return
    low, high = (int(bound) for bound in torch.aminmax(index))
    if low < 0 or high >= batch:
        raise ValueError(f"index must lie in 0 … {batch - 1}, the rows of this cache, got {low} … {high}")
