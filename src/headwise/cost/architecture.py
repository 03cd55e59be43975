"""What costs depend on: the sizes of a model, layer by layer, and nothing else of it.

Letters: D d_model, H n_head, G n_kv_head, K d_head, V d_value, F d_ff.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from headwise.attention.counts import counts_that_fit
from headwise.cost.numbers import MOST_LAYERS, whole

Norm = Literal["none", "rms", "layer"]


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): keys and values of all heads are made from
    one vector of `rank` numbers per token; `d_rope` of each head's K are one rotary key that all heads share.

    Attributes:
        rank: width of the vector that keys and values are made from.
        d_rope: width of the shared rotary key.
        query_rank: width of the vector that queries are made from; None: straight from the input.
    """

    rank: int
    d_rope: int
    query_rank: int | None = None


@dataclass(frozen=True)
class Attention:
    """One layer's attention.

    Attributes:
        n_head, n_kv_head, d_head, d_value: H, G, K, V.
        window: how many keys a query sees at most, itself included; None: all before it.
        biases: the projections with a bias, of "q", "k", "v", "o".
        output_projection: whether W_O exists.
        latent: sizes of latent attention; None: keys and values are projected straight from the input.
        extra: parameters beside the projections (norms of queries and keys, sinks).
    """

    n_head: int
    n_kv_head: int
    d_head: int
    d_value: int
    window: int | None = None
    biases: frozenset[str] = frozenset()
    output_projection: bool = True
    latent: Latent | None = None
    extra: int = 0


@dataclass(frozen=True)
class FeedForward:
    """One layer's feed-forward part, or `n_expert` of them, of which each token visits `n_active`.

    Attributes:
        d_ff: hidden width of one expert.
        gated: three matrices (SwiGLU and its kin) instead of two.
        bias: biases in every matrix.
        routed: whether a router chooses; False leaves one expert that every token visits.
        router_bias: whether the router has a bias.
        d_shared: hidden width of the experts that every token visits besides.
        shared_gate: whether a learned gate of D numbers weighs the shared experts.
    """

    d_ff: int
    gated: bool = True
    bias: bool = False
    routed: bool = False
    n_expert: int = 1
    n_active: int = 1
    router_bias: bool = False
    d_shared: int = 0
    shared_gate: bool = False


@dataclass(frozen=True)
class Layer:
    """Attention, the feed-forward part (None: there is none), and the parameters of the norms around them."""

    attention: Attention
    feed_forward: FeedForward | None = None
    norm_parameters: int = 0


@dataclass(frozen=True)
class Architecture:
    """The sizes of a decoder.

    Attributes:
        name: what it is called in tables.
        d_model: D.
        layers: from the first to the last; they may differ.
        vocab_size: number of tokens; 0: embeddings and output layer are not counted.
        tied: the output layer reuses the token embedding.
        head_bias: the output layer has a bias.
        positions: rows of a learned table of positions; 0: none.
        norm: kind of the norms, which decides what training keeps of them.
        final_norm_parameters: of the norm before the output layer.
        rotary: queries and keys are turned by their positions.
        residual: each part's output is added to its input, not put in its place.
        context: the longest context the model was made for, if it is known.
        notes: what of the model is not counted, one sentence each.
    """

    name: str
    d_model: int
    layers: tuple[Layer, ...]
    vocab_size: int = 0
    tied: bool = False
    head_bias: bool = False
    positions: int = 0
    norm: Norm = "none"
    final_norm_parameters: int = 0
    rotary: bool = False
    residual: bool = True
    context: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def n_layer(self) -> int:
        """Number of layers."""
        return len(self.layers)


def norm_size(norm: Norm, d_model: int, *, bias: bool) -> int:
    """Parameters of one norm over D numbers: gains, and for a layer norm maybe biases."""
    return 0 if norm == "none" else d_model * (2 if norm == "layer" and bias else 1)


