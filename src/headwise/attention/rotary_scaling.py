"""Slower rotary angles, for reading texts longer than those a model was trained on.

Letters: W width turned, i = 0 … W/2 - 1 the pair, s the factor by which texts grow, L the length of training.
Each kind changes the frequencies base^(-2i/W) in its own way; a frequency f has wavelength 2π/f and makes
L · f / 2π turns over a training text.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


def frequencies(base: float, width: int, device: torch.device) -> Tensor:
    """Return base^(-2i/W) in float32, (W/2,)."""
    even = torch.arange(0, width, 2, dtype=torch.float32, device=device)
    return base ** (-even / width)


class Scaling(ABC):
    """How frequencies are changed."""

    @abstractmethod
    def apply(self, plain: Tensor, base: float) -> Tensor:
        """Return the changed frequencies, (W/2,), given the plain ones."""

    @property
    def magnitude(self) -> float:
        """What cos and sin are multiplied by, so that scores grow by its square."""
        return 1.0

    def check(self, base: float, width: int) -> None:
        """Raise ValueError if this scaling cannot be used with this base and width."""
        del base, width


@dataclass(frozen=True)
class LinearScaling(Scaling):
    """Position interpolation: every frequency divided by s (Chen et al. 2023, arXiv:2306.15595, eq. 4)."""

    factor: float

    def __post_init__(self) -> None:
        _check_factor(self.factor)

    def apply(self, plain: Tensor, base: float) -> Tensor:
        return plain / self.factor


@dataclass(frozen=True)
class NTKScaling(Scaling):
    """NTK-aware: base replaced by base · s^(W/(W-2)) (bloc97 2023; in Peng et al. 2023, arXiv:2309.00071).

    The fastest pair keeps its frequency, the slowest is divided by s. The factor is fixed: the "dynamic"
    kind, whose factor grows with the text, would have to turn the keys in a cache anew at every step, and is
    left out.
    """

    factor: float

    def __post_init__(self) -> None:
        _check_factor(self.factor)

    def apply(self, plain: Tensor, base: float) -> Tensor:
        width = 2 * plain.shape[0]
        return frequencies(base * self.factor ** (width / (width - 2)), width, plain.device)

    def check(self, base: float, width: int) -> None:
        if width < 4:
            raise ValueError(f"NTKScaling needs at least two pairs, a width of 4, got {width}")


@dataclass(frozen=True)
class Llama3Scaling(Scaling):
    """As in Llama 3.1 and its released code (Llama team 2024, arXiv:2407.21783).

    Frequencies that make at least `high` turns over a training text stay, those that make at most `low` are
    divided by s, and between the two the share of the plain frequency grows linearly with the turns.
    """

    factor: float
    original_length: int
    low: float = 1.0
    high: float = 4.0

    def __post_init__(self) -> None:
        _check_factor(self.factor)
        _check_length(self.original_length)
        if not 0.0 < self.low < self.high:
            raise ValueError(f"low and high must satisfy 0 < low < high, got {self.low} and {self.high}")

    def apply(self, plain: Tensor, base: float) -> Tensor:
        turns = self.original_length * plain / (2 * math.pi)
        kept = ((turns - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
        return kept * plain + (1.0 - kept) * plain / self.factor


@dataclass(frozen=True)
class YarnScaling(Scaling):
    """YaRN (Peng et al. 2023, arXiv:2309.00071, and its released code).

    Pair i makes L · base^(-2i/W) / 2π turns over a training text. Pairs up to the one with `fast` turns stay,
    those from the one with `slow` turns on are divided by s, and between the two the share of the plain
    frequency falls linearly with i; `truncate` moves both bounds outwards to whole pairs. `attention`
    multiplies cos and sin; None is 0.1 · ln s + 1.
    """

    factor: float
    original_length: int
    fast: float = 32.0
    slow: float = 1.0
    attention: float | None = None
    truncate: bool = True

    def __post_init__(self) -> None:
        _check_factor(self.factor)
        _check_length(self.original_length)
        if not 0.0 < self.slow < self.fast:
            raise ValueError(f"slow and fast must satisfy 0 < slow < fast, got {self.slow} and {self.fast}")
        if self.attention is not None and not 0.0 < self.attention < math.inf:
            raise ValueError(f"attention must be a finite number above 0, got {self.attention}")

    @property
    def magnitude(self) -> float:
        return 0.1 * math.log(self.factor) + 1.0 if self.attention is None else self.attention

    def apply(self, plain: Tensor, base: float) -> Tensor:
        pairs = plain.shape[0]
        first, last = self._pair(self.fast, base, pairs), self._pair(self.slow, base, pairs)
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, 2 * pairs - 1)
        index = torch.arange(pairs, dtype=torch.float32, device=plain.device)
        # a thousandth of a pair stands for a step where both bounds fall on one, as in the released code
        slowed = ((index - first) / ((last - first) or 0.001)).clamp(0.0, 1.0)
        return slowed * plain / self.factor + (1.0 - slowed) * plain

    def check(self, base: float, width: int) -> None:
        if base <= 1.0:
            raise ValueError(f"YarnScaling needs a base above 1, so that later pairs turn slower, got {base}")

    def _pair(self, turns: float, base: float, pairs: int) -> float:
        """Return which pair, as a fraction, makes this many turns over a training text."""
        return pairs * math.log(self.original_length / (turns * 2 * math.pi)) / math.log(base)


def _check_factor(factor: float) -> None:
    if not 1.0 <= factor < math.inf:
        raise ValueError(f"factor must be a finite number of at least 1, got {factor}")


def _check_length(original_length: int) -> None:
    if original_length < 1:
        raise ValueError(f"original_length must be at least 1, got {original_length}")


_KEYS = {
    "default": set[str](),
    "linear": {"factor"},
    "ntk": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
    "yarn": {
        "factor",
        "original_max_position_embeddings",
        "beta_fast",
        "beta_slow",
        "attention_factor",
        "mscale",
        "mscale_all_dim",
        "truncate",
    },
}
"""The keys of a ``rope_parameters`` dictionary by its ``rope_type``, besides those all have."""


def read_parameters(parameters: Mapping[str, object]) -> tuple[float, float, Scaling | None]:
    """Return base, fraction and scaling from a ``rope_parameters`` dictionary of a Hugging Face config.

    Raises ValueError for a kind, a key or a value it does not know, or a key that is missing.
    """
    kind = parameters.get("rope_type", "default")
    if not isinstance(kind, str) or kind not in _KEYS:
        why = "; its angles depend on the length of the text, so cached keys go stale" * (kind == "dynamic")
        raise ValueError(f"rope_type must be one of {', '.join(map(repr, _KEYS))}, got {kind!r}{why}")
    known = _KEYS[kind] | {"rope_type", "rope_theta", "partial_rotary_factor"}
    unknown = sorted(set(parameters) - known)
    if unknown:
        raise ValueError(
            f"rope_parameters of kind {kind!r} have {', '.join(sorted(known))}, got {', '.join(unknown)}"
        )

    def number(key: str, default: float | None = None) -> float:
        value = parameters.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"rope_parameters of kind {kind!r} need a number as {key!r}, got {value!r}")
        return float(value)

    scaling: Scaling | None = None
    if kind == "linear":
        scaling = LinearScaling(number("factor"))
    elif kind == "ntk":
        scaling = NTKScaling(number("factor"))
    elif kind == "llama3":
        length, low, high = (
            number(key) for key in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
        )
        scaling = Llama3Scaling(number("factor"), int(length), low, high)
    elif kind == "yarn":
        factor, length = number("factor"), int(number("original_max_position_embeddings"))
        given = parameters.get("attention_factor")
        attention = None if given is None else number("attention_factor")
        mscale, all_dim = number("mscale", 0.0), number("mscale_all_dim", 0.0)
        if attention is None and mscale and all_dim:  # DeepSeek's way of saying it
            attention = (0.1 * mscale * math.log(factor) + 1.0) / (0.1 * all_dim * math.log(factor) + 1.0)
        truncate = parameters.get("truncate", True)
        if not isinstance(truncate, bool):
            raise ValueError(
                f"rope_parameters of kind 'yarn' need true or false as 'truncate', got {truncate!r}"
            )
        scaling = YarnScaling(
            factor, length, number("beta_fast", 32.0), number("beta_slow", 1.0), attention, truncate
        )
    return number("rope_theta", 10000.0), number("partial_rotary_factor", 1.0), scaling
