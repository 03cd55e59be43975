"""The cache of keys and values of models of transformers."""

from __future__ import annotations

import inspect

from torch import nn

_NAMES = ("cache", "past_key_values")
"""What transformers calls it, since 5.24 and before."""


def cache_name(model: nn.Module) -> str | None:
    """Return by which name a model takes and gives its cache, None if it has none."""
    accepted = inspect.signature(model.forward).parameters
    return next((name for name in _NAMES if name in accepted), None)
