"""Configs of transformers that make no sense, refused before anything is built of them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open

from headwise.model.limits import TooLargeError, building_at_most

SENSELESS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What reading a config or building a model comes to where it says what makes no sense: no heads (a division
by 0), sizes below 0, a token outside the vocabulary (an assertion), an activation that is not there, text for
a number, a library that is not installed."""

_MOST = 100_000
"""Layers, experts or labels: the library goes through them one by one, which would have no end."""
_MOST_TOKENS = 2**31
_COUNTED = re.compile(r"(^|_)(layers?|experts|labels|blocks|stages|depths?)(_|$)")
_SIZES = {"hidden_size": 1, "num_attention_heads": 1, "num_hidden_layers": 0, "vocab_size": 1}
"""Sizes that configs have whatever they call them, and the least that each can be."""


def refuse_endless(values: Mapping[str, Any], source: str) -> None:
    """Raise ValueError for fields of a config that the library would only get stuck on, or stumble over."""
    for name, number in _numbers(values):
        if math.isnan(number):
            raise ValueError(f"config.json of {source} says that {name} is not a number; fetch it again")
        most = _MOST if _COUNTED.search(name) else _MOST_TOKENS if name.endswith("_token_id") else math.inf
        if number > most:
            raise ValueError(
                f"config.json of {source} says {name}={_short(number)}, and more than {most:,} makes no "
                "sense; fetch it again"
            )
    architectures = values.get("architectures")
    named = [] if architectures is None else architectures
    if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
        raise ValueError(
            f"config.json of {source} says architectures={architectures!r}, which should list the name of "
            "the class that the weights were saved from; fetch it again"
        )


def _numbers(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        for key, inside in value.items():
            yield from _numbers(inside, str(key))
    elif isinstance(value, list):
        for inside in value:
            yield from _numbers(inside, name)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, value


def _short(number: float) -> str:
    return f"{number:,}" if number < 10**15 else f"{number:.0e}"


def refuse_sizes(config: Any, source: str) -> None:
    """Raise ValueError for sizes of a config that no model has."""
    for name, least in _SIZES.items():
        value = getattr(config, name, least)
        if isinstance(value, int) and value < least:
            raise ValueError(
                f"config.json of {source} says {name}={value}, which must be at least {least}; fetch it again"
            )


def refuse_other_size(kind: Any, config: Any, source: str, stored: int | None) -> None:
    """Raise ValueError where a config describes a far larger model than of the numbers that are stored.

    Fields that a config lacks become those of the largest models, which would fill the memory with noise.
    """
    if stored is None:
        return
    try:
        with building_at_most(10 * stored):  # tied embeddings are made several times at first
            model = kind(config) if hasattr(kind, "forward") else kind.from_config(config)
        described = sum(parameter.numel() for parameter in model.parameters())
        told = f"{described:,}"
    except TooLargeError:
        described, told = 10 * stored + 1, f"more than {10 * stored:,}"
    except SENSELESS:  # said in better words when the weights are read
        return
    if described > 2 * stored:
        raise ValueError(
            f"config.json of {source} describes a model of {told} numbers, but its weights are "
            f"{stored:,}; it lacks sizes, such as the number of layers, or is of another model: fetch it "
            "again"
        )


def stored_numbers(folder: Path) -> int | None:
    """Return how many numbers a folder's safetensors files hold, None where there are none.

    Raises:
        OSError, safetensors.SafetensorError: a file cannot be read.
    """
    files = sorted(folder.glob("*.safetensors"))
    total = 0
    for file in files:
        with safe_open(file, "pt") as tensors:
            total += sum(math.prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118
    return total if files else None
