"""Heads by their numbers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

HeadId = tuple[int, int]
"""A layer and a head of it, both counted from 0."""


def head_names(heads: Iterable[HeadId]) -> list[str]:
    """Return heads as `layer.head`."""
    return [f"{layer}.{head}" for layer, head in heads]


def check_heads(counts: Sequence[int], heads: Collection[HeadId], name: str) -> None:
    """Raise TypeError unless these are pairs of numbers, ValueError unless all these heads exist.

    counts: heads of each layer. name: of the argument.
    """
    for each in _list(heads, name):
        if not (isinstance(each, tuple | list) and len(each) == 2 and all(map(_is_number, each))):
            raise TypeError(f"{name} must hold pairs (layer, head) of whole numbers, got {each!r}")
        layer, head = each
        if not 0 <= layer < len(counts):
            raise ValueError(f"{name} names layer {layer}, but the model has layers 0 … {len(counts) - 1}")
        number = counts[layer]
        if not 0 <= head < number:
            there = f"heads 0 … {number - 1}" if number else "no heads left"
            raise ValueError(f"{name} names head {head} of layer {layer}, which has {there}")


def _list(heads: Collection[HeadId], name: str) -> list[HeadId]:
    if isinstance(heads, str) or not isinstance(heads, Collection):
        raise TypeError(
            f"{name} must be a list of heads such as [(0, 2)], a layer and a head each, got {heads!r}"
        )
    return list(heads)


def _is_number(each: object) -> bool:
    return isinstance(each, int) and not isinstance(each, bool)
