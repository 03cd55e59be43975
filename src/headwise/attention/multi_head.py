"""Multi-head attention as a module: project, split into heads, attend, join, mix.

Letters: B batch, T queries, S keys, D d_model, C d_context, O d_out, H n_head, G n_kv_head, K d_head,
V d_value.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Literal, overload

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from headwise.attention.cache import LayerCache
from headwise.attention.counts import counts_that_fit
from headwise.attention.cross_cache import CrossCache
from headwise.attention.functional import attention, check_backend
from headwise.attention.inputs import check_batch, check_mask, check_sequence
from headwise.attention.masks import Mask
from headwise.attention.request import WeightsOf
from headwise.attention.rotary import Rotary
from headwise.attention.shifted import shifted
from headwise.attention.textbook import HeadList

Part = Literal["q", "k", "v", "o"]
"""The four projections: queries, keys, values, output."""


class MultiHeadAttention(nn.Module):
    """Attention with n_head heads over one set of projections: (B, T, d_model) → (B, T, d_out).

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
        d_out: int | None = None,
        bias: bool | Collection[Part] = False,
        dropout: float = 0.0,
        output_dropout: float | None = None,
        rotary: Rotary | None = None,
        qk_norm: bool = False,
        softcap: float | None = None,
        sink: bool = False,
        output_projection: bool = True,
        backend: str = "auto",
    ) -> None:
        """Make the projections.

        n_kv_head: number of key/value heads, a divisor of n_head; default n_head.
        d_head: width of a head's queries and keys; default d_model / n_head.
        d_value: width of a head's values; default d_head.
        d_context: width of the context that keys and values are made from; default d_model.
        d_out: width of the output; default d_model.
        bias: True for a bias in every projection, or the parts that have one, such as {"o"} or {"q", "v"}.
        dropout: on the weights, in training only.
        output_dropout: on the mixed output, in training only; default dropout.
        rotary: turns queries and keys by their positions; self-attention only.
        qk_norm: scales each head's queries and keys to a root mean square of 1, times learned numbers (K,)
            that the heads share, before they are turned (as in Qwen3, arXiv:2505.09388).
        softcap: bounds the scores, as for `attention`.
        sink: a learned score per head in the denominator of the softmax, as for `attention`; starts at 0.
        output_projection: False leaves the joined heads unmixed, which needs n_head · d_value = d_out.
        backend: as for `attention`.

        Raises ValueError for sizes or numbers that do not fit, an unknown part or an unknown backend.
        """
        super().__init__()
        for name, size in {
            "d_model": d_model,
            "n_head": n_head,
            "n_kv_head": n_kv_head,
            "d_head": d_head,
            "d_value": d_value,
            "d_context": d_context,
            "d_out": d_out,
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
        self.d_out = d_model if d_out is None else d_out
        self.dropout = dropout
        self.output_dropout = dropout if output_dropout is None else output_dropout
        for name, p in (("dropout", dropout), ("output_dropout", self.output_dropout)):
            if not 0.0 <= p < 1.0:
                raise ValueError(f"{name} must lie in 0 ≤ {name} < 1, got {p}")
        if rotary is not None and rotary.d_head != self.d_head:
            raise ValueError(f"rotary turns heads of width {rotary.d_head}, but d_head is {self.d_head}")
        if softcap is not None and not 0.0 < softcap < float("inf"):
            raise ValueError(f"softcap must be a finite number above 0, or None for no cap, got {softcap}")
        check_backend(backend)
        self.attend: Callable[..., Any] = attention
        """What attends; whoever wants to look on while the module runs may wrap it for a while."""
        self.rotary = rotary
        self.softcap = softcap
        self.backend = backend
        biased = _biased_parts(bias, output_projection)
        joined = n_head * self.d_value
        self.q_proj = nn.Linear(d_model, n_head * self.d_head, bias="q" in biased)
        self.k_proj = nn.Linear(self.d_context, self.n_kv_head * self.d_head, bias="k" in biased)
        self.v_proj = nn.Linear(self.d_context, self.n_kv_head * self.d_value, bias="v" in biased)
        self.o_proj: nn.Module
        if output_projection:
            self.o_proj = nn.Linear(joined, self.d_out, bias="o" in biased)
        elif joined == self.d_out:
            self.o_proj = nn.Identity()
        else:
            raise ValueError(
                f"output_projection=False needs n_head · d_value = d_out, got {n_head} · {self.d_value} "
                f"= {joined} and d_out={self.d_out}"
            )
        self.q_norm = nn.RMSNorm(self.d_head, eps=1e-6) if qk_norm else None
        self.k_norm = nn.RMSNorm(self.d_head, eps=1e-6) if qk_norm else None
        self.sink = nn.Parameter(torch.zeros(n_head)) if sink else None

    @classmethod
    def from_heads(cls, heads: HeadList) -> MultiHeadAttention:
        """Return the module that computes what the separate heads do, given ``mask=Mask.causal()``."""
        from headwise.attention import convert

        return convert.from_heads(heads)

    def to_heads(self, block_size: int) -> HeadList:
        """Return the separate heads that compute what this module does, given ``mask=Mask.causal()``."""
        from headwise.attention import convert

        return convert.to_heads(self, block_size)

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention) -> MultiHeadAttention:
        """Return the module that computes what PyTorch's does; see `attention.convert.from_torch`."""
        from headwise.attention import convert

        return convert.from_torch(module)

    def to_torch(self) -> nn.MultiheadAttention:
        """Return PyTorch's module with these weights; see `attention.convert.to_torch`."""
        from headwise.attention import convert

        return convert.to_torch(self)

    @overload
    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        mask: Mask | None = None,
        bias: Tensor | None = None,
        cache: LayerCache | CrossCache | None = None,
        gate: Tensor | None = None,
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
        cache: LayerCache | CrossCache | None = None,
        gate: Tensor | None = None,
        return_weights: Literal[True] | WeightsOf,
    ) -> tuple[Tensor, Tensor]: ...
    @overload
    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        mask: Mask | None = None,
        bias: Tensor | None = None,
        cache: LayerCache | CrossCache | None = None,
        gate: Tensor | None = None,
        return_weights: bool | WeightsOf,
    ) -> Tensor | tuple[Tensor, Tensor]: ...
    def forward(
        self,
        x: Float[Tensor, "B T D"],
        context: Float[Tensor, "B S C"] | None = None,
        *,
        mask: Mask | None = None,
        bias: Float[Tensor, "*scores"] | None = None,
        cache: LayerCache | CrossCache | None = None,
        gate: Float[Tensor, "*B H"] | None = None,
        return_weights: bool | WeightsOf = False,
    ) -> Float[Tensor, "B T O"] | tuple[Float[Tensor, "B T O"], Float[Tensor, "B H T S"]]:
        """Return the output, with return_weights also every head's weights before dropout.

        context: what keys and values are made from, (B, S, d_context); None means x itself.
        mask, bias: as for `attention`; S counts all positions so far, those that a cache dropped included.
        cache: a `LayerCache` holds keys and values of earlier positions; x starts at position cache.length
            and is appended. One with a window of n adds ``Mask.window(n)`` to the mask, so that the result is
            the same however x was cut into calls. A `CrossCache` stands for the context it was made from.
        gate: (H,) or (B, H), multiplies each head's output before the output projection.
        return_weights: True for the weights (B, H, T, S), a `WeightsOf` for some heads and queries; those of
            dropped positions are 0.

        Raises ValueError or TypeError as `attention` and `LayerCache.append` do, for a context together with
        rotary positions or a `LayerCache`, and for inputs whose shape, dtype or device does not fit the
        weights or each other. A call that raises leaves the cache as it was.
        """
        self.check_inputs(x, context, cache)
        step = cache if isinstance(cache, LayerCache) else None
        if isinstance(cache, CrossCache):
            q, k, v = self.queries(x), cache.keys, cache.values
        else:
            q = self.queries(x)
            k, v = self.keys_values(x if context is None else context)
            q, k = self.turn(q, k, 0 if step is None else step.length)
        dropped = 0
        if step is not None:
            k, v = step.propose(k, v)
            dropped = step.length + x.shape[1] - k.shape[2]
        keys = dropped + k.shape[2]
        check_mask(mask, x, keys, self.n_head)
        if step is not None and step.window is not None:
            window = Mask.window(step.window)
            mask = shifted(window if mask is None else window & mask, dropped)
            bias = _without_first(bias, dropped, keys)
        attended = self.attend(
            q,
            k,
            v,
            mask=mask,
            bias=bias,
            dropout=self.dropout if self.training else 0.0,
            softcap=self.softcap,
            sink=self.sink,
            gate=gate,
            return_weights=return_weights,
            backend=self.backend,
        )
        if step is not None:
            step.accept(k, v, x.shape[1])
        if not isinstance(attended, tuple):
            return self.mix(self.join(attended))
        heads, weights = attended
        return self.mix(self.join(heads)), F.pad(weights, (dropped, 0)) if dropped else weights

    def cross_cache(self, context: Float[Tensor, "B S C"]) -> CrossCache:
        """Project a context once; ``forward(x, cache=…)`` then attends to it, whatever the number of calls.

        Raises ValueError for a module with rotary positions, and for a context that does not fit the weights.
        """
        self._check_no_rotary()
        check_sequence("context", context, self.d_context, self.k_proj.weight)
        return CrossCache(self, context, *self.keys_values(context))

    def queries(self, x: Tensor) -> Tensor:
        """Return q (B, H, T, K), normalised if the module does that, not turned."""
        return _normalised(self.split(self.q_proj(x), self.n_head), self.q_norm)

    def keys_values(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """Return k (B, G, S, K), normalised if the module does that, not turned, and v (B, G, S, V)."""
        k = self.split(self.k_proj(context), self.n_kv_head)
        return _normalised(k, self.k_norm), self.split(self.v_proj(context), self.n_kv_head)

    def turn(self, q: Tensor, k: Tensor, start: int = 0) -> tuple[Tensor, Tensor]:
        """Turn q and k by their positions, ``start`` and on, if the module has rotary positions."""
        if self.rotary is None:
            return q, k
        cos, sin = self.rotary.tables(torch.arange(start, start + q.shape[2], device=q.device))
        return self.rotary.turn(q, cos, sin), self.rotary.turn(k, cos, sin)

    def split(self, flat: Tensor, heads: int) -> Tensor:
        """Cut a projection into heads: (B, T, heads · width) → (B, heads, T, width)."""
        return flat.view(*flat.shape[:2], heads, flat.shape[2] // heads).transpose(1, 2)

    def join(self, heads: Tensor) -> Tensor:
        """Put the heads side by side: (B, H, T, V) → (B, T, H·V)."""
        return heads.transpose(1, 2).flatten(2)

    def mix(self, joined: Tensor) -> Tensor:
        """Mix the heads by the output projection, then drop out: (B, T, H·V) → (B, T, O)."""
        return F.dropout(self.o_proj(joined), self.output_dropout, self.training)

    def check_inputs(
        self, x: Tensor, context: Tensor | None, cache: LayerCache | CrossCache | None = None
    ) -> None:
        """Raise ValueError or TypeError unless `forward` can work with these inputs."""
        check_sequence("x", x, self.d_model, self.q_proj.weight)
        if context is not None:
            self._check_no_rotary()
            check_sequence("context", context, self.d_context, self.k_proj.weight)
            check_batch(x, "context", context.shape[0])
        if isinstance(cache, CrossCache):
            cache.check(self, context)
            check_batch(x, "cache", cache.batch)
            return
        if context is None and self.d_context != self.d_model:
            raise ValueError(
                f"this module was made with d_context={self.d_context}, "
                f"so it needs a context (B, S, {self.d_context})"
            )
        if cache is None:
            return
        if not isinstance(cache, LayerCache):
            raise TypeError(
                "cache must be a LayerCache, such as kv_cache.layer(i), or a CrossCache, "
                f"got {type(cache).__name__}"
            )
        if context is not None:
            raise ValueError(
                "a LayerCache holds keys and values of x itself; give either it or a context, "
                "or a context kept by cross_cache(context)"
            )
        check_batch(x, "cache", cache.batch)

    def _check_no_rotary(self) -> None:
        if self.rotary is not None:
            raise ValueError(
                "rotary positions relate queries and keys of one sequence; use rotary=None with a context"
            )

    def extra_repr(self) -> str:
        h, g, k, v = self.n_head, self.n_kv_head, self.d_head, self.d_value
        options = {
            "dropout": self.dropout,
            "output_dropout": self.output_dropout,
            "softcap": self.softcap,
            "sink": None if self.sink is None else f"({h},)",
            "backend": repr(self.backend),
        }
        on = ", ".join(f"{name}={value}" for name, value in options.items() if value is not None)
        made = [
            step for step, there in (("normed", self.q_norm), ("turned", self.rotary)) if there is not None
        ]
        after = f", q and k {' and '.join(made)}" if made else ""
        return (
            f"d_model={self.d_model}, n_head={h}, n_kv_head={g}, d_head={k}, d_value={v}, "
            f"d_context={self.d_context}, d_out={self.d_out}, {on}\n"
            f"x (B, T, {self.d_model}) → q (B, {h}, T, {k}), k (B, {g}, S, {k}), v (B, {g}, S, {v}){after} "
            f"→ weights (B, {h}, T, S) → heads (B, {h}, T, {v}) → (B, T, {self.d_out})"
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


def _normalised(heads: Tensor, norm: nn.RMSNorm | None) -> Tensor:
    """Norm the last axis in the dtype of the norm's weight, which under autocast is the wider one."""
    return heads if norm is None else norm(heads.to(norm.weight.dtype)).to(heads.dtype)


def _without_first(bias: Tensor | None, dropped: int, keys: int) -> Tensor | None:
    """Cut the columns of dropped keys off a bias (…, S)."""
    if not isinstance(bias, Tensor) or bias.ndim == 0 or bias.shape[-1] == 1:
        return bias
    if bias.shape[-1] != keys:
        raise ValueError(
            f"bias of shape {tuple(bias.shape)} must have 1 or {keys} columns, one for each position so far, "
            f"of which this cache dropped {dropped}"
        )
    return bias[..., dropped:]
