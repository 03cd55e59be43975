"""How much one request may ask for."""

from __future__ import annotations

from dataclasses import dataclass

MOST_BYTES = 256 * 1024
"""Of a request's body."""


@dataclass(frozen=True)
class Limits:
    """What bounds the work of one request, and how many may wait for a model."""

    tokens: int = 512
    """Of a text; fewer where the model reads fewer."""
    new_tokens: int = 400
    """That a model writes at once."""
    waiting: int = 16
    """Requests for one model, the running one included."""

    def __post_init__(self) -> None:
        for name in ("tokens", "new_tokens", "waiting"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
