"""torch.compile where it works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

Forward = Callable[[Tensor], Tensor]


def compiled_or_eager(model: nn.Module, x: Tensor, tell: Callable[[str], None]) -> Forward:
    """`model` compiled and tried on the ids `x` forward and backward; where that fails, say why in one line
    and return `model` itself.

    Parameters, gradients and random numbers are as before afterwards.
    """
    devices = [x.device] if x.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        try:
            compiled = cast(Callable[[Tensor], Any], torch.compile(model))
            compiled(x).sum().backward()
        except RuntimeError as error:  # what the compiler raises when anything is missing or unsupported
            reason = next(
                (line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__
            )
            tell(f"torch.compile does not work here ({reason}); going on without it")
            return model
        finally:
            model.zero_grad(set_to_none=True)
    return compiled
