"""A request in the terms of PyTorch's FlexAttention: functions of indices, and a plan of the blocks to visit.

Letters: B batch, H query heads, G key/value heads, T queries, S keys. Numbers such as a window's size are
handed over as tensors: a kernel compiled for one window then serves them all.
"""
# every function is given all indices, whether it needs them or not
# ruff: noqa: ARG001, ARG005

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from headwise.attention.mask_documents import Documents
from headwise.attention.mask_positions import Band, Columns
from headwise.attention.mask_rules import AllOf, Always, AnyOf, Region, Rule
from headwise.attention.mask_spans import Spans
from headwise.attention.mask_tables import Given, Lengths
from headwise.attention.request import Request
from headwise.attention.shifted import Shifted

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""From batch, head, query and key index whether the query may attend."""
ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""From a score and its batch, head, query and key index to the score that takes part in the softmax."""

_BLOCK = 128  # FlexAttention's own block, in queries and in keys


@dataclass(frozen=True, eq=False)
class Plan:
    """What the kernel visits, and what nothing may come from."""

    blocks: BlockMask
    alive: Tensor
    """(B|1, H|1, T, 1) bool, True for queries that see at least one key."""
    seen: Tensor
    """(B|1, G|1, S, 1) bool, True for keys that at least one query sees."""


@dataclass(frozen=True, eq=False)
class _Corner:
    """Where index 0 of the kernel lies: scalars on the device."""

    position: Tensor
    row: Tensor
    key: Tensor

    def scalar(self, number: int) -> Tensor:
        return torch.tensor(number, device=self.key.device)


def unknown_rules(rules: tuple[Rule, ...]) -> list[str]:
    """Return the names of the kinds of rule that `plan` cannot put into FlexAttention's terms."""
    names = []
    for rule in rules:
        if isinstance(rule, (AllOf, AnyOf)):
            names += unknown_rules(rule.rules)
        elif isinstance(rule, Shifted):
            names += unknown_rules((rule.rule,))
        elif not isinstance(rule, (Always, Band, Columns, Documents, Given, Lengths)):
            names.append(type(rule).__name__)
    return names


def plan(request: Request) -> Plan | None:
    """Return the blocks to visit, None for all. The mask is looked at in rows of blocks, never as a whole."""
    if request.mask is None and request.bias is None:
        return None
    region, device = request.region, request.q.device
    steps = [_look(request, start) for start in range(0, region.rows, _BLOCK)]
    some, every, alive = (_joined([step[i] for step in steps], axis=2) for i in range(3))
    seen = reduce(torch.logical_or, [step[3] for step in steps])  # (B|1, H|1, S)
    if seen.shape[1] != 1:
        seen = seen.reshape(seen.shape[0], request.k.shape[1], request.group, -1).any(dim=2)  # (B|1, G, S)
    blocks = BlockMask.from_kv_blocks(
        *_ordered(some & ~every),
        *_ordered(every),
        BLOCK_SIZE=_BLOCK,
        mask_mod=_mask_mod(request, device),
        seq_lengths=(region.rows, region.keys),
    )
    return Plan(blocks, alive.unsqueeze(-1), seen.unsqueeze(-1))


