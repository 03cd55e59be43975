"""Stopping what would build a model without end, because a damaged config says absurd numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook


class TooLargeError(Exception):
    """A model that is being built has more numbers than it may have."""


@contextmanager
def building_at_most(numbers: int) -> Iterator[None]:
    """Build on the meta device, without memory; raise TooLargeError as soon as parameters have more numbers.

    A parameter that is made twice, such as tied embeddings, counts twice.
    """
    total = 0

    def count(_module: nn.Module, _name: str, parameter: nn.Parameter | None) -> None:
        nonlocal total
        total += 0 if parameter is None else parameter.numel()
        if total > numbers:
            raise TooLargeError

    handle = register_module_parameter_registration_hook(count)
    try:
        with torch.device("meta"):
            yield
    finally:
        handle.remove()
