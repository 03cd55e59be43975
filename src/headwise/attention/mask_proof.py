"""Proof on a batch that a mask was obeyed, and a look at whether it is the mask that was meant.

Letters: B batch, H query heads, T queries, S keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from headwise.attention.mask_picture import runs
from headwise.attention.mask_rules import Region
from headwise.attention.masks import Mask, require_mask


class Cell(NamedTuple):
    """One weight; batch, head, query and key count from 0."""

    batch: int
    head: int
    query: int
    key: int
    weight: float

    def __str__(self) -> str:
        place = f"batch {self.batch}, head {self.head}, query {self.query}, key {self.key}"
        return f"{place}: weight {self.weight:.3g}"


class RowSum(NamedTuple):
    """What the weights of one query sum to."""

    batch: int
    head: int
    query: int
    total: float

    def __str__(self) -> str:
        return f"batch {self.batch}, head {self.head}, query {self.query}: sum {self.total:.6g}"


@dataclass(frozen=True)
class MaskReport:
    """What `mask_report` found: ``ok`` is the verdict, ``str()`` the whole of it."""

    words: str
    """Which keys a query should see."""
    shape: tuple[int, int, int, int]
    """(B, H, T, S)."""
    hidden: int
    """How many of the B·H·T·S weights the mask hides."""
    leaks: int
    """How many of the hidden weights are not exactly 0."""
    worst_leak: Cell | None
    """The greatest of the leaks, NaN before all."""
    blind_rows: int
    """How many of the B·H·T rows see no key."""
    bad_sums: int
    """How many rows that see a key do not sum to 1."""
    worst_sum: RowSum | None
    """The sum farthest from 1, NaN before all."""
    warnings: tuple[str, ...]
    """Signs that this is not the mask that was meant; they do not count against ``ok``."""

    @property
    def ok(self) -> bool:
        """Whether every hidden weight is exactly 0 and every row that sees a key sums to 1."""
        return self.leaks == 0 and self.bad_sums == 0

    def __str__(self) -> str:
        batch, heads, queries, keys = self.shape
        leaks = f"{self.leaks} not 0, the greatest in {self.worst_leak}" if self.leaks else "all exactly 0"
        sums = f"{self.bad_sums}, the worst in {self.worst_sum}" if self.bad_sums else "none"
        lines = [
            f"{'ok' if self.ok else 'NOT OK'}: a query should see {self.words}",
            f"{batch} × {heads} × {queries} × {keys} weights (batch, head, query, key)",
            f"hidden weights: {self.hidden}, {leaks}",
            f"rows that see no key: {self.blind_rows} of {batch * heads * queries}",
            f"rows that see a key and do not sum to 1: {sums}",
        ]
        return "\n".join([*lines, *(f"warning: {warning}" for warning in self.warnings)])


def mask_report(
    weights: Float[Tensor, "B H T S"],
    mask: Mask,
    *,
    offset: int | None = None,
    sum_to_one: bool = True,
) -> MaskReport:
    """Prove on a batch of attention weights that every weight the mask hides is exactly 0.

    weights: those of every head, before dropout, as ``return_weights=True`` gives them; other libraries' too.
    offset: position of query 0, as in the call that made the weights; default S - T.
    sum_to_one: whether rows that see a key must sum to 1; say False for weights made with a sink, or taken
        after dropout.

    The report also counts the rows that see no key, and warns where mask or weights look as if the mask were
    inverted, transposed, or meant for another offset.

    Raises TypeError if weights are no float tensor or mask is no `Mask`, ValueError if shapes do not fit.
    """
    _check_weights(weights)
    require_mask(mask)
    batch, heads, queries, keys = weights.shape
    mask.check(queries, keys, B=batch, H=heads, device=weights.device)
    offset = keys - queries if offset is None else offset
    weights = weights.detach()
    table = _table(mask, weights, offset)
    leaks, worst = _leaks(weights, table)
    bad_sums, worst_sum = _bad_sums(weights, table) if sum_to_one else (0, None)
    alive = table.any(-1).expand(batch, heads, queries)
    warnings = [*_signs_in_weights(weights, mask, table, offset)] if leaks else []
    return MaskReport(
        words=mask.words(),
        shape=(batch, heads, queries, keys),
        hidden=weights.numel() - int(table.sum()) * (weights.numel() // max(table.numel(), 1)),
        leaks=leaks,
        worst_leak=worst,
        blind_rows=int((~alive).sum()),
        bad_sums=bad_sums,
        worst_sum=worst_sum,
        warnings=(*warnings, *_signs_in_mask(table, offset)),
    )


def _check_weights(weights: Tensor) -> None:
    if not isinstance(weights, Tensor) or not weights.dtype.is_floating_point:
        got = weights.dtype if isinstance(weights, Tensor) else type(weights).__name__
        raise TypeError(f"weights must be a float tensor (B, H, T, S), got {got}")
    if weights.ndim != 4:
        cause = (
            "; nn.MultiheadAttention gives the mean of the heads unless average_attn_weights=False"
            if weights.ndim == 3
            else ""
        )
        raise ValueError(
            f"weights must be (B, H, T, S), those of every head, got shape {tuple(weights.shape)}{cause}"
        )


def _table(mask: Mask, weights: Tensor, offset: int) -> Tensor:
    """Return what the mask allows, (B|1, H|1, T, S)."""
    queries, keys = weights.shape[2:]
    table = mask.allowed(Region(0, queries, 0, keys, offset), weights.device)
    if table is None:
        return torch.ones(1, 1, queries, keys, dtype=torch.bool, device=weights.device)
    return table.expand(*table.shape[:2], queries, keys)


def _of(table: Tensor, b: int) -> Tensor:
    """Return what sequence b may see, (H|1, T, S)."""
    return table[b if table.shape[0] > 1 else 0]


def _leaks(weights: Tensor, table: Tensor) -> tuple[int, Cell | None]:
    count, worst = 0, None
    for b, weight in enumerate(weights):
        leaking = ~_of(table, b) & (weight != 0)  # NaN is not 0 either
        here = int(leaking.sum())
        if not here:
            continue
        count += here
        size = weight.abs().nan_to_num(nan=math.inf).masked_fill(~leaking, -1.0)
        head, query, key = (int(i) for i in torch.unravel_index(size.argmax(), size.shape))
        cell = Cell(b, head, query, key, float(weight[head, query, key]))
        if worst is None or _size(cell.weight) > _size(worst.weight):
            worst = cell
    return count, worst


def _bad_sums(weights: Tensor, table: Tensor) -> tuple[int, RowSum | None]:
    tolerance = max(1e-5, 4 * torch.finfo(weights.dtype).eps)
    count, worst = 0, None
    for b, weight in enumerate(weights):
        alive = _of(table, b).any(-1)  # (H|1, T)
        off = (weight.sum(-1, dtype=torch.float64) - 1).masked_fill(~alive, 0.0)  # (H, T)
        bad = ~(off.abs() <= tolerance)
        here = int(bad.sum())
        if not here:
            continue
        count += here
        size = off.abs().nan_to_num(nan=math.inf)
        head, query = (int(i) for i in torch.unravel_index(size.argmax(), size.shape))
        row = RowSum(b, head, query, float(off[head, query]) + 1)
        if worst is None or _size(row.total - 1) > _size(worst.total - 1):
            worst = row
    return count, worst


def _size(number: float) -> float:
    return math.inf if math.isnan(number) else abs(number)


def _signs_in_weights(weights: Tensor, mask: Mask, table: Tensor, offset: int) -> Iterator[str]:
    """Yield which other mask the weights obey, given that they do not obey this one."""
    queries, keys = weights.shape[2:]
    if bool(table.any()) and not _leaks(weights, ~table)[0]:
        yield (
            "the weights are 0 exactly where the mask allows: it looks inverted "
            "(Mask.keep and Mask.hide exchanged), try ~mask"
        )
    if queries == keys and not torch.equal(table, table.mT) and not _leaks(weights, table.mT)[0]:
        yield "the weights obey the transposed mask: rows are queries and columns are keys"
    for other, name in ((0, "aligned top-left"), (keys - queries, "aligned bottom-right")):
        if other != offset and not _leaks(weights, _table(mask, weights, other))[0]:
            yield f"the weights obey this mask with offset={other}, {name}"


def _signs_in_mask(table: Tensor, offset: int) -> Iterator[str]:
    """Yield what is unusual about a mask (B|1, H|1, T, S)."""
    queries, keys = table.shape[2:]
    if not queries or not keys or not table.numel():
        return
    if not bool(table.any()):
        yield "the mask hides everything"
        return
    yield from _signs_by_position(table, offset)
    whole = table.all(-1) | ~table.any(-1)  # (B|1, H|1, T)
    if bool(whole.all()) and not bool(table.all()):
        seen = table.any(-1).flatten(0, 1)  # (·, T)
        if bool((seen.any(-1) & ~seen.all(-1)).any()):
            yield (
                "whole queries are hidden, not keys: key padding looks transposed, "
                "it is written t[:, None, None, :]"
            )
            return
    yield from _signs_by_sequence(table)


def _signs_by_position(table: Tensor, offset: int) -> Iterator[str]:
    """Yield signs of an inverted causal mask or window."""
    queries, keys = table.shape[2:]
    position = torch.arange(offset, offset + queries, device=table.device)[:, None]
    key = torch.arange(keys, device=table.device)[None, :]
    past, own, future = (key < position), (key == position), (key > position)
    if bool(past.any()) and bool((table & future).any()) and not bool((table & past).any()):
        yield "queries see keys after their own but never one before: the causal mask looks inverted"
    elif queries == keys > 1 and bool(own.any()) and not bool((table & own).any()):
        yield "no query sees the key at its own position: the mask looks inverted"
    else:
        count = table.sum(-1)  # (B|1, H|1, T)
        falls = (count[..., 0] == keys) & (count[..., -1] <= 1) & (count.diff(dim=-1) <= 0).all(-1)
        if queries > 2 and keys > 2 and bool(falls.all()):
            yield (
                "the first query sees every key, the last hardly any: the mask looks inverted or transposed"
            )


def _signs_by_sequence(table: Tensor) -> Iterator[str]:
    """Yield signs of an inverted padding mask."""
    seen = table.any(dim=2).any(dim=1)  # (B|1, S): by any query of any head
    blind = ~seen.any(-1)
    if bool(blind.any()):
        which = runs(blind.nonzero().flatten().tolist())
        yield (
            f"nothing can be seen in sequence {which} of the batch: an inverted padding mask does this to "
            "sequences without padding"
        )
    some = seen[~blind]
    suffixes = bool((some.int().diff(dim=-1) >= 0).all())
    if not bool(some[:, 0].any()) and suffixes and bool((some != some[0]).any()):
        yield (
            "every sequence hides its first keys and shows its last: padding on the left, "
            "or a padding mask that is inverted"
        )
    rows = table.any(-1)
    if not bool(blind.any()) and int(rows.sum()) * 2 < rows.numel():
        yield "more than half of the queries see no key"
