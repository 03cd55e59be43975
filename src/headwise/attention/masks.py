"""Who may see whom: masks as values that combine, and become tensors only when a backend needs one.

Letters: B batch, H query heads, T queries, S keys. Query i of T sits at position ``offset + i``; by default
``offset = S - T``, so that the last query sits at the last key (bottom-right).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

_BARE_TENSOR = (
    "a mask must be a Mask, got a bare {kind}; write Mask.keep(t) if True means 'may attend' "
    "or Mask.hide(t) if True means 'may not attend'"
)


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


class Rule(ABC):
    """One condition on (query, key) pairs; a `Mask` is the conjunction of some."""

    @abstractmethod
    def words(self) -> str:
        """Say which keys a query sees, as the end of the sentence "a query sees …"."""

    @abstractmethod
    def allowed(self, region: Region, device: torch.device) -> Tensor:
        """Return True where the query may attend: (B|1, H|1, rows|1, keys)."""

    def crop(self, region: Region) -> Region:
        """Return the smallest rectangle within ``region`` outside which this rule hides every pair."""
        return region

    def hides_nothing(self, region: Region) -> bool:
        """Return True only if every pair of the region is known to be allowed, without looking at tensors."""
        del region
        return False

    def tensor(self) -> Tensor | None:
        """Return the tensor the rule was made from, if any."""
        return None

    def varies_by_head(self) -> bool:
        """Return True if the rule may differ between the heads of one sequence."""
        return False

    def check(self, T: int, S: int, B: int | None, H: int | None) -> None:
        """Raise ValueError if the rule does not fit scores of shape (B, H, T, S); None means any size."""
        del T, S, B, H


@dataclass(frozen=True)
class Band(Rule):
    """Causality: a query at position p sees keys p - size + 1 … p; size None sees all keys up to p."""

    size: int | None

    def words(self) -> str:
        if self.size is None:
            return "its own key and all before it"
        if self.size == 1:
            return "its own key only"
        return f"its own key and the {self.size - 1} before it"

    def allowed(self, region: Region, device: torch.device) -> Tensor:
        first = region.offset + region.row
        position = torch.arange(first, first + region.rows, device=device)[:, None]
        key = torch.arange(region.key, region.key + region.keys, device=device)[None, :]
        seen = key <= position
        if self.size is not None:
            seen = seen & (key > position - self.size)
        return seen[None, None]

    def crop(self, region: Region) -> Region:
        row_end, key_end = region.row + region.rows, region.key + region.keys
        row = min(max(region.row, region.key - region.offset), row_end)
        key = region.key
        if self.size is not None:
            row_end = max(row, min(row_end, key_end + self.size - 1 - region.offset))
            key = min(max(key, region.offset + row - self.size + 1), key_end)
        key_end = max(key, min(key_end, region.offset + row_end))
        return Region(row, row_end - row, key, key_end - key, region.offset)

    def hides_nothing(self, region: Region) -> bool:
        first = region.offset + region.row
        last_key = region.key + region.keys - 1
        return first >= last_key and self._reaches_back(region)

    def is_top_left(self, region: Region) -> bool:
        """Return True if within the region row r sees exactly keys 0 … r, counted from its corner."""
        return region.offset + region.row == region.key and self._reaches_back(region)

    def _reaches_back(self, region: Region) -> bool:
        last = region.offset + region.row + region.rows - 1
        return self.size is None or last - self.size + 1 <= region.key


@dataclass(frozen=True, eq=False)
class Lengths(Rule):
    """Key padding: sequence b of the batch has ``lengths[b]`` real keys, the first ones."""

    lengths: Tensor

    def words(self) -> str:
        return f"the first t[b] keys of its sequence b (t holds {self.lengths.shape[0]} lengths)"

    def allowed(self, region: Region, device: torch.device) -> Tensor:
        key = torch.arange(region.key, region.key + region.keys, device=device)
        return key < self.lengths[:, None, None, None]  # (B, 1, 1, keys)

    def tensor(self) -> Tensor:
        return self.lengths

    def check(self, T: int, S: int, B: int | None, H: int | None) -> None:
        if B is not None and self.lengths.shape[0] not in (1, B):
            raise ValueError(
                f"Mask.lengths got {self.lengths.shape[0]} lengths for a batch of {B}; give one per sequence"
            )


@dataclass(frozen=True, eq=False)
class Given(Rule):
    """A tensor of the user's: ``table`` is (B|1, H|1, T|1, S), True where the query may attend."""

    table: Tensor
    given: tuple[int, ...]
    hides: bool

    def words(self) -> str:
        polarity = "False" if self.hides else "True"
        return f"the keys where a {self.given} tensor is {polarity}"

    def allowed(self, region: Region, device: torch.device) -> Tensor:
        del device
        table = self.table[..., region.key : region.key + region.keys]
        if table.shape[-2] != 1:
            table = table[..., region.row : region.row + region.rows, :]
        return table

    def tensor(self) -> Tensor:
        return self.table

    def varies_by_head(self) -> bool:
        return self.table.shape[1] != 1

    def check(self, T: int, S: int, B: int | None, H: int | None) -> None:
        wanted = ("B", B), ("H", H), ("T", T)
        fits = self.table.shape[-1] == S and all(
            size is None or have in (1, size)
            for have, (_, size) in zip(self.table.shape, wanted, strict=False)
        )
        if fits:
            return
        sizes = ", ".join(f"{letter}={size}" for letter, size in (*wanted, ("S", S)) if size is not None)
        name = "Mask.hide" if self.hides else "Mask.keep"
        raise ValueError(
            f"{name} got a tensor of shape {self.given} for scores with {sizes}; {self._advice(T, S)}"
        )

    def _advice(self, T: int, S: int) -> str:
        if T != S and tuple(self.table.shape[-2:]) == (S, T):
            return "it looks transposed: rows are queries and columns are keys"
        if len(self.given) == 2 and self.given[1] == S:
            return "a 2-D tensor is (T, S), so write key padding of shape (B, S) as t[:, None, None, :]"
        return "give (T, S), (B, T, S) or (B, H, T, S), where B, H and T may be 1"


