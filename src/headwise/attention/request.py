"""One call of attention as a value: what was asked, checked once, and what its mask lets through.

Letters: B batch, H query heads, G key/value heads, T queries, S keys, K head width of q and k, V that of v.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.attention.masks import Mask, Region, require_mask


@dataclass(frozen=True)
class WeightsOf:
    """Which weights to return: those of some heads, of some queries, or both; None means all.

    Indices count as in a list, so that -1 is the last one. The cost is that of those heads and queries,
    whatever backend computes the output.

    Example: ``WeightsOf(heads=[3], rows=slice(-1, None))`` is what head 3 looks at from the last query.
    """

    heads: Sequence[int] | None = None
    rows: Sequence[int] | slice | None = None

    def resolve(self, heads: int, queries: int) -> tuple[list[int], list[int]]:
        """Return the heads and the queries as indices from 0, of so many; raises TypeError or ValueError."""
        chosen_rows = self.rows if self.rows is not None else slice(None)
        return (
            list(range(heads)) if self.heads is None else _indices("heads", self.heads, heads),
            list(range(queries))[chosen_rows]
            if isinstance(chosen_rows, slice)
            else _indices("rows", chosen_rows, queries),
        )


def _indices(name: str, chosen: Sequence[int], size: int) -> list[int]:
    if isinstance(chosen, str) or not isinstance(chosen, Sequence):
        raise TypeError(
            f"WeightsOf({name}=…) needs a sequence of ints such as [0, 2], got {type(chosen).__name__}"
        )
    for index in chosen:
        if isinstance(index, bool) or not isinstance(index, int):
            raise TypeError(f"WeightsOf({name}=…) needs ints, got {type(index).__name__} in it")
        if not -size <= index < size:
            raise ValueError(f"WeightsOf({name}=…) got {index}, but this call has {size} of them")
    return [index % size for index in chosen]


@dataclass(frozen=True, eq=False)
class Sight:
    """What a mask lets through, and what it leaves blind."""

    allowed: Tensor
    """(B|1, H|1, T|1, S) bool, True where the query may attend."""
    alive: Tensor
    """(B|1, H|1, T|1, 1) bool, True for queries that see at least one key."""
    seen: Tensor
    """(B|1, G|1, S, 1) bool, True for keys that at least one query sees."""

    def blank_queries(self, q: Tensor) -> Tensor:
        """Put zeros into blind queries: a NaN there would spread through a product with weight 0."""
        return q.masked_fill(~self.alive, 0.0)

    def blank_keys(self, k: Tensor) -> Tensor:
        """Put zeros into keys (or values) that no query sees, for the same reason."""
        return k.masked_fill(~self.seen, 0.0)

    def surely_alive(self) -> bool:
        """Whether every query sees a key, if that can be looked at without making a device wait."""
        return self.alive.device.type == "cpu" and not unseen_by_python() and bool(self.alive.all())

    def hide(self, score: Tensor) -> Tensor:
        """Put -inf where a query may not attend; a blind row gets zeros, so that its softmax makes no NaN."""
        if self.surely_alive():
            return score.masked_fill(~self.allowed, -math.inf)
        hidden = torch.zeros_like(self.alive, dtype=score.dtype).masked_fill(self.alive, -math.inf)
        return torch.where(self.allowed, score, hidden)


@dataclass(frozen=True, eq=False)
class Request:
    """A checked call, cut down to the queries and keys that positions leave in play.

    q (B, H, T, K), k (B, G, S, K), v (B, G, S, V), bias (B|1, H|1, T|1, S|1); T and S are the region's.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Mask | None
    region: Region
    bias: Tensor | None
    scale: float
    dropout: float
    softcap: float | None
    sink: Tensor | None
    """(H,), per query head one more logit in the denominator of the softmax."""
    return_weights: bool

    @property
    def group(self) -> int:
        """Query heads per key/value head, H // G."""
        return self.q.shape[1] // self.k.shape[1]

    @property
    def needs_gradients(self) -> bool:
        """Whether gradients will be asked for."""
        tensors = self.q, self.k, self.v, self.bias, self.sink
        return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)

    @property
    def pairs(self) -> int:
        """The number of scores, B · H · T · S."""
        return math.prod(self.q.shape[:3]) * self.k.shape[2]

    @property
    def is_causal(self) -> bool:
        """Whether exactly this is hidden: from row r all keys after r."""
        if self.mask is None or self.bias is not None or self.region.rows <= 1:
            return False
        return self.mask.is_causal(self.region)

    def sight(self) -> Sight | None:
        """Return what the mask lets through, or None if every query sees every key.

        A bias of -inf hides as well: it is the same statement, and a row of nothing else must give zeros too.
        """
        allowed = None if self.mask is None else self.mask.allowed(self.region, self.q.device)
        return sight_of(allowed, self.bias, groups=self.k.shape[1], keys=self.k.shape[2])


