"""Multi-head attention as a module: project, split into heads, attend, join, mix.

Letters: B batch, T queries, S keys, D d_model, H n_head, G n_kv_head, K d_head, V d_value.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, cast, overload

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from headwise.attention.cache import LayerCache
from headwise.attention.counts import counts_that_fit
from headwise.attention.functional import attention, check_backend
from headwise.attention.masks import Mask
from headwise.attention.rotary import Rotary, turn
from headwise.attention.textbook import Head, HeadList

Part = Literal["q", "k", "v", "o"]
"""The four projections: queries, keys, values, output."""


class MultiHeadAttention(nn.Module):
    """Attention with n_head heads over one set of projections: (B, T, d_model) → (B, T, d_model).

    Self-attention, or cross-attention when called with a context. Query head h reads key/value head
    h // (n_head // n_kv_head). Nothing is masked unless a mask is given.
    """

    def __init__(
        self,
        d_model: int,
        n_head: int,
        *,
        n_kv_head: int | None = None,
        d_head: int | None = None,
        d_value: int | None = None,
        d_context: int | None = None,
        bias: bool | Collection[Part] = False,
        dropout: float = 0.0,
        rotary: Rotary | None = None,
        output_projection: bool = True,
        backend: str = "auto",
    ) -> None:
        """Make the projections.

        n_kv_head: number of key/value heads, a divisor of n_head; default n_head.
        d_head: width of a head's queries and keys; default d_model / n_head.
        d_value: width of a head's values; default d_head.
        d_context: width of the context that keys and values are made from; default d_model.
        bias: True for a bias in every projection, or the parts that have one, such as {"o"} or {"q", "v"}.
        dropout: on the weights and on the mixed output, in training only.
        rotary: turns queries and keys by their positions; self-attention only.
        output_projection: False leaves the joined heads unmixed, which needs n_head · d_value = d_model.
        backend: as for `attention`.

        Raises ValueError for sizes that do not fit together, an unknown part or an unknown backend.
        """
        super().__init__()
        for name, size in {
            "d_model": d_model,
            "n_head": n_head,
            "n_kv_head": n_kv_head,
            "d_head": d_head,
            "d_value": d_value,
            "d_context": d_context,
        }.items():
            if size is not None and size < 1:
                raise ValueError(f"{name} must be at least 1, got {size}")
        if d_head is None and d_model % n_head:
            raise ValueError(
                f"d_model={d_model} is not a multiple of n_head={n_head}; "
                f"{counts_that_fit(d_model, n_head)} heads would fit, or give d_head"
            )
        self.d_model = d_model
        self.n_head = n_head
        self.n_kv_head = n_head if n_kv_head is None else n_kv_head
        if n_head % self.n_kv_head:
            raise ValueError(
                f"n_head={n_head} is not a multiple of n_kv_head={self.n_kv_head}; "
                f"{counts_that_fit(n_head, self.n_kv_head)} key/value heads would fit"
            )
        self.d_head = d_model // n_head if d_head is None else d_head
        self.d_value = self.d_head if d_value is None else d_value
        self.d_context = d_model if d_context is None else d_context
        if not 0.0 <= dropout < 1.0:
            raise ValueError(f"dropout must lie in 0 ≤ dropout < 1, got {dropout}")
        self.dropout = dropout
        if rotary is not None and rotary.d_head != self.d_head:
            raise ValueError(f"rotary turns heads of width {rotary.d_head}, but d_head is {self.d_head}")
        self.rotary = rotary
        check_backend(backend)
        self.backend = backend
        biased = _biased_parts(bias, output_projection)
        joined = n_head * self.d_value
        self.q_proj = nn.Linear(d_model, n_head * self.d_head, bias="q" in biased)
        self.k_proj = nn.Linear(self.d_context, self.n_kv_head * self.d_head, bias="k" in biased)
        self.v_proj = nn.Linear(self.d_context, self.n_kv_head * self.d_value, bias="v" in biased)
        self.o_proj: nn.Module
        if output_projection:
            self.o_proj = nn.Linear(joined, d_model, bias="o" in biased)
        elif joined == d_model:
            self.o_proj = nn.Identity()
        else:
            raise ValueError(
                f"output_projection=False needs n_head · d_value = d_model, got {n_head} · {self.d_value} "
                f"= {joined} and d_model={d_model}"
            )

    @classmethod
    def from_heads(cls, heads: HeadList) -> MultiHeadAttention:
        """Return the module that computes what the separate heads do, given ``mask=Mask.causal()``.

        The heads' matrices become the rows of one; weights are copied, dropout and train/eval kept.
        """
        each = [cast(Head, head) for head in heads.heads]
        first = each[0]
        made = cls(first.d_model, len(each), d_head=first.d_head, bias={"o"}, dropout=heads.dropout)
        made.to(device=heads.proj.weight.device, dtype=heads.proj.weight.dtype)
        with torch.no_grad():
            made.q_proj.weight.copy_(torch.cat([head.query.weight for head in each]))  # (H·K, D)
            made.k_proj.weight.copy_(torch.cat([head.key.weight for head in each]))
            made.v_proj.weight.copy_(torch.cat([head.value.weight for head in each]))
        made.o_proj.load_state_dict(heads.proj.state_dict())
        return made.train(heads.training)

    @overload
    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        mask: Mask | None = None,
        bias: Tensor | None = None,
        cache: LayerCache | None = None,
        return_weights: Literal[False] = False,
    ) -> Tensor: ...
    @overload
    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        mask: Mask | None = None,
        bias: Tensor | None = None,
        cache: LayerCache | None = None,
        return_weights: Literal[True],
    ) -> tuple[Tensor, Tensor]: ...
    @overload
    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        mask: Mask | None = None,
        bias: Tensor | None = None,
        cache: LayerCache | None = None,
        return_weights: bool,
    ) -> Tensor | tuple[Tensor, Tensor]: ...
    def forward(
        self,
        x: Float[Tensor, "B T D"],
        context: Float[Tensor, "B S C"] | None = None,
        *,
        mask: Mask | None = None,
        bias: Float[Tensor, "*scores"] | None = None,
        cache: LayerCache | None = None,
        return_weights: bool = False,
    ) -> Float[Tensor, "B T D"] | tuple[Float[Tensor, "B T D"], Float[Tensor, "B H T S"]]:
        """Return the output, with return_weights also every head's weights before dropout.

        context: what keys and values are made from, (B, S, d_context); None means x itself.
        mask, bias: as for `attention`; S counts the cached positions too.
        cache: keys and values of earlier positions; x starts at position cache.length and is appended.

        Raises ValueError or TypeError as `attention` and `LayerCache.append` do, for a context together with
        rotary positions or a cache, and for inputs whose shape, dtype or device does not fit the weights.
        """
        self.check_inputs(x, context, cache)
        q, k, v = self.split(*self.project(x, x if context is None else context))
        if self.rotary is not None:
            start = 0 if cache is None else cache.length
            cos, sin = self.rotary.tables(torch.arange(start, start + x.shape[1], device=x.device))
            q, k = turn(q, cos, sin), turn(k, cos, sin)
        if cache is not None:
            k, v = cache.append(k, v)
        attended = attention(
            q,
            k,
            v,
            mask=mask,
            bias=bias,
            dropout=self.dropout if self.training else 0.0,
            return_weights=return_weights,
            backend=self.backend,
        )
        if isinstance(attended, tuple):
            heads, weights = attended
            return self.mix(self.join(heads)), weights
        return self.mix(self.join(attended))

    def project(self, x: Tensor, context: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return q (B, T, H·K), k (B, S, G·K), v (B, S, G·V)."""
        return self.q_proj(x), self.k_proj(context), self.v_proj(context)

    def split(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Cut the projections into heads: q (B, H, T, K), k (B, G, S, K), v (B, G, S, V)."""
        return (
            q.view(*q.shape[:2], self.n_head, self.d_head).transpose(1, 2),
            k.view(*k.shape[:2], self.n_kv_head, self.d_head).transpose(1, 2),
            v.view(*v.shape[:2], self.n_kv_head, self.d_value).transpose(1, 2),
        )

    def join(self, heads: Tensor) -> Tensor:
        """Put the heads side by side: (B, H, T, V) → (B, T, H·V)."""
        return heads.transpose(1, 2).flatten(2)

    def mix(self, joined: Tensor) -> Tensor:
        """Mix the heads by the output projection, then drop out: (B, T, H·V) → (B, T, D)."""
        return F.dropout(self.o_proj(joined), self.dropout, self.training)

    def check_inputs(self, x: Tensor, context: Tensor | None, cache: LayerCache | None = None) -> None:
        """Raise ValueError or TypeError unless `forward` can work with these inputs."""
        if context is None and self.d_context != self.d_model:
            raise ValueError(
                f"this module was made with d_context={self.d_context}, "
                f"so it needs a context (B, S, {self.d_context})"
            )
        if context is not None and self.rotary is not None:
            raise ValueError(
                "rotary positions relate queries and keys of one sequence; use rotary=None with a context"
            )
        if context is not None and cache is not None:
            raise ValueError("a cache holds keys and values of x itself; give either a cache or a context")
        self._check_input("x", x, self.d_model)
        if context is not None:
            self._check_input("context", context, self.d_context)
            if context.shape[0] != x.shape[0]:
                raise ValueError(
                    f"x has batch size {x.shape[0]} and context {context.shape[0]}; "
                    "both are batch first, (B, length, width)"
                )

    def _check_input(self, name: str, t: Tensor, width: int) -> None:
        if not isinstance(t, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(t).__name__}")
        if t.ndim != 3 or t.shape[2] != width:
            raise ValueError(f"{name} must be (batch, length, {width}), got shape {tuple(t.shape)}")
        weight = self.q_proj.weight
        if t.device != weight.device:
            raise ValueError(
                f"{name} is on {t.device} and the weights are on {weight.device}; move one with .to(device)"
            )
        if not t.dtype.is_floating_point:
            raise TypeError(f"{name} must hold floating-point numbers, got {t.dtype}; embed token ids first")
        device_type = t.device.type
        autocast = torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type)
        if t.dtype != weight.dtype and not autocast:
            raise TypeError(
                f"{name} is {t.dtype} and the weights are {weight.dtype}; convert one with .to(dtype)"
            )

    def extra_repr(self) -> str:
        h, g, k, v = self.n_head, self.n_kv_head, self.d_head, self.d_value
        return (
            f"d_model={self.d_model}, n_head={h}, n_kv_head={g}, d_head={k}, d_value={v}, "
            f"d_context={self.d_context}, dropout={self.dropout}, backend={self.backend!r}\n"
            f"x (B, T, {self.d_model}) → q (B, {h}, T, {k}), k (B, {g}, S, {k}), v (B, {g}, S, {v}) "
            f"→ weights (B, {h}, T, S) → heads (B, {h}, T, {v}) → (B, T, {self.d_model})"
        )


def _biased_parts(bias: bool | Collection[Part], output_projection: bool) -> frozenset[str]:
    if isinstance(bias, bool):
        return frozenset("qkvo" if bias else "")
    unknown = sorted(set(bias) - set("qkvo"))
    if unknown:
        raise ValueError(f"bias names the parts 'q', 'k', 'v' and 'o', got {', '.join(map(repr, unknown))}")
    if "o" in bias and not output_projection:
        raise ValueError("bias names the part 'o', but output_projection=False leaves no output projection")
    return frozenset(bias)
