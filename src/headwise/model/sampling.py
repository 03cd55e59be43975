"""Choosing the next token from scores: temperature, top-k, top-p."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sampling:
    """How a token is drawn.

    Attributes:
        temperature: scores are divided by it; 0 takes the likeliest token (the lowest id among equals).
        top_k: keep the k likeliest tokens; None or 0 keeps all.
        top_p: keep the fewest likeliest tokens whose probabilities reach p; None or 1 keeps all.

    Raises:
        ValueError: a value out of its range.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(
                f"temperature must be 0 (greedy) or a finite number above, got {self.temperature}"
            )
        if self.top_k is not None and self.top_k < 0:
            raise ValueError(f"top_k must be at least 1 (0 or none turns it off), got {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, got {self.top_p}")

    def draw(self, logits: Tensor, generator: torch.Generator) -> int:
        """Draw one token id from `logits` `(vocab_size,)`.

        On the CPU in float32 whatever the model runs on, so that a seed means the same everywhere. Raises
        ValueError for scores of which the highest is not finite.
        """
        logits = logits.detach().float().cpu()
        if not bool(logits.max().isfinite()):
            raise ValueError(
                "the model's scores are not finite (NaN or infinite), so no token can be drawn: its "
                "weights are damaged, or too large for their dtype"
            )
        if self.temperature == 0:
            return int(logits.argmax())
        # Shifting first keeps tiny temperatures from overflowing: the best score stays exactly 0.
        temperature = max(self.temperature, torch.finfo(logits.dtype).tiny)
        ordered, ids = torch.sort((logits - logits.max()) / temperature, descending=True, stable=True)
        if self.top_k:
            ordered, ids = ordered[: self.top_k], ids[: self.top_k]
        probabilities = torch.softmax(ordered, dim=0)
        if self.top_p is not None and self.top_p < 1:
            before = probabilities.cumsum(0) - probabilities
            probabilities = torch.where(before < self.top_p, probabilities, 0.0)
        return int(ids[torch.multinomial(probabilities, 1, generator=generator)])
