"""The dtype in which a folder stores its weights, and in which a model made of it goes back to one."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import safe_open
from torch import nn

AnyModule = TypeVar("AnyModule", bound=nn.Module)


def stored_dtype(folder: Path) -> torch.dtype | None:
    """Return the dtype of the first weights in a folder's safetensors files, None where there are none.

    Raises:
        OSError, safetensors.SafetensorError: a file cannot be read.
    """
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118
                weights = tensors.get_slice(name)
                dtype: torch.dtype = weights[:0].dtype if weights.get_shape() else torch.int64
                if dtype.is_floating_point:
                    return dtype
    return None


def in_dtype(model: AnyModule, dtype: torch.dtype) -> AnyModule:
    """Return a model with its weights in a dtype: a copy, or the model itself where they are in it.

    Buffers stay as they are, since tables of angles suffer from fewer digits.
    """
    if all(p.dtype == dtype for p in model.parameters() if p.is_floating_point()):
        return model
    made = copy.deepcopy(model)
    for parameter in made.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)
    return made


def as_stored(model: AnyModule, dtype: torch.dtype) -> AnyModule:
    """Return a model as it comes back, in its own dtype, from a folder that stores it in another."""
    return in_dtype(in_dtype(model, dtype), next(model.parameters()).dtype)
