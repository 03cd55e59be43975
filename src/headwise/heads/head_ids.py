"""Heads by their numbers."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Sequence
from typing import Any

HeadId = tuple[int, int]
"""A layer and a head of it, both counted from 0."""


def head_names(heads: Iterable[HeadId]) -> list[str]:
    """Return heads as `layer.head`."""
    return [f"{layer}.{head}" for layer, head in heads]


def check_heads(counts: Sequence[int], heads: Collection[HeadId], name: str) -> list[HeadId]:
    """Return heads as tuples of Python's own numbers, so that those of JSON and of tables are equal to ours.

    counts: heads of each layer. name: of the argument.

    Raises TypeError unless these are pairs of whole numbers, ValueError unless all these heads exist.
    """
    if isinstance(heads, str) or not isinstance(heads, Collection):
        raise TypeError(
            f"{name} must be a list of heads such as [(0, 2)], a layer and a head each, got {heads!r}"
        )
    return [_checked(counts, each, name) for each in heads]


def _checked(counts: Sequence[int], each: object, name: str) -> HeadId:
    if not (isinstance(each, tuple | list) and len(each) == 2 and all(map(_is_number, each))):
        raise TypeError(f"{name} must hold pairs (layer, head) of whole numbers, got {each!r}")
    layer, head = (operator.index(number) for number in each)
    if not 0 <= layer < len(counts):
        raise ValueError(f"{name} names layer {layer}, but the model has layers 0 … {len(counts) - 1}")
    number = counts[layer]
    if not 0 <= head < number:
        there = f"heads 0 … {number - 1}" if number else "no heads left"
        raise ValueError(f"{name} names head {head} of layer {layer}, which has {there}")
    return layer, head


def _is_number(each: Any) -> bool:
    try:
        operator.index(each)
    except TypeError:
        return False
    return not isinstance(each, bool)