@dataclass(frozen=True, eq=False, repr=False)
class Mask:
    """Which keys each query may attend to; immutable, made by the constructors below, combined with ``&``.

    A mask knows its rules, not the sizes: one ``Mask.causal()`` serves any T and S, with or without a cache.
    Tensors given to it are kept, not copied, so do not write into them afterwards.

    Example: ``Mask.causal() & Mask.lengths(torch.tensor([3, 5]))``.
    """

    rules: tuple[Rule, ...]

    @staticmethod
    def causal() -> Mask:
        """A query sees the keys at its own position and before it."""
        return Mask((Band(None),))

    @staticmethod
    def window(n: int) -> Mask:
        """A query sees n keys: the one at its own position and the n - 1 before it (n ≥ 1).

        Raises TypeError if n is not an int, ValueError if it is below 1.
        """
        if isinstance(n, bool) or not isinstance(n, int):
            raise TypeError(
                f"Mask.window needs an int, got {type(n).__name__}; n counts the keys seen, itself included"
            )
        if n < 1:
            raise ValueError(f"Mask.window got n={n}; a query sees at least itself, so give n ≥ 1")
        return Mask((Band(n),))

    @staticmethod
    def lengths(t: Int[Tensor, " B"]) -> Mask:
        """Key padding: queries of sequence b see only its keys 0 … t[b] - 1.

        t is an integer tensor (B,). Raises TypeError if it is no integer tensor, ValueError if it is not 1-D.
        """
        if (
            not isinstance(t, Tensor)
            or t.dtype.is_floating_point
            or t.dtype.is_complex
            or t.dtype == torch.bool
        ):
            got = t.dtype if isinstance(t, Tensor) else type(t).__name__
            raise TypeError(
                f"Mask.lengths needs a 1-D integer tensor of real lengths, got {got}; "
                "a True/False table of real keys goes into Mask.keep(t[:, None, None, :])"
            )
        if t.ndim != 1:
            raise ValueError(
                f"Mask.lengths needs a 1-D tensor with one length per sequence, got shape {tuple(t.shape)}"
            )
        return Mask((Lengths(t),))

    @staticmethod
    def keep(t: Bool[Tensor, "*BH T S"]) -> Mask:
        """A query sees the keys where t is True.

        t is a bool tensor of shape (T, S), (B, T, S) or (B, H, T, S); B, H and T may be 1 and are then
        broadcast without a copy, the last axis is always S. Mind that three axes are batch, queries, keys.
        Raises TypeError if t is not a bool tensor, ValueError for another number of axes.
        """
        return Mask((Given(_four_axes(t, "keep"), tuple(t.shape), hides=False),))

    @staticmethod
    def hide(t: Bool[Tensor, "*BH T S"]) -> Mask:
        """A query sees the keys where t is False; shapes and errors as for `keep`."""
        return Mask((Given(~_four_axes(t, "hide"), tuple(t.shape), hides=True),))

    def __and__(self, other: Mask) -> Mask:
        """Return the mask that allows what both allow."""
        require_mask(other)
        bands = [rule for rule in (*self.rules, *other.rules) if isinstance(rule, Band)]
        rest = tuple(rule for rule in (*self.rules, *other.rules) if not isinstance(rule, Band))
        sizes = [band.size for band in bands if band.size is not None]
        if not bands:
            return Mask(rest)
        return Mask((Band(min(sizes) if sizes else None), *rest))

    def __repr__(self) -> str:
        return f"Mask(a query sees {', and only '.join(rule.words() for rule in self.rules)})"

    def to_tensor(
        self, T: int, S: int, *, offset: int | None = None, device: torch.device | str | None = None
    ) -> Bool[Tensor, "*BH T S"]:
        """Show the mask: a bool tensor, True where query i may attend to key j.

        The shape is (T, S), or (B|1, H|1, T, S) if the mask differs between sequences or heads. offset is the
        position of query 0 (default S - T); device defaults to that of the mask's own tensors, else the CPU.
        Raises ValueError if the mask does not fit T and S.
        """
        if T < 0 or S < 0:
            raise ValueError(f"to_tensor needs sizes of at least 0, got T={T}, S={S}")
        self.check(T, S)
        home = torch.device(device) if device is not None else self.device or torch.device("cpu")
        region = Region(0, T, 0, S, S - T if offset is None else offset)
        table = torch.ones(1, 1, T, S, dtype=torch.bool, device=home)
        for rule in self.rules:
            table = table & rule.allowed(region, home).to(home)
        return table[0, 0] if table.shape[:2] == (1, 1) else table

    @property
    def device(self) -> torch.device | None:
        """The device of the mask's tensors, None if it has none."""
        tensors = [tensor for rule in self.rules if (tensor := rule.tensor()) is not None]
        return tensors[0].device if tensors else None

    def check(
        self,
        T: int,
        S: int,
        *,
        B: int | None = None,
        H: int | None = None,
        device: torch.device | None = None,
    ) -> None:
        """Raise ValueError unless the mask fits scores (B, H, T, S) on this device."""
        for rule in self.rules:
            rule.check(T, S, B, H)
            tensor = rule.tensor()
            if device is not None and tensor is not None and tensor.device != device:
                raise ValueError(
                    f"the mask's tensor is on {tensor.device} and q is on {device}; move one with .to(device)"
                )

    def crop(self, region: Region) -> Region:
        """Return the smallest rectangle within the region outside which positions alone hide every pair."""
        for rule in self.rules:
            region = rule.crop(region)
        return region

    def allowed(self, region: Region, device: torch.device) -> Tensor | None:
        """Return True where a query may attend, (B|1, H|1, rows|1, keys), or None if nothing is hidden."""
        table: Tensor | None = None
        for rule in self.rules:
            if not rule.hides_nothing(region):
                part = rule.allowed(region, device)
                table = part if table is None else table & part
        return table

    def varies_by_head(self) -> bool:
        """Return True if the mask may differ between the heads of one sequence."""
        return any(rule.varies_by_head() for rule in self.rules)

    def is_causal(self, region: Region) -> bool:
        """Return True if the mask is exactly: row r of the region sees its keys 0 … r."""
        return all(isinstance(rule, Band) and rule.is_top_left(region) for rule in self.rules)


def require_mask(mask: object) -> None:
    """Raise TypeError, naming `Mask.keep` and `Mask.hide`, if this is not a `Mask`."""
    if not isinstance(mask, Mask):
        raise TypeError(
            _BARE_TENSOR.format(kind="tensor" if isinstance(mask, Tensor) else type(mask).__name__)
        )


def _four_axes(t: Tensor, name: str) -> Tensor:
    """Check a user's bool tensor and give it the axes (B|1, H|1, T|1, S)."""
    if not isinstance(t, Tensor):
        raise TypeError(f"Mask.{name} needs a bool tensor, got {type(t).__name__}")
    if t.dtype != torch.bool:
        raise TypeError(
            f"Mask.{name} needs a bool tensor, got {t.dtype}; write t.bool() if its numbers mean yes and no, "
            "or pass numbers to be added to the scores as bias"
        )
    if t.ndim == 2:
        return t[None, None]
    if t.ndim == 3:
        return t[:, None]
    if t.ndim == 4:
        return t
    raise ValueError(
        f"Mask.{name} needs a tensor (T, S), (B, T, S) or (B, H, T, S), got shape {tuple(t.shape)}"
    )