def score_mod(request: Request) -> ScoreMod | None:
    """Return what becomes of a scaled score: soft cap, then bias; None if nothing does."""
    cap = None if request.softcap is None else torch.tensor(request.softcap, device=request.q.device)
    bias = None if request.bias is None else request.bias.to(torch.float32)
    if bias is None:
        return None if cap is None else _capped(cap)
    add = _biased(bias)
    if cap is None:
        return add
    bound = _capped(cap)

    def both(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return add(bound(score, b, h, i, j), b, h, i, j)

    return both


def _look(request: Request, start: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Look at one row of blocks, from query ``start`` of the region on.

    Returns whether some and whether all pairs of a block are seen, (B|1, H|1, 1, blocks); whether a query
    sees a key, (B|1, H|1, rows); and whether a key is seen by a query, (B|1, H|1, S).
    """
    region = request.region
    rows, keys = min(_BLOCK, region.rows - start), region.keys
    strip = Region(region.row + start, rows, region.key, keys, region.offset)
    device = request.q.device
    table = None if request.mask is None else request.mask.allowed(strip, device)
    if table is None:
        table = torch.ones(1, 1, 1, keys, dtype=torch.bool, device=device)
    if request.bias is not None:
        bias = request.bias.detach()
        bias = bias if bias.shape[2] == 1 else bias[:, :, start : start + rows]
        table = table & (bias != -math.inf)
    table = table.expand(*table.shape[:2], rows, keys)
    padded = F.pad(table, (0, -keys % _BLOCK, 0, _BLOCK - rows))  # a block that sticks out is never whole
    # (B|1, H|1, queries in a block, blocks, keys in a block)
    blocks = padded.reshape(*padded.shape[:3], -1, _BLOCK)
    some = blocks.any(dim=4).any(dim=2).unsqueeze(2)
    every = blocks.all(dim=4).all(dim=2).unsqueeze(2)
    return some, every, table.any(dim=3), table.any(dim=2)


def _joined(parts: list[Tensor], axis: int) -> Tensor:
    """Join parts (B|1, H|1, …), some of which may be for more sequences or heads than others."""
    batch, heads = (max(part.shape[i] for part in parts) for i in (0, 1))
    return torch.cat([part.expand(batch, heads, *part.shape[2:]) for part in parts], dim=axis)


def _ordered(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Return per row of blocks how many are to be visited, and their numbers, those to be visited first."""
    order = torch.argsort(blocks.to(torch.int32), dim=-1, descending=True, stable=True)
    return blocks.sum(dim=-1, dtype=torch.int32), order.to(torch.int32)


def _mask_mod(request: Request, device: torch.device) -> MaskMod:
    region = request.region
    first, row, key = (
        torch.tensor(number, device=device) for number in (region.first, region.row, region.key)
    )
    rules = () if request.mask is None else request.mask.rules
    return _all([_lower(rule, _Corner(first, row, key)) for rule in rules])


def _lower(rule: Rule, corner: _Corner) -> MaskMod:
    if isinstance(rule, AllOf):
        return _all([_lower(part, corner) for part in rule.rules])
    if isinstance(rule, AnyOf):
        return _any([_lower(part, corner) for part in rule.rules])
    if isinstance(rule, Shifted):
        moved = replace(corner, position=corner.position + rule.first, key=corner.key + rule.first)
        return _lower(rule.rule, moved)
    if isinstance(rule, Band):
        return _any([_between(span, corner, back=True) for span in _scalars(rule.back, corner)])
    if isinstance(rule, Columns):
        return _any([_between(span, corner, back=False) for span in _scalars(rule.index, corner)])
    if isinstance(rule, (Documents, Given, Lengths)):
        mod = (
            _same_document(rule, corner)
            if isinstance(rule, Documents)
            else _table(rule, corner)
            if isinstance(rule, Given)
            else _shorter(rule, corner)
        )
        return _not(mod) if rule.negated else mod
    return _all([]) if rule == Always(True) else _not(_all([]))


def _scalars(spans: Spans, corner: _Corner) -> list[tuple[Tensor | None, Tensor | None]]:
    return [
        (None if low is None else corner.scalar(low), None if high is None else corner.scalar(high))
        for low, high in spans
    ]


def _between(span: tuple[Tensor | None, Tensor | None], corner: _Corner, *, back: bool) -> MaskMod:
    """Whether the way back from query to key, or else the key's index, lies in the span."""
    (low, high), position, key = span, corner.position, corner.key

    def number(i: Tensor, j: Tensor) -> Tensor:
        return i + position - j - key if back else j + key

    ends: list[MaskMod] = []
    if low is not None:
        ends.append(lambda b, h, i, j: number(i, j) >= low)
    if high is not None:
        ends.append(lambda b, h, i, j: number(i, j) < high)
    return _all(ends)


def _shorter(rule: Lengths, corner: _Corner) -> MaskMod:
    lengths, key = rule.source, corner.key
    shared = lengths.shape[0] == 1

    def mod(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return j + key < lengths[b * 0 if shared else b]

    return mod


def _table(rule: Given, corner: _Corner) -> MaskMod:
    table, row, key = rule.table, corner.row, corner.key
    one = tuple(size == 1 for size in table.shape)

    def mod(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return table[b * 0 if one[0] else b, h * 0 if one[1] else h, i * 0 if one[2] else i + row, j + key]

    return mod


def _same_document(rule: Documents, corner: _Corner) -> MaskMod:
    ids, position, key = rule.rows, corner.position, corner.key
    shared, count = ids.shape[0] == 1, ids.shape[1]

    def mod(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        sequence = b * 0 if shared else b
        place = i + position
        own = ids[sequence, place.clamp(0, count - 1)]
        return (own == ids[sequence, j + key]) & (place >= 0) & (place < count)

    return mod


def _all(mods: list[MaskMod]) -> MaskMod:
    if not mods:
        return lambda b, h, i, j: j >= 0
    return reduce(_and, mods)


def _any(mods: list[MaskMod]) -> MaskMod:
    return reduce(_or, mods)


def _and(one: MaskMod, other: MaskMod) -> MaskMod:
    return lambda b, h, i, j: one(b, h, i, j) & other(b, h, i, j)


def _or(one: MaskMod, other: MaskMod) -> MaskMod:
    return lambda b, h, i, j: one(b, h, i, j) | other(b, h, i, j)


def _not(mod: MaskMod) -> MaskMod:
    return lambda b, h, i, j: ~mod(b, h, i, j)


def _capped(cap: Tensor) -> ScoreMod:
    return lambda score, b, h, i, j: cap * (score / cap).tanh()


def _biased(bias: Tensor) -> ScoreMod:
    one = tuple(size == 1 for size in bias.shape)

    def mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (
            score
            + bias[
                b * 0 if one[0] else b, h * 0 if one[1] else h, i * 0 if one[2] else i, j * 0 if one[3] else j
            ]
        )

    return mod
