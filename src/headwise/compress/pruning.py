"""Removing heads: their rows and columns are taken out of the weights, so that the model is smaller.

Query heads that share a key/value head form a group. As every group of a layer must have the same number of
query heads, whole groups go, with their key/value head, or as many heads from each group that stays.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from headwise.heads.head_ids import HeadId, check_heads, head_names
from headwise.hub.surgery import (
    LayerHandle,
    divided_width,
    head_counts,
    is_level,
    layer_handles,
    read_weights,
    settle,
    write_weights,
)
from headwise.model.blocks import Block
from headwise.model.heads import NoHeads

Rule = Literal["groups", "within"]


@dataclass(frozen=True, eq=False)
class PruneResult:
    """A model with heads removed."""

    model: nn.Module
    removed: list[HeadId]
    before: list[tuple[int, int]]
    """Query heads and key/value heads of each layer."""
    after: list[tuple[int, int]]

    @property
    def cache_share(self) -> float:
        """The size of the key/value cache as a share of what it was."""
        return sum(g for _, g in self.after) / sum(g for _, g in self.before)


def prune(model: nn.Module, heads: Collection[HeadId], *, protect: Collection[HeadId] = ()) -> PruneResult:
    """Return a copy of a model without these heads; it computes what the model does with them gated to zero.

    model: a GPT of ours or a Llama-shaped transformers model. Layers may come out different: our own folder
    keeps that; to write a transformers model, see `level`.

    Raises:
        ValueError: a head that is not there or is protected; heads that leave groups of different sizes; all
            heads of a layer of a transformers model, whose classes have no layer without attention.
    """
    before = head_counts(model)
    counts = [h for h, _ in before]
    removed = sorted(set(check_heads(counts, heads, "heads")))
    kept_by_force = sorted(set(removed) & set(check_heads(counts, protect, "protect")))
    if kept_by_force:
        raise ValueError(
            f"heads {', '.join(head_names(kept_by_force))} are protected; leave them out of what is removed"
        )
    made = copy.deepcopy(model)
    for handle in layer_handles(made):
        here = {head for layer, head in removed if layer == handle.index}
        if here:
            _remove(handle, here)
    settle(made)
    return PruneResult(made, removed, before, head_counts(made))


def choose(
    model: nn.Module,
    order: Sequence[HeadId],
    count: int,
    *,
    protect: Collection[HeadId] = (),
    rule: Rule = "groups",
    uniform: bool = False,
    least: int = 1,
) -> list[HeadId]:
    """Return which `count` heads to remove, by an order of all heads, the dispensable ones first.

    rule: where query heads share key/value heads, `groups` removes whole groups, which makes the cache
        smaller; `within` removes one head of each group of a layer at a time. What goes together is placed in
        the order by the mean of its heads' places. Where heads share nothing, both remove single heads.
    protect: heads that stay, with all that would have to go with them.
    uniform: as many from each layer, as stock classes need.
    least: how many of the parts that can go stay in each layer at least.

    Raises:
        ValueError: an order that does not name every head once; a count that cannot be met exactly.
    """
    if least < 0:
        raise ValueError(f"least must be at least 0, got {least}")
    place = {head: rank for rank, head in enumerate(order)}
    parts = removable_parts(model, order, rule)
    shielded = set(check_heads([h for h, _ in head_counts(model)], protect, "protect"))
    if uniform:
        each = share_of_layer(parts, count)
        check_evenly(each, parts, free_parts(parts, shielded, least)[1], bool(shielded))
        return sorted(
            head for layer in parts if layer for head in _take([layer], each, shielded, least, place)
        )
    return sorted(_take(parts, count, shielded, least, place))


def removable_parts(model: nn.Module, order: Sequence[HeadId], rule: Rule) -> list[list[list[HeadId]]]:
    """Return for each layer what can be removed piece by piece, the dispensable first; see `choose`.

    Raises:
        ValueError: an order that does not name every head once; an unknown rule.
    """
    counts = head_counts(model)
    every = [(layer, head) for layer, (h, _) in enumerate(counts) for head in range(h)]
    if sorted(order) != every:
        raise ValueError(f"order must name each of the {len(every)} heads once, got {len(order)} names")
    if rule not in ("groups", "within"):
        raise ValueError(f"rule must be groups or within, got {rule!r}")
    place = {head: rank for rank, head in enumerate(order)}
    return [_parts(layer, h, g, place, rule) for layer, (h, g) in enumerate(counts)]


def share_of_layer(parts: Sequence[Sequence[object]], count: int) -> int:
    """Return how many heads go from each layer that has any; raise ValueError if they do not go evenly."""
    layers = len([layer for layer in parts if layer])
    if not layers:
        raise ValueError("all layers of the model have lost their heads, so there are none to take out")
    if count % layers:
        below = count - count % layers
        raise ValueError(
            f"{count} heads cannot be taken evenly from {layers} layers; "
            f"give {f'{below} or ' * (below > 0)}{below + layers}"
        )
    return count // layers


def level(model: nn.Module) -> nn.Module:
    """Return a copy of a model that computes the same, with numbers of heads that a stock class holds.

    Key/value heads are repeated, and heads that give zero added, as few as will do: stock classes of
    transformers hold one number for all layers, and Llama's one that divides its width. The cache grows
    accordingly.
    """
    made = copy.deepcopy(model)
    counts = [pair for pair in head_counts(made) if pair[0]]
    if is_level(made) or not counts:
        return made
    most, width = max(h for h, _ in counts), divided_width(made)
    heads = next((n for n in range(most, width + 1) if width % n == 0), most)
    groups = next(n for n in range(1, heads + 1) if heads % n == 0 and _all_fit(counts, heads, n))
    for handle in layer_handles(made):
        _pad(handle, heads, groups)
    settle(made)
    return made


def _parts(layer: int, h: int, g: int, place: dict[HeadId, int], rule: Rule) -> list[list[HeadId]]:
    """Return what can be removed from a layer piece by piece, the dispensable first."""
    if not h:
        return []
    size = h // g
    groups = [[(layer, group * size + i) for i in range(size)] for group in range(g)]
    if rule == "within" and size > 1:
        ranked = [sorted(group, key=place.__getitem__) for group in groups]
        groups = [list(heads) for heads in zip(*ranked, strict=True)]
    return sorted(groups, key=lambda heads: _mean_place(heads, place))


def _mean_place(heads: list[HeadId], place: dict[HeadId, int]) -> float:
    return sum(place[head] for head in heads) / len(heads)


def _take(
    layers: list[list[list[HeadId]]], count: int, shielded: set[HeadId], least: int, place: dict[HeadId, int]
) -> list[HeadId]:
    """Take `count` heads from the parts of the layers, the dispensable first."""
    free, room = free_parts(layers, shielded, least)
    check_exactly(count, room, bool(shielded))
    taken: list[HeadId] = []
    ranked = [(number, part) for number, parts in enumerate(free) for part in parts]
    for number, part in sorted(ranked, key=lambda item: _mean_place(item[1], place)):
        after = without_one(room, number)
        if room[number][1] and count - len(taken) - len(part) in sums_of(after, count):
            taken += part
            room = after
    return taken


Room = Sequence[tuple[int, int]]
"""For each layer how many heads a part has, and how many parts may go."""


def free_parts(
    layers: list[list[list[HeadId]]], shielded: set[HeadId], least: int
) -> tuple[list[list[list[HeadId]]], list[tuple[int, int]]]:
    """Return the parts of each layer that may go, and how many of them, as `Room`; `least` stay of each."""
    free = [[part for part in parts if not shielded & {*part}] for parts in layers]
    room = [
        (len(parts[0]) if parts else 1, min(len(may), max(0, len(parts) - least)))
        for parts, may in zip(layers, free, strict=True)
    ]
    return free, room


def without_one(room: Room, layer: int) -> list[tuple[int, int]]:
    """Return what may go once a part of a layer is gone."""
    return [(size, number - (i == layer)) for i, (size, number) in enumerate(room)]


def sums_of(room: Room, most: int) -> set[int]:
    """Return all numbers of heads, up to `most`, that parts that may go add up to."""
    numbers: dict[int, int] = {}
    for size, number in room:
        numbers[size] = numbers.get(size, 0) + number
    sums = {0}
    for size, number in numbers.items():
        sums = {s + size * n for s in sums for n in range(number + 1) if s + size * n <= most}
    return sums


def check_exactly(count: int, room: Room, protected: bool) -> None:
    """Raise ValueError for a number of heads that the parts that may go do not add up to.

    protected: whether some heads may not go because the user, or what they do, protects them.
    """
    nearest = max(sums_of(room, count))
    if nearest == count:
        return
    raise ValueError(
        f"{count} heads cannot be removed exactly: each layer keeps a part, what may go goes in parts of "
        f"{_sizes(room)} heads, and {nearest} is the nearest below; "
        f"{', or '.join(_ways(nearest, room, protected)) or 'all that is left is needed'}"
    )


def check_evenly(each: int, layers: list[list[list[HeadId]]], room: Room, protected: bool) -> None:
    """Raise ValueError if so many heads cannot go from every layer that has heads; see `check_exactly`."""
    having = [(layer, sums_of([room[layer]], each)) for layer, parts in enumerate(layers) if parts]
    short = [(layer, sums) for layer, sums in having if each not in sums]
    if not short:
        return
    layer, sums = short[0]
    nearest = len(having) * max(set.intersection(*(sums for _, sums in having)))
    raise ValueError(
        f"{each * len(having)} heads cannot be taken evenly, {each} from each of {len(having)} layers: layer "
        f"{layer} can give {max(sums)}, as it keeps a part and what may go goes in parts of "
        f"{_sizes([room[layer]])} heads; {nearest} is the nearest number below that goes evenly; "
        f"{', or '.join([*_ways(nearest, [room[layer]], protected), 'do without uniform'])}"
    )


def _sizes(room: Room) -> str:
    return _listed(sorted({size for size, _ in room}))


def _ways(nearest: int, room: Room, protected: bool) -> list[str]:
    """Return what can be done where a number of heads cannot be removed."""
    ways = ["ask for that"] if nearest else []
    ways += ["protect fewer heads"] if protected else []
    ways += ["take another rule"] if {size for size, _ in room} != {1} else []
    return ways


def _remove(handle: LayerHandle, heads: set[int]) -> None:
    """Remove query heads from one layer, and the key/value heads that nothing reads any more."""
    h, g = handle.n_head, handle.n_kv_head
    size = h // g
    groups = [[head for head in range(k * size, (k + 1) * size) if head not in heads] for k in range(g)]
    stay = [k for k in range(g) if groups[k]]
    sizes = {len(groups[k]) for k in stay}
    if len(sizes) > 1:
        raise ValueError(
            f"layer {handle.index} has {h} query heads in {g} groups of {size}; without heads "
            f"{', '.join(map(str, sorted(heads)))} its groups would have {_listed(sizes)} heads: remove "
            f"whole groups (a multiple of {size} heads), or equally many from each group (a multiple of {g})"
        )
    if stay:
        kept = [head for k in stay for head in groups[k]]
        write_weights(handle, read_weights(handle).take(kept, stay))
        return
    if not isinstance(handle.block, Block):
        raise ValueError(
            f"all {h} heads of layer {handle.index} would go, and {type(handle.block).__name__} has no form "
            "without attention; leave one, or convert the model to headwise's own, which has"
        )
    bias = handle.o_proj.bias
    nothing = NoHeads(handle.o_proj.out_features, bias=bias is not None).to(handle.o_proj.weight)
    if nothing.bias is not None and bias is not None:
        with torch.no_grad():
            nothing.bias.copy_(bias)
    handle.block.attention = nothing.train(handle.block.training)


def _all_fit(counts: list[tuple[int, int]], heads: int, groups: int) -> bool:
    return all(_repeats(h, g, heads, groups) for h, g in counts)


def _repeats(h: int, g: int, heads: int, groups: int) -> int:
    """Return how often to repeat g key/value heads so that they fit into so many groups; 0 if they cannot."""
    size = h // g
    fitting = (
        r for r in range(1, size + 1) if size % r == 0 and g * r <= groups and size // r * groups <= heads
    )
    return next(fitting, 0)


def _pad(handle: LayerHandle, heads: int, groups: int) -> None:
    """Bring a layer to so many heads and groups: repeat key/value heads, then add heads that give zero."""
    h, g = handle.n_head, handle.n_kv_head
    weights = read_weights(handle)
    times = _repeats(h, g, heads, groups)
    weights = weights.take(range(h), [k for k in range(g) for _ in range(times)])
    missing_groups, missing = groups - g * times, heads // groups - weights.group_size
    size = weights.group_size
    weights = replace(
        weights,
        q=_padded(weights.q, size, missing, missing_groups),
        o=_padded(weights.o, size, missing, missing_groups),
        k=_padded(weights.k, 1, 0, missing_groups),
        v=_padded(weights.v, 1, 0, missing_groups),
        sink=None if weights.sink is None else _padded(weights.sink, size, missing, missing_groups),
    )
    write_weights(handle, weights)


def _padded(heads: Tensor, size: int, more: int, more_groups: int) -> Tensor:
    """Add zeros: `more` heads to each group of `size`, and groups of the size that comes of it."""
    grouped = heads.reshape(-1, size, *heads.shape[1:])
    each = grouped.new_zeros(len(grouped), more, *heads.shape[1:])
    grouped = torch.cat((grouped, each), dim=1)
    groups = grouped.new_zeros(more_groups, *grouped.shape[1:])
    return torch.cat((grouped, groups)).flatten(0, 1)


def _listed(numbers: Collection[int]) -> str:
    return " or ".join(map(str, sorted(numbers)))
