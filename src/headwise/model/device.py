"""Choosing where to compute."""

from __future__ import annotations

import torch


def pick_device(name: str = "auto") -> torch.device:
    """The device that `name` means; "auto" takes CUDA, then Apple's MPS, then the CPU.

    Raises:
        ValueError: not a device name, or one this machine or this build of PyTorch lacks.
    """
    available = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        return torch.device(next(kind for kind, there in available.items() if there))
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in available:
        raise ValueError(f"device {name!r} is not one of auto, {', '.join(available)} (or cuda:N)")
    if not available[device.type]:
        raise ValueError(f"device {name!r} is not available here; use --device auto or cpu")
    if device.index is not None and device.type == "cuda" and device.index >= torch.cuda.device_count():
        raise ValueError(f"device {name!r} does not exist; this machine has {torch.cuda.device_count()}")
    return device