def sight_of(allowed: Tensor | None, bias: Tensor | None, *, groups: int, keys: int) -> Sight | None:
    """Return what a table (B|1, H|1, T|1, S) and a bias let through, None if every query sees every key."""
    if bias is not None:
        above = bias.detach() != -math.inf
        allowed = above.expand(*above.shape[:3], keys) if allowed is None else allowed & above
    if allowed is None:
        return None
    seen = allowed.any(dim=-2)  # (B|1, H|1, S)
    if seen.shape[1] != 1:
        seen = seen.reshape(seen.shape[0], groups, seen.shape[1] // groups, keys).any(dim=2)  # (B|1, G, S)
    return Sight(allowed, allowed.any(dim=-1, keepdim=True), seen.unsqueeze(-1))


def unseen_by_python() -> bool:
    """Return True while torch.compile traces or torch.func transforms: numbers cannot be looked at then."""
    return torch.compiler.is_compiling() or transforming()


def transforming() -> bool:
    """Return True inside torch.func transforms (vmap, grad, jvp …), which only plain operations survive."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def make_request(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask | None,
    bias: Tensor | None,
    scale: float | None,
    dropout: float,
    offset: int | None,
    softcap: float | None,
    sink: Tensor | None,
    return_weights: bool,
) -> Request:
    """Check every argument of `attention` and cut away queries and keys that positions hide altogether.

    Raises TypeError or ValueError as `attention` says.
    """
    _check_tensors(q, k, v)
    batch, heads, queries, width = q.shape
    keys = k.shape[2]
    if offset is None:
        offset = keys - queries
    elif isinstance(offset, bool) or not isinstance(offset, int):
        raise TypeError(
            f"offset must be an int, the position of the first query, got {type(offset).__name__}"
        )
    if not 0.0 <= dropout < 1.0:
        raise ValueError(f"dropout must lie in 0 ≤ dropout < 1, got {dropout}")
    if scale is None:
        scale = 1.0 / math.sqrt(width)
    elif not math.isfinite(scale):
        raise ValueError(f"scale must be a finite number, got {scale}")
    if softcap is not None and not 0.0 < softcap < math.inf:
        raise ValueError(f"softcap must be a finite number above 0, or None for no cap, got {softcap}")
    if sink is not None:
        _check_per_head("sink", sink, q, [(heads,)])
    region = Region(0, queries, 0, keys, offset)
    if bias is not None:
        bias = _checked_bias(bias, (batch, heads, queries, keys), q.device)
    if mask is not None:
        require_mask(mask)
        mask.check(queries, keys, B=batch, H=heads, device=q.device)
        region = mask.crop(region)
        if (region.rows, region.keys) != (queries, keys):
            q = q.narrow(2, region.row, region.rows)
            k, v = k.narrow(2, region.key, region.keys), v.narrow(2, region.key, region.keys)
            if bias is not None and bias.shape[2] != 1:
                bias = bias.narrow(2, region.row, region.rows)
            if bias is not None and bias.shape[3] != 1:
                bias = bias.narrow(3, region.key, region.keys)
    return Request(q, k, v, mask, region, bias, scale, dropout, softcap, sink, return_weights)


_SWAPPED = "axes are (batch, heads, length, width): for (batch, length, heads, width) use transpose(1, 2)"


def _check_tensors(q: Tensor, k: Tensor, v: Tensor) -> None:
    for name, t in (("q", q), ("k", k), ("v", v)):
        if not isinstance(t, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(t).__name__}")
        if not t.dtype.is_floating_point:
            raise TypeError(f"{name} must hold floating-point numbers, got {t.dtype}")
        if t.ndim != 4:
            raise ValueError(
                f"{name} must have four axes (batch, heads, length, width), got shape {tuple(t.shape)}; "
                "add the missing ones with unsqueeze or split the heads off the width"
            )
    if not q.dtype == k.dtype == v.dtype:
        raise TypeError(
            f"q, k and v must share one dtype, got {q.dtype}, {k.dtype} and {v.dtype}; "
            "convert them with .to(dtype)"
        )
    if not q.device == k.device == v.device:
        raise ValueError(
            f"q, k and v must be on one device, got {q.device}, {k.device} and {v.device}; "
            "move them with .to(device)"
        )
    if not q.shape[0] == k.shape[0] == v.shape[0]:
        raise ValueError(f"q, k and v must have the same batch size, the first axis, got {_shapes(q, k, v)}")
    if k.shape[1] != v.shape[1]:
        raise ValueError(f"k and v must have the same number of heads, got {_shapes(q, k, v)}; {_SWAPPED}")
    if k.shape[2] != v.shape[2]:
        raise ValueError(f"k and v must have the same length, a value per key, got {_shapes(q, k, v)}")
    if q.shape[3] != k.shape[3] or q.shape[3] == 0:
        raise ValueError(f"q and k must have the same width d_head, at least 1, got {_shapes(q, k, v)}")
    if q.shape[1] == 0 or k.shape[1] == 0 or q.shape[1] % k.shape[1] != 0:
        raise ValueError(
            f"q must have a multiple of the heads of k and v, got {_shapes(q, k, v)}; {_SWAPPED}"
        )


def _shapes(q: Tensor, k: Tensor, v: Tensor) -> str:
    return f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"


def check_gate(gate: Tensor, q: Tensor) -> None:
    """Raise TypeError or ValueError unless the gate is a float tensor (H,) or (B, H) on the device of q."""
    batch, heads = q.shape[:2]
    _check_per_head("gate", gate, q, [(heads,), (batch, heads)])


def _check_per_head(name: str, given: Tensor, q: Tensor, shapes: list[tuple[int, ...]]) -> None:
    if not isinstance(given, Tensor):
        raise TypeError(f"{name} must be a float tensor, got {type(given).__name__}")
    if not given.dtype.is_floating_point:
        raise TypeError(
            f"{name} must hold floating-point numbers, got {given.dtype}; convert it with .to(q.dtype)"
        )
    if tuple(given.shape) not in shapes:
        wanted = " or ".join(
            f"{letters} = {shape}" for letters, shape in zip(("(H,)", "(B, H)"), shapes, strict=False)
        )
        raise ValueError(
            f"{name} must have one number per query head, {wanted}, got shape {tuple(given.shape)}"
        )
    if given.device != q.device:
        raise ValueError(
            f"{name} is on {given.device} and q is on {q.device}; move one of them with .to(device)"
        )


def _checked_bias(bias: Tensor, scores: tuple[int, int, int, int], device: torch.device) -> Tensor:
    """Return the bias with four axes, or raise."""
    if not isinstance(bias, Tensor):
        raise TypeError(f"bias must be a float tensor added to the scores, got {type(bias).__name__}")
    if not bias.dtype.is_floating_point:
        raise TypeError(
            f"bias must hold floating-point numbers that are added to the scores, got {bias.dtype}; "
            "to hide keys use mask=Mask.keep(t) or Mask.hide(t)"
        )
    if bias.device != device:
        raise ValueError(f"bias is on {bias.device} and q is on {device}; move one of them with .to(device)")
    if bias.ndim > 4 or any(
        have not in (1, size) for have, size in zip(reversed(bias.shape), reversed(scores), strict=False)
    ):
        raise ValueError(
            f"bias of shape {tuple(bias.shape)} does not broadcast to the scores (B, H, T, S) = {scores}; "
            "axes are matched from the right, each must be 1 or equal"
        )
    return bias.reshape((1,) * (4 - bias.ndim) + tuple(bias.shape))
