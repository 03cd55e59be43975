"""Measuring instead of predicting: bytes that are really allocated, numbers that are really kept."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class AllocatedBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows every storage that PyTorch's operators return inside the `with` block, from birth to death.

    Exact to the byte and the same on every run, unlike the process's resident memory. Counted: tensors that
    operators return, each storage once, and those given to `follow`. Not counted: what a kernel allocates
    and frees inside itself, the allocator's rounding and reserve. For CPU tensors, whose backward pass runs
    in the calling thread.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = 0
        """Bytes alive at this moment."""
        self.peak = 0
        """Most bytes that were alive at once."""
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    def follow(self, tensors: Sequence[Tensor]) -> None:
        """Count these tensors, which were there before."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage not in self._known:
                self._known.add(storage)
                size = storage.nbytes()
                self.now += size
                weakref.finalize(storage, self._gone, size)
        self.peak = max(self.peak, self.now)

    def _gone(self, size: int) -> None:
        self.now -= size

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        self.follow([leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)])
        return out


@contextmanager
def kept_for_backward(parameters: Iterator[Tensor]) -> Iterator[dict[int, Tensor]]:
    """Yield a dictionary that fills with what autograd keeps: address → tensor, no parameters."""
    own = {parameter.untyped_storage().data_ptr() for parameter in parameters}
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        address = tensor.untyped_storage().data_ptr()
        if address not in own:
            kept.setdefault(address, tensor)
        return tensor

    unpack: Callable[[Tensor], Tensor] = lambda tensor: tensor  # noqa: E731
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield kept
