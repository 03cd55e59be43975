"""Checks of what a module is given, with the likely cause of a misfit.

Letters: B batch, T queries, S keys.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.attention.masks import Mask


def check_sequence(name: str, t: Tensor, width: int, weight: Tensor) -> None:
    """Raise ValueError or TypeError unless t is (B, length, width) and fits the weight's dtype and device."""
    if not isinstance(t, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(t).__name__}")
    if t.ndim != 3 or t.shape[2] != width:
        raise ValueError(f"{name} must be (batch, length, {width}), got shape {tuple(t.shape)}")
    if t.device != weight.device:
        raise ValueError(
            f"{name} is on {t.device} and the weights are on {weight.device}; move one with .to(device)"
        )
    if not t.dtype.is_floating_point:
        raise TypeError(f"{name} must hold floating-point numbers, got {t.dtype}; embed token ids first")
    device_type = t.device.type
    autocast = torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type)
    if t.dtype != weight.dtype and not autocast:
        raise TypeError(
            f"{name} is {t.dtype} and the weights are {weight.dtype}; convert one with .to(dtype)"
        )


def check_batch(x: Tensor, name: str, batch: int) -> None:
    """Raise ValueError unless x has this batch size, that of the named argument."""
    if x.shape[0] == batch:
        return
    cause = f"; {_swapped(x)}" if x.shape[1] == batch else "; both are batch first, (B, length, width)"
    raise ValueError(f"x has batch size {x.shape[0]} and {name} {batch}{cause}")


def check_mask(mask: Mask | None, x: Tensor, keys: int, heads: int) -> None:
    """Raise ValueError unless the mask fits scores (B, heads, T, keys) for x (B, T, D).

    `attention` checks the same; only here is it known whether the mask would fit x with B and T swapped.
    """
    if not isinstance(mask, Mask):
        return
    batch, length = x.shape[:2]
    try:
        mask.check(length, keys, B=batch, H=heads)
    except ValueError as error:
        if length != batch and _fits(mask, T=batch, S=keys - length + batch, B=length, H=heads):
            raise ValueError(f"{error}; or {_swapped(x)}") from error
        raise


def _fits(mask: Mask, *, T: int, S: int, B: int, H: int) -> bool:
    try:
        mask.check(T, S, B=B, H=H)
    except ValueError:
        return False
    return True


def _swapped(x: Tensor) -> str:
    return f"x of shape {tuple(x.shape)} looks time first, (T, B, D): give it batch first, x.transpose(0, 1)"