def from_sizes(
    d_model: int,
    n_head: int | Sequence[int],
    *,
    n_layer: int = 1,
    n_kv_head: int | Sequence[int] | None = None,
    d_head: int | None = None,
    d_ff: int | None = None,
    gated: bool = True,
    vocab_size: int = 0,
    tied: bool = False,
    norm: Norm = "none",
    bias: bool = False,
    window: int | None = None,
    positions: int = 0,
    output_projection: bool = True,
    rotary: bool = False,
    residual: bool = True,
    context: int | None = None,
    name: str = "these sizes",
) -> Architecture:
    """Return the architecture of these sizes; what is not given is not counted (without d_ff, no MLP).

    Args:
        n_head, n_kv_head: one number, or one for each of the `n_layer` layers; `n_kv_head` defaults to
            `n_head`.
        d_head: default D / H, which then must be whole in every layer.
        bias: in every projection, feed-forward matrix and layer norm.

    Raises:
        TypeError: a size that is not a whole number.
        ValueError: a size below 1, more than 10,000 layers, heads that do not divide, or lists of another
            length than `n_layer`.
    """
    whole("d_model", d_model)
    whole("n_layer", n_layer, least=0, most=MOST_LAYERS)
    whole("vocab_size", vocab_size, least=0)
    whole("positions", positions, least=0)
    for what, size in (("d_head", d_head), ("d_ff", d_ff), ("window", window), ("context", context)):
        if size is not None:
            whole(what, size)
    heads = per_layer("n_head", n_head, n_layer)
    groups = heads if n_kv_head is None else per_layer("n_kv_head", n_kv_head, n_layer)
    feed_forward = None if d_ff is None else FeedForward(d_ff, gated=gated, bias=bias)
    one_norm = norm_size(norm, d_model, bias=bias)
    layers = []
    for h, g in zip(heads, groups, strict=True):
        width = head_width(d_model, h, d_head)
        check_groups(h, g)
        if not output_projection and h * width != d_model:
            raise ValueError(
                f"without an output projection n_head · d_head must be d_model, "
                f"got {h} · {width} and {d_model}"
            )
        biases = frozenset(("qkvo" if output_projection else "qkv") if bias else "")
        attention = Attention(h, g, width, width, window, biases, output_projection)
        layers.append(Layer(attention, feed_forward, one_norm * (1 if feed_forward is None else 2)))
    return Architecture(
        name=name,
        d_model=d_model,
        layers=tuple(layers),
        vocab_size=vocab_size,
        tied=tied,
        positions=positions,
        norm=norm,
        final_norm_parameters=one_norm,
        rotary=rotary,
        residual=residual,
        context=context,
    )


def per_layer(name: str, value: int | Sequence[int], n_layer: int) -> list[int]:
    """`value` for every layer; a list must name all of them. Raises ValueError or TypeError naming `name`."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        return [whole(name, value)] * n_layer
    if len(value) != n_layer:
        raise ValueError(
            f"{name} lists {len(value)} layers, but n_layer is {n_layer}; give one number or {n_layer}"
        )
    return [whole(name, number) for number in value]


def head_width(d_model: int, n_head: int, d_head: int | None) -> int:
    """`d_head`, or D / H; raises ValueError if D cannot be divided among the heads."""
    if d_head is not None:
        return d_head
    if d_model % n_head:
        raise ValueError(
            f"d_model={d_model} cannot be divided among n_head={n_head} heads; "
            f"{counts_that_fit(d_model, n_head)} would fit, or give d_head"
        )
    return d_model // n_head


def check_groups(n_head: int, n_kv_head: int) -> None:
    """Raise ValueError unless the query heads can share the key/value heads evenly."""
    if n_head % n_kv_head:
        raise ValueError(
            f"n_head={n_head} query heads cannot share n_kv_head={n_kv_head} key/value heads evenly; "
            f"counts that fit: {counts_that_fit(n_head, n_kv_head)} (n_kv_head is the number of heads, "
            "not the size of a group)"
        )
