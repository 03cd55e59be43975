"""Decoders of Llama's outline, dense or with experts: what each `model_type` does its own way, as a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from headwise.cost.architecture import Architecture, Attention, FeedForward, Layer, Norm
from headwise.cost.formats.fields import Fields, Kind

Value = TypeVar("Value")

_QKV, _ALL = frozenset("qkv"), frozenset("qkvo")


def _always(value: Value) -> Callable[[Fields], Value]:
    return lambda _fields: value


_never = _always(False)
_two = _always(2)


def _biases(field: str, default: bool, parts: frozenset[str]) -> Callable[[Fields], frozenset[str]]:
    return lambda f: parts if f.flag(field, default) else frozenset()


def _no_bias(_fields: Fields) -> frozenset[str]:
    return frozenset()


def _no_window(_fields: Fields, n_layer: int) -> Sequence[Kind]:
    return ["full_attention"] * n_layer


def _one_window(fields: Fields, n_layer: int) -> Sequence[Kind]:
    sliding = fields.stated("sliding_window") is not None
    return ["sliding_attention" if sliding else "full_attention"] * n_layer


def _switched_window(fields: Fields, n_layer: int) -> Sequence[Kind]:
    """Qwen: off unless `use_sliding_window`, then from layer `max_window_layers` on."""
    if not fields.flag("use_sliding_window", False):
        return _no_window(fields, n_layer)
    first = fields.count("max_window_layers", least=0)
    return ["sliding_attention" if i >= first else "full_attention" for i in range(n_layer)]


def _listed_window(fields: Fields, n_layer: int) -> Sequence[Kind]:
    if fields.flag("use_sliding_window", False) and not fields.values.get("layer_types"):
        raise ValueError(
            f"the {fields.model_type} config uses a sliding window but has no layer_types; add them"
        )
    return _no_window(fields, n_layer)


def _every(period: int, field: str = "") -> Callable[[Fields, int], Sequence[Kind]]:
    """Every `period`-th layer sees everything, the others a window."""

    def kinds(fields: Fields, n_layer: int) -> Sequence[Kind]:
        p = fields.count(field, period) if field else period
        return ["sliding_attention" if (i + 1) % p else "full_attention" for i in range(n_layer)]

    return kinds


@dataclass(frozen=True)
class Family:
    """What sets a `model_type` apart from Llama.

    Attributes:
        tied: the format's default of `tie_word_embeddings`.
        head_dim: the format's default; None: hidden_size / num_attention_heads.
        biases: which projections have one.
        windows: each layer's kind where the file has no `layer_types`.
        gated, mlp_bias: of the feed-forward part.
        norm, norm_bias, norms: their kind, whether a layer norm has a bias, how many in a layer.
        query_key_norm: none, a gain per channel of one head or of all, or a layer norm with bias per head.
        query_key_switch: the field that turns them on; empty: always on.
        head_bias: the output layer has a bias.
        experts: how the feed-forward part of one layer is read, where it is a mixture.
        sinks: a learned number per head that softmax may spend weight on.
        defaults: sizes that published files leave out, from the format's definition.
    """

    tied: bool = False
    head_dim: int | None = None
    biases: Callable[[Fields], frozenset[str]] = _no_bias
    windows: Callable[[Fields, int], Sequence[Kind]] = _no_window
    gated: bool = True
    mlp_bias: Callable[[Fields], bool] = _never
    norm: Norm = "rms"
    norm_bias: bool = True
    norms: Callable[[Fields], int] = _two
    query_key_norm: Literal["none", "head", "heads", "layer"] = "none"
    query_key_switch: str = ""
    head_bias: bool = False
    experts: Callable[[Fields, int], FeedForward] | None = None
    sinks: bool = False
    defaults: tuple[tuple[str, int], ...] = ()


def read_family(fields: Fields, family: Family) -> Architecture:
    """Return the architecture of a model of this family; raises ValueError for odd fields."""
    fields = Fields(dict(family.defaults) | dict(fields.values), fields.model_type)
    d_model, n_layer = fields.count("hidden_size"), fields.layers("num_hidden_layers")
    windows = fields.windows(n_layer, family.windows(fields, n_layer))
    norm = d_model * (2 if family.norm == "layer" and family.norm_bias else 1)
    layers = tuple(
        _layer(fields.layer(index, n_layer), family, index, window, norm)
        for index, window in enumerate(windows)
    )
    return Architecture(
        name=fields.model_type,
        d_model=d_model,
        layers=layers,
        vocab_size=fields.count("vocab_size"),
        tied=fields.flag("tie_word_embeddings", family.tied),
        head_bias=family.head_bias,
        norm=family.norm,
        final_norm_parameters=norm,
        rotary=True,
        context=fields.maybe("max_position_embeddings"),
    )


def _layer(fields: Fields, family: Family, index: int, window: int | None, norm: int) -> Layer:
    n_head, n_kv_head, width = fields.heads(family.head_dim)
    extra = n_head if family.sinks else 0
    if not family.query_key_switch or fields.flag(family.query_key_switch, False):
        sizes = {"none": 0, "head": 2 * width, "heads": (n_head + n_kv_head) * width, "layer": 4 * width}
        extra += sizes[family.query_key_norm]
    attention = Attention(n_head, n_kv_head, width, width, window, family.biases(fields), extra=extra)
    if family.experts is not None:
        part = family.experts(fields, index)
    else:
        part = FeedForward(
            fields.count("intermediate_size"), gated=family.gated, bias=family.mlp_bias(fields)
        )
    return Layer(attention, part, family.norms(fields) * norm)


def _mixtral(fields: Fields, _index: int) -> FeedForward:
    return FeedForward(
        fields.count("intermediate_size"),
        routed=True,
        n_expert=fields.count("num_local_experts"),
        n_active=fields.count("num_experts_per_tok"),
    )


def _gpt_oss(fields: Fields, _index: int) -> FeedForward:
    return FeedForward(
        fields.count("intermediate_size"),
        bias=True,
        routed=True,
        n_expert=fields.count("num_local_experts"),
        n_active=fields.count("num_experts_per_tok"),
        router_bias=True,
    )


def _qwen_experts(fields: Fields, index: int) -> FeedForward:
    """Dense stay `mlp_only_layers` and the layers between every `decoder_sparse_step`-th."""
    sparse = (index + 1) % fields.count("decoder_sparse_step", 1) == 0
    if index in fields.counts("mlp_only_layers") or not sparse:
        return FeedForward(fields.count("intermediate_size"))
    shared = fields.model_type == "qwen2_moe"
    return FeedForward(
        fields.count("moe_intermediate_size"),
        routed=True,
        n_expert=fields.either("num_experts", "num_local_experts"),
        n_active=fields.count("num_experts_per_tok"),
        d_shared=fields.count("shared_expert_intermediate_size") if shared else 0,
        shared_gate=shared,
    )


_attention_bias = _biases("attention_bias", False, _ALL)
_GEMMA3_SIZES = (
    ("num_attention_heads", 8),
    ("num_key_value_heads", 4),
    ("head_dim", 256),
    ("vocab_size", 262_208),
)

FAMILIES: dict[str, Family] = {
    "llama": Family(biases=_attention_bias, mlp_bias=lambda f: f.flag("mlp_bias", False)),
    "mistral": Family(windows=_one_window),
    "granite": Family(biases=_attention_bias, mlp_bias=lambda f: f.flag("mlp_bias", False)),
    "smollm3": Family(
        tied=True,
        biases=_attention_bias,
        mlp_bias=lambda f: f.flag("mlp_bias", False),
        windows=_listed_window,
    ),
    "phi3": Family(windows=_one_window),
    "qwen2": Family(biases=_always(_QKV), windows=_switched_window),
    "qwen3": Family(biases=_attention_bias, head_dim=128, windows=_switched_window, query_key_norm="head"),
    "olmo2": Family(biases=_attention_bias, query_key_norm="heads"),
    "gemma": Family(tied=True, head_dim=256, biases=_attention_bias),
    "gemma2": Family(tied=True, head_dim=256, biases=_attention_bias, windows=_every(2), norms=_always(4)),
    "gemma3_text": Family(
        tied=True,
        biases=_attention_bias,
        windows=_every(6, "sliding_window_pattern"),
        norms=_always(4),
        query_key_norm="head",
        defaults=_GEMMA3_SIZES,
    ),
    "starcoder2": Family(
        tied=True,
        biases=_biases("use_bias", True, _ALL),
        mlp_bias=lambda f: f.flag("use_bias", True),
        windows=_one_window,
        gated=False,
        norm="layer",
    ),
    "stablelm": Family(
        biases=_biases("use_qkv_bias", False, _QKV),
        norm="layer",
        norms=lambda f: 1 if f.flag("use_parallel_residual", False) else 2,
        query_key_norm="heads",
        query_key_switch="qk_layernorm",
    ),
    "cohere": Family(
        tied=True,
        biases=_attention_bias,
        norm="layer",
        norm_bias=False,
        norms=_always(1),
        query_key_norm="heads",
        query_key_switch="use_qk_norm",
    ),
    "phi": Family(
        biases=_always(_ALL),
        mlp_bias=_always(True),
        gated=False,
        norm="layer",
        norms=_always(1),
        query_key_norm="layer",
        query_key_switch="qk_layernorm",
        head_bias=True,
    ),
    "gpt_neox": Family(
        biases=_biases("attention_bias", True, _ALL), mlp_bias=_always(True), gated=False, norm="layer"
    ),
    "mixtral": Family(windows=_one_window, experts=_mixtral),
    "qwen2_moe": Family(
        biases=_biases("qkv_bias", True, _QKV), windows=_listed_window, experts=_qwen_experts
    ),
    "qwen3_moe": Family(
        biases=_attention_bias,
        windows=lambda f, n: _one_window(f, n) if f.flag("use_sliding_window", False) else _no_window(f, n),
        query_key_norm="head",
        experts=_qwen_experts,
    ),
    "gpt_oss": Family(
        biases=_biases("attention_bias", True, _ALL),
        head_dim=64,
        windows=_every(2),
        experts=_gpt_oss,
        sinks=True,
    ),
}
