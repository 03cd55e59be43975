"""What is asked of a model: how many sequences, how long, in which numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, Self

from headwise.cost.numbers import BITS, FLOATS, check_dtype, whole

Scales = Literal["none", "layer", "token-head"]
SCALES: tuple[Scales, ...] = ("none", "layer", "token-head")


@dataclass(frozen=True)
class Workload:
    """B sequences of T tokens.

    Attributes:
        batch, length: B and T.
        dtype: of weights and activations: fp64, fp32, bf16 or fp16.
        state_dtype: of weights, gradients and AdamW's two moments in training; default `dtype`. Mixed
            precision is dtype="bf16", state_dtype="fp32".
        cache_dtype: of cached keys and values, also fp8, int8 or int4; default `dtype`.
        cache_scales: fp32 scales kept with them: "none", "layer" (one for the keys and one for the values of
            a layer) or "token-head" (one for each cached vector). Default: token-head for int8 and int4,
            layer for fp8, none for the others.
        cache_block: the cache grows in blocks of this many tokens.

    Raises:
        TypeError, ValueError: a number that is not whole or below 1, an unknown type.
    """

    batch: int = 1
    length: int = 1024
    dtype: str = "fp16"
    state_dtype: str | None = None
    cache_dtype: str | None = None
    cache_scales: Scales | None = None
    cache_block: int = 1

    def __post_init__(self) -> None:
        for name in ("batch", "length", "cache_block"):
            whole(name, getattr(self, name))
        check_dtype("dtype", self.dtype, FLOATS)
        check_dtype("state_dtype", self.states, FLOATS)
        check_dtype("cache_dtype", self.cached)
        if self.cache_scales is not None and self.cache_scales not in SCALES:
            raise ValueError(f"cache_scales must be one of {', '.join(SCALES)}, got {self.cache_scales!r}")

    @property
    def states(self) -> str:
        """Type of weights, gradients and moments in training."""
        return self.state_dtype or self.dtype

    @property
    def cached(self) -> str:
        """Type of cached keys and values."""
        return self.cache_dtype or self.dtype

    @property
    def scales(self) -> Scales:
        """The scales that are kept with the cache."""
        if self.cache_scales is not None:
            return self.cache_scales
        if self.cached == "fp8":
            return "layer"
        return "token-head" if self.cached.startswith("int") else "none"

    @property
    def number(self) -> int:
        """Bytes of a weight or an activation."""
        return BITS[self.dtype] // 8

    def with_(self, *, batch: int | None = None, length: int | None = None) -> Self:
        """The same with another batch or length."""
        return replace(self, batch=batch or self.batch, length=length or self.length)
