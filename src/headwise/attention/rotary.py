"""Rotary positions: queries and keys are turned by an angle that grows with their position."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headwise.attention.rotary_scaling import Scaling, frequencies, read_parameters


class Rotary(nn.Module):
    """Rotary position embedding (Su et al. 2021, arXiv:2104.09864).

    Pair i of a vector at position p is turned by p · base^(-2i / W), where W is the width that is turned.
    There are two conventions for what a pair is: half-split, elements i and i + W/2, as in Llama checkpoints
    on Hugging Face; interleaved, elements 2i and 2i + 1, as in the paper, GPT-J and Meta's own Llama files.
    `to_interleaved` and `to_half_split` convert weights between them.

    Angles are computed in float32 and nothing is stored: converting the module cannot spoil them, and no
    length is the longest.
    """

    def __init__(
        self,
        d_head: int,
        base: float = 10000.0,
        *,
        interleaved: bool = False,
        fraction: float = 1.0,
        scaling: Scaling | None = None,
    ) -> None:
        """Choose what is turned and how fast.

        fraction: the part of each head, from its front, that is turned; the rest carries no position.
        scaling: how angles are slowed down for texts longer than those of training: `LinearScaling`,
            `NTKScaling`, `Llama3Scaling` or `YarnScaling`.

        Raises ValueError if base is not above 0 or the turned width not even and positive, TypeError for a
        scaling of another kind.
        """
        super().__init__()
        if d_head < 2 or (fraction == 1.0 and d_head % 2):
            raise ValueError(
                f"rotary positions turn pairs, so d_head must be even and at least 2, got {d_head}"
            )
        if not base > 0:
            raise ValueError(f"base must be above 0, got {base}")
        width = int(d_head * fraction)
        if not 0.0 < fraction <= 1.0 or width < 2 or width % 2:
            raise ValueError(
                "fraction must lie in 0 < fraction ≤ 1 and leave an even number of elements to turn, "
                f"got {fraction} of d_head={d_head}"
            )
        if scaling is not None and not isinstance(scaling, Scaling):
            raise TypeError(
                "scaling must be a LinearScaling, NTKScaling, Llama3Scaling or YarnScaling, "
                f"got {type(scaling).__name__}; Rotary.from_parameters reads a dictionary"
            )
        if scaling is not None:
            scaling.check(base, width)
        self.d_head = d_head
        self.base = base
        self.interleaved = interleaved
        self.width = width
        """The elements of a head, counted from its front, that are turned."""
        self.scaling = scaling

    @classmethod
    def from_parameters(
        cls, d_head: int, parameters: Mapping[str, object], *, interleaved: bool = False
    ) -> Rotary:
        """Return the rotary positions that the ``rope_parameters`` of a Hugging Face config describe.

        Raises ValueError for a kind or a key it does not know: nothing is passed over in silence.
        """
        base, fraction, scaling = read_parameters(parameters)
        return cls(d_head, base, interleaved=interleaved, fraction=fraction, scaling=scaling)

    def forward(
        self, x: Float[Tensor, "B H T K"], positions: Int[Tensor, " T"] | Int[Tensor, "B T"]
    ) -> Float[Tensor, "B H T K"]:
        """Return x turned by its positions, in the dtype of x.

        positions: integers, (T,) for all sequences alike or (B, T). Raises ValueError if shapes do not fit.
        """
        self.check(x, positions)
        return self.turn(x, *self.tables(positions))

    def tables(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cos and sin of the angles in float32: (T, W/2), or (B, 1, T, W/2) for positions (B, T)."""
        speed = frequencies(self.base, self.width, positions.device)
        if self.scaling is not None:
            speed = self.scaling.apply(speed, self.base)
        angles = positions.to(torch.float32).unsqueeze(-1) * speed
        if positions.ndim == 2:
            angles = angles.unsqueeze(1)  # (B, 1, T, W/2): the same for all heads
        cos, sin = angles.cos(), angles.sin()
        if self.scaling is None or self.scaling.magnitude == 1.0:
            return cos, sin
        return cos * self.scaling.magnitude, sin * self.scaling.magnitude

    def turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Turn the pairs of x (…, T, K) by the angles whose `tables` are given, in the dtype of x."""
        partial = self.width < self.d_head
        front = x[..., : self.width] if partial else x
        front = front.to(torch.promote_types(x.dtype, torch.float32))
        first, second = (front[..., 0::2], front[..., 1::2]) if self.interleaved else front.chunk(2, dim=-1)
        pair = first * cos - second * sin, second * cos + first * sin
        turned = torch.stack(pair, dim=-1).flatten(-2) if self.interleaved else torch.cat(pair, dim=-1)
        turned = turned.to(x.dtype)
        return torch.cat((turned, x[..., self.width :]), dim=-1) if partial else turned

    def check(self, x: Tensor, positions: Tensor) -> None:
        """Raise ValueError unless x is (B, H, T, d_head) and positions (T,) or (B, T)."""
        if x.ndim != 4 or x.shape[-1] != self.d_head:
            raise ValueError(f"x must be (B, H, T, {self.d_head}), got shape {tuple(x.shape)}")
        if positions.shape not in ((x.shape[2],), (x.shape[0], x.shape[2])):
            raise ValueError(
                f"positions must have shape ({x.shape[2]},) or ({x.shape[0]}, {x.shape[2]}), "
                f"one per vector of x, got {tuple(positions.shape)}"
            )

    def extra_repr(self) -> str:
        parts = [f"d_head={self.d_head}", f"base={self.base:g}"]
        parts.append("interleaved" if self.interleaved else "half-split")
        if self.width != self.d_head:
            parts.append(f"first {self.width} turned")
        if self.scaling is not None:
            parts.append(repr(self.scaling))
        return ", ".join(parts)


def to_interleaved(t: Tensor, n_head: int, width: int | None = None) -> Tensor:
    """Reorder what makes queries or keys for half-split rotary positions into what interleaved ones need.

    t: the weight (n_head · K, …) or bias (n_head · K,) of a query or key projection, or the scale (K,) of a
    norm over heads, with n_head=1. width: the elements of each head that are turned, default K. With both
    projections reordered, scores, outputs and gradients are the same. Raises ValueError for sizes that do not
    fit.
    """
    return _reorder(t, n_head, width, lambda order: order.view(2, -1).T.flatten())


def to_half_split(t: Tensor, n_head: int, width: int | None = None) -> Tensor:
    """Undo `to_interleaved`: make weights for interleaved rotary positions into those for half-split ones."""
    return _reorder(t, n_head, width, lambda order: order.view(-1, 2).T.flatten())


def _reorder(t: Tensor, n_head: int, width: int | None, pairs: Callable[[Tensor], Tensor]) -> Tensor:
    if n_head < 1 or t.ndim < 1 or t.shape[0] % n_head:
        raise ValueError(f"t of shape {tuple(t.shape)} does not hold the rows of n_head={n_head} heads")
    d_head = t.shape[0] // n_head
    width = d_head if width is None else width
    if not 2 <= width <= d_head or width % 2:
        raise ValueError(f"width must be even, at least 2 and at most {d_head}, the head's, got {width}")
    order = torch.arange(d_head, device=t.device)
    order = torch.cat((pairs(order[:width]), order[width:]))
    return t.reshape(n_head, d_head, *t.shape[1:])[:, order].reshape(t.shape)
