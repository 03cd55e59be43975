"""What a mask is made of: conditions on (query, key) pairs that combine by and, or, not.

Letters: B batch, H query heads, T queries, S keys. Every kind of condition knows its own opposite, so that a
"not" moves down to the conditions and only "and" and "or" stand above them (De Morgan).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Region:
    """A rectangle of the (T, S) scores: ``rows`` queries from ``row`` on, ``keys`` keys from ``key`` on.

    ``offset`` is the position of query 0 of the whole call (not of the rectangle), keys sit at their index.
    """

    row: int
    rows: int
    key: int
    keys: int
    offset: int

    @property
    def first(self) -> int:
        """The position of the first query."""
        return self.offset + self.row

    @property
    def last(self) -> int:
        """The position of the last query."""
        return self.offset + self.row + self.rows - 1

    @property
    def last_key(self) -> int:
        return self.key + self.keys - 1

    @property
    def empty(self) -> bool:
        return self.rows == 0 or self.keys == 0

    def around(self, other: Region) -> Region:
        """Return the smallest rectangle that holds both."""
        row, key = min(self.row, other.row), min(self.key, other.key)
        rows = max(self.row + self.rows, other.row + other.rows) - row
        keys = max(self.key + self.keys, other.key + other.keys) - key
        return Region(row, rows, key, keys, self.offset)

    def nothing(self) -> Region:
        """Return an empty rectangle at the corner of this one."""
        return Region(self.row, 0, self.key, 0, self.offset)


def bounding_box(parts: list[Region], within: Region) -> Region:
    """Return the smallest rectangle that holds all of these parts of a region."""
    box: Region | None = None
    for part in parts:
        if not part.empty:
            box = part if box is None else box.around(part)
    return within.nothing() if box is None else box


class Rule(ABC):
    """One condition on (query, key) pairs. Immutable; equal only if sure to be the same condition."""

    @abstractmethod
    def words(self) -> str:
        """Say which keys a query sees, as the end of the sentence "a query sees …"."""

    def clause(self) -> str:
        """Return the words so that they can stand between others, in brackets if need be."""
        return self.words()

    @abstractmethod
    def allowed(self, region: Region, device: torch.device) -> Tensor:
        """Return True where the query may attend: (B|1, H|1, rows|1, keys)."""

    @abstractmethod
    def opposite(self) -> Rule:
        """Return the rule that allows exactly what this one hides."""

    def merge(self, other: Rule, *, both: bool) -> Rule | None:
        """Return the one rule that allows what both (else: either) of the two allow, None if not simple."""
        if self == other:
            return self
        return Always(not both) if self.opposite() == other else None

    def crop(self, region: Region) -> Region:
        """Return a rectangle within the region, as small as known, outside which this rule hides every pair.

        Returns the region itself, the same object, if nothing is known.
        """
        return region

    def hides_nothing(self, region: Region) -> bool:
        """Return True only if every pair of the region is known to be allowed, without looking at tensors."""
        del region
        return False

    def is_top_left(self, region: Region) -> bool:
        """Return True only if row r of the region is known to see exactly keys 0 … r, from its corner."""
        del region
        return False

    def tensors(self) -> tuple[Tensor, ...]:
        """Return the tensors the rule was made from."""
        return ()

    def sizes(self) -> tuple[int, int]:
        """Return for how many sequences and heads the rule has something of its own to say; 1 if for any."""
        return 1, 1

    def varies_by_head(self) -> bool:
        """Return True if the rule may differ between the heads of one sequence."""
        return self.sizes()[1] != 1

    def check(self, T: int, S: int, B: int | None, H: int | None) -> None:
        """Raise ValueError if the rule does not fit scores of shape (B, H, T, S); None means any size."""
        del T, S, B, H


@dataclass(frozen=True)
class _Several(Rule):
    rules: tuple[Rule, ...]

    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(tensor for rule in self.rules for tensor in rule.tensors())

    def sizes(self) -> tuple[int, int]:
        return _common_size(self.rules, 0), _common_size(self.rules, 1)

    def varies_by_head(self) -> bool:
        return any(rule.varies_by_head() for rule in self.rules)

    def check(self, T: int, S: int, B: int | None, H: int | None) -> None:
        for rule in self.rules:
            rule.check(T, S, B, H)


@dataclass(frozen=True)
class AllOf(_Several):
    """Allows what all of its rules allow. Made by `all_of`."""

    def words(self) -> str:
        return ", and only ".join(rule.clause() for rule in self.rules)

    def clause(self) -> str:
        return f"({self.words()})"

    def allowed(self, region: Region, device: torch.device) -> Tensor:
        table = allowed_by_all(self.rules, region, device)
        return torch.ones(1, 1, 1, region.keys, dtype=torch.bool, device=device) if table is None else table

    def opposite(self) -> Rule:
        return any_of(rule.opposite() for rule in self.rules)

    def crop(self, region: Region) -> Region:
        return crop_by_all(self.rules, region)

    def hides_nothing(self, region: Region) -> bool:
        return all(rule.hides_nothing(region) for rule in self.rules)

    def is_top_left(self, region: Region) -> bool:
        rest = [rule for rule in self.rules if not rule.hides_nothing(region)]
        return bool(rest) and all(rule.is_top_left(region) for rule in rest)


@dataclass(frozen=True)
class AnyOf(_Several):
    """Allows what at least one of its rules allows. Made by `any_of`."""

    def words(self) -> str:
        return ", or ".join(rule.clause() for rule in self.rules)

    def clause(self) -> str:
        return f"({self.words()})"

    def allowed(self, region: Region, device: torch.device) -> Tensor:
        table: Tensor | None = None
        for rule in self._at_work(region):
            part = rule.allowed(region, device)
            table = part if table is None else table | part
        return torch.zeros(1, 1, 1, region.keys, dtype=torch.bool, device=device) if table is None else table

    def opposite(self) -> Rule:
        return all_of(rule.opposite() for rule in self.rules)

    def crop(self, region: Region) -> Region:
        return bounding_box([rule.crop(region) for rule in self.rules], region)

    def hides_nothing(self, region: Region) -> bool:
        return self.opposite().crop(region).empty

    def is_top_left(self, region: Region) -> bool:
        rest = self._at_work(region)
        return bool(rest) and all(rule.is_top_left(region) for rule in rest)

    def _at_work(self, region: Region) -> list[Rule]:
        """Return the rules that are not known to hide the whole region."""
        return [rule for rule in self.rules if not rule.crop(region).empty]


@dataclass(frozen=True)
class Always(Rule):
    """Allows every pair, or none."""

    allows: bool

    def words(self) -> str:
        return "every key" if self.allows else "no key"

    def allowed(self, region: Region, device: torch.device) -> Tensor:
        return torch.full((1, 1, 1, region.keys), self.allows, device=device)

    def opposite(self) -> Rule:
        return Always(not self.allows)

    def crop(self, region: Region) -> Region:
        return region if self.allows else region.nothing()

    def hides_nothing(self, region: Region) -> bool:
        return self.allows


def all_of(rules: Iterable[Rule]) -> Rule:
    """Return the rule that allows what all of these allow, simplified where that is exact."""
    return _combine(rules, both=True)


def any_of(rules: Iterable[Rule]) -> Rule:
    """Return the rule that allows what at least one of these allows, simplified where that is exact."""
    return _combine(rules, both=False)


def _combine(rules: Iterable[Rule], *, both: bool) -> Rule:
    same, dual = (AllOf, AnyOf) if both else (AnyOf, AllOf)
    parts: list[Rule] = []
    for rule in rules:
        for new in rule.rules if isinstance(rule, same) else (rule,):
            for i, old in enumerate(parts):
                if (whole := old.merge(new, both=both)) is not None:
                    parts[i] = whole
                    break
            else:
                parts.append(new)
    for axis in (0, 1):
        _common_size(parts, axis)
    if Always(not both) in parts:
        return Always(not both)
    parts = [part for part in parts if part != Always(both)]
    # absorption: a and (a or b) is a, a or (a and b) is a
    kept = [p for p in parts if not (isinstance(p, dual) and any(q in p.rules for q in parts))]
    if not kept:
        return Always(both)
    return kept[0] if len(kept) == 1 else same(tuple(kept))


def _common_size(rules: Iterable[Rule], axis: int) -> int:
    """Return the one number of sequences (axis 0) or heads (axis 1) of these rules, or raise ValueError."""
    common = 1
    for rule in rules:
        size = rule.sizes()[axis]
        if size == 1 or size == common:
            continue
        if common != 1:
            what = ("sequences", "heads")[axis]
            raise ValueError(
                f"masks for {common} and for {size} {what} cannot be combined; give both the same"
            )
        common = size
    return common


def allowed_by_all(rules: Iterable[Rule], region: Region, device: torch.device) -> Tensor | None:
    """Return True where all rules allow the pair, (B|1, H|1, rows|1, keys), or None if nothing is hidden."""
    table: Tensor | None = None
    for rule in rules:
        if not rule.hides_nothing(region):
            part = rule.allowed(region, device)
            table = part if table is None else table & part
    return table


def crop_by_all(rules: Iterable[Rule], region: Region) -> Region:
    """Return a rectangle, as small as known, outside which some rule hides every pair."""
    rules = tuple(rules)
    if len(rules) == 1:
        return rules[0].crop(region)
    while True:
        before, cutting = region, 0
        for rule in rules:
            cropped = rule.crop(region)
            cutting += cropped is not region
            region = cropped
        # what one rule cuts away may let another one cut more
        if cutting < 2 or region == before:
            return region
