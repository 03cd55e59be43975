"""Rules made from a user's tensors: lengths of sequences, tables of who may see whom."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from headwise.attention.mask_rules import Region, Rule


@dataclass(frozen=True, eq=False)
class FromTensor(Rule):
    """A rule about a tensor, which is kept and never copied, or the opposite of that rule."""

    source: Tensor
    negated: bool = False

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FromTensor) or type(other) is not type(self):
            return False
        return other.source is self.source and other.negated == self.negated

    def __hash__(self) -> int:
        return hash((type(self), id(self.source), self.negated))

    @abstractmethod
    def _table(self, region: Region, device: torch.device) -> Tensor:
        """Return what the rule allows before it is negated: (B|1, H|1, rows|1, keys)."""

    def allowed(self, region: Region, device: torch.device) -> Tensor:
        table = self._table(region, device)
        return ~table if self.negated else table

    def opposite(self) -> Self:
        return replace(self, negated=not self.negated)

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.source,)


@dataclass(frozen=True, eq=False)
class Lengths(FromTensor):
    """Key padding: sequence b of the batch has ``source[b]`` real keys, the first ones."""

    maker: str = "Mask.lengths"

    def words(self) -> str:
        which = "the keys from t[b] on" if self.negated else "the first t[b] keys"
        return f"{which} of its sequence b (t holds {_count(self.source.shape[0], 'length')})"

    def _table(self, region: Region, device: torch.device) -> Tensor:
        key = torch.arange(region.key, region.key + region.keys, device=device)
        return key < self.source[:, None, None, None]  # (B, 1, 1, keys)

    def sizes(self) -> tuple[int, int]:
        return self.source.shape[0], 1

    def check(self, T: int, S: int, B: int | None, H: int | None) -> None:
        count = self.source.shape[0]
        if B is None or count in (1, B):
            return
        raise ValueError(
            f"{self.maker} got {_count(count, 'length')} for a batch of {B}; "
            + (
                "batch and time look swapped: give one length per sequence, not one per token"
                if count in (T, S)
                else "give one per sequence"
            )
        )


@dataclass(frozen=True, eq=False)
class Given(FromTensor):
    """A table of the user's, (T, S), (B, T, S) or (B, H, T, S), True where the query may attend."""

    def words(self) -> str:
        return f"the keys where a {tuple(self.source.shape)} tensor is {not self.negated}"

    @property
    def table(self) -> Tensor:
        """The user's tensor as (B|1, H|1, T|1, S), without a copy."""
        t = self.source
        return t[None, None] if t.ndim == 2 else t[:, None] if t.ndim == 3 else t

    def _table(self, region: Region, device: torch.device) -> Tensor:
        del device
        table = self.table[..., region.key : region.key + region.keys]
        if table.shape[-2] != 1:
            table = table[..., region.row : region.row + region.rows, :]
        return table

    def sizes(self) -> tuple[int, int]:
        return self.table.shape[0], self.table.shape[1]

    def check(self, T: int, S: int, B: int | None, H: int | None) -> None:
        shape = tuple(self.table.shape)
        wanted = ("B", B), ("H", H), ("T", T)
        fits = shape[-1] == S and all(
            size is None or have in (1, size) for have, (_, size) in zip(shape, wanted, strict=False)
        )
        if fits:
            return
        sizes = ", ".join(f"{letter}={size}" for letter, size in (*wanted, ("S", S)) if size is not None)
        name = "Mask.hide" if self.negated else "Mask.keep"
        raise ValueError(
            f"{name} got a tensor of shape {tuple(self.source.shape)} for scores with {sizes}; "
            f"{self._likely_cause(T, S, B, H)}"
        )

    def _likely_cause(self, T: int, S: int, B: int | None, H: int | None) -> str:
        shape = tuple(self.source.shape)
        if (T != S and shape[-2:] == (S, T)) or (S != 1 and shape[-2:] == (S, 1)):
            return "it looks transposed: rows are queries and columns are keys"
        if B is not None and B != S and shape[-1] == B and S in shape[:-1]:
            return "batch and time look swapped: the last axis is S, so write t.T[:, None, None, :]"
        if B is not None and B != T and len(shape) == 3 and shape == (T, B, S):
            return "batch and time look swapped: write t.transpose(0, 1)"
        if len(shape) == 2 and shape[1] == S:
            return "a 2-D tensor is (T, S), so write key padding of shape (B, S) as t[:, None, None, :]"
        if len(shape) == 3 and H is not None and B is not None and shape[-1] == S:
            if shape[0] == H:
                return "three axes are (B, T, S), so write a table per head as t[None]"
            if shape[0] == B * H:
                return (
                    "for the (B·H, T, S) of nn.MultiheadAttention use Mask.from_torch(attn_mask=…, n_head=…)"
                )
        return "give (T, S), (B, T, S) or (B, H, T, S), where B, H and T may be 1"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
