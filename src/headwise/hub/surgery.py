"""The attention layers of a model as weights that can be taken out, changed, and put back in other shapes.

Letters: H query heads, G key/value heads, K width of queries and keys, V width of values, D width of the
layer's input, O of its output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from headwise.attention import MultiHeadAttention
from headwise.model.blocks import Block
from headwise.model.gpt import GPT
from headwise.model.heads import NoHeads

Convention = Literal["half-split", "interleaved"]
"""Which elements of a head rotary positions turn together: i and i + W/2, or 2i and 2i + 1."""

PROJECTIONS = "q_proj", "k_proj", "v_proj", "o_proj"

# Attention of transformers that is: four linear projections, rotary positions over the whole head, and
# query head h reading key/value head h // (H // G). Named one by one, as a look at the attributes cannot
# tell them from others that norm, clip or gate in between.
CONVENTIONS: dict[str, Convention] = {
    "LlamaAttention": "half-split",
    "MistralAttention": "half-split",
    "MixtralAttention": "half-split",
    "Qwen2Attention": "half-split",
    "Starcoder2Attention": "half-split",
    "GraniteAttention": "half-split",
    "GemmaAttention": "half-split",
    "CohereAttention": "interleaved",
    "HeliumAttention": "interleaved",
}


@dataclass(frozen=True, eq=False)
class LayerHandle:
    """One layer of attention, by its four projections."""

    index: int
    """Counted from 0, in the order in which the model runs them."""
    name: str
    """Where the attention is in the model, as `model.get_submodule(name)` takes it."""
    module: nn.Module
    """What computes the attention."""
    block: nn.Module
    """The layer of the model that it is part of."""
    d_head: int
    rotary: Convention | None
    """How pairs of a head's elements are turned by their positions; None where they are not."""
    rotary_width: int
    """How many elements of a head, from its front, are turned."""

    @property
    def q_proj(self) -> nn.Linear:
        return cast(nn.Linear, self.module.q_proj)

    @property
    def k_proj(self) -> nn.Linear:
        return cast(nn.Linear, self.module.k_proj)

    @property
    def v_proj(self) -> nn.Linear:
        return cast(nn.Linear, self.module.v_proj)

    @property
    def o_proj(self) -> nn.Linear:
        return cast(nn.Linear, self.module.o_proj)

    @property
    def key_bias_matters(self) -> bool:
        """Whether adding one vector to all keys changes the attention."""
        return (
            self.rotary is not None
            or getattr(self.module, "softcap", None) is not None
            or getattr(self.module, "sink", None) is not None
        )

    @property
    def n_head(self) -> int:
        return self.q_proj.out_features // self.d_head

    @property
    def n_kv_head(self) -> int:
        return self.k_proj.out_features // self.d_head


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """The weights of one layer in float64 on the CPU, a bias being the weight of an input that is always 1.

    Query head h reads key/value head h // (H // G).
    """

    q: Tensor
    """(H, K, D + 1)."""
    k: Tensor
    """(G, K, D + 1)."""
    v: Tensor
    """(G, V, D + 1)."""
    o: Tensor
    """(H, O, V)."""
    o_bias: Tensor | None
    """(O,), None where the layer has no place for one."""
    sink: Tensor | None = None
    """(H,)."""

    @property
    def n_head(self) -> int:
        return self.q.shape[0]

    @property
    def n_kv_head(self) -> int:
        return self.k.shape[0]

    @property
    def group_size(self) -> int:
        """Query heads that read one key/value head."""
        return self.n_head // self.n_kv_head

    def take(self, heads: Sequence[int], kv_heads: Sequence[int]) -> LayerWeights:
        """Return these query heads and these key/value heads only, in this order."""
        h, g = list(heads), list(kv_heads)
        sink = None if self.sink is None else self.sink[h]
        return replace(self, q=self.q[h], k=self.k[g], v=self.v[g], o=self.o[h], sink=sink)

    def take_groups(self, kv_heads: Sequence[int]) -> LayerWeights:
        """Return these key/value heads only, in this order, with the query heads that read them."""
        size = self.group_size
        return self.take([g * size + i for g in kv_heads for i in range(size)], kv_heads)

    def with_values_hoisted(self) -> LayerWeights:
        """Move the biases of values into the bias of the output, where there is one.

        What a query reads is a mean of values, its weights adding up to 1, so the bias of the values comes
        through as it is. A sink takes a share of the weights, so then they stay.
        """
        if self.o_bias is None or self.sink is not None:
            return self
        values = self.v[:, :, -1].repeat_interleave(self.group_size, dim=0)  # (H, V)
        v = self.v.clone()
        v[:, :, -1] = 0.0
        return replace(self, v=v, o_bias=self.o_bias + torch.einsum("hov,hv->o", self.o, values))

    def with_keys_hoisted(self) -> LayerWeights:
        """Leave out the biases of keys. They add the same to all scores of a query, as long as keys are not
        turned by their positions, scores not capped, and there is no sink."""
        k = self.k.clone()
        k[:, :, -1] = 0.0
        return replace(self, k=k)


def layer_handles(model: nn.Module) -> list[LayerHandle]:
    """Return the layers of attention of a model, as surgery needs them.

    Raises:
        ValueError: the model is not one that surgery knows, or its weights are quantised; says which module
            and why.
    """
    if isinstance(model, GPT):
        return [
            _own_handle(index, f"blocks.{index}.attention", block)
            for index, block in enumerate(model.blocks)
            if isinstance(block, Block) and not isinstance(block.attention, NoHeads)
        ]
    _refuse_quantised(model)
    found = [
        (name, module)
        for name, module in model.named_modules()
        if type(module).__name__.endswith("Attention") and not isinstance(module, nn.MultiheadAttention)
    ]
    strange = sorted({type(module).__name__ for _, module in found} - CONVENTIONS.keys())
    if strange or not found:
        what = f"its attention is {', '.join(strange)}" if strange else "no attention was found in it"
        raise ValueError(
            f"{type(model).__name__} is not Llama-shaped: {what}; surgery knows headwise's GPT and "
            f"{', '.join(CONVENTIONS)}"
        )
    return [_handle(index, name, module, model) for index, (name, module) in enumerate(found)]


def _own_handle(index: int, name: str, block: Block) -> LayerHandle:
    module = cast(MultiHeadAttention, block.attention)
    if module.q_norm is not None:
        raise ValueError(_normed(name, "qk_norm=True"))
    if not isinstance(module.o_proj, nn.Linear):
        raise ValueError(
            f"{name} has no output projection, which has to take up what changes in the values; "
            "use a model with output_projection=learned"
        )
    rotary = module.rotary
    convention: Convention | None = None
    if rotary is not None:
        convention = "interleaved" if rotary.interleaved else "half-split"
    return LayerHandle(
        index, name, module, block, module.d_head, convention, 0 if rotary is None else rotary.width
    )


def _handle(index: int, name: str, module: nn.Module, model: nn.Module) -> LayerHandle:
    kind = type(module).__name__
    for part in PROJECTIONS:
        projection = getattr(module, part, None)
        if type(projection) is not nn.Linear:
            raise ValueError(
                f"{name}.{part} is {type(projection).__name__}, wanted is a plain nn.Linear: "
                "load the model without quantisation or adapters, or merge them first"
            )
    if getattr(module, "q_norm", None) is not None or getattr(module, "k_norm", None) is not None:
        raise ValueError(_normed(name, kind))
    block = model.get_submodule(name.rpartition(".")[0])
    d_head = int(cast(int, module.head_dim))
    return LayerHandle(index, name, module, block, d_head, CONVENTIONS[kind], d_head)


def _normed(name: str, what: str) -> str:
    return (
        f"{name} norms its queries and keys ({what}), which undoes what surgery puts into their scale; "
        "models with query/key norms cannot be converted"
    )


def _refuse_quantised(model: nn.Module) -> None:
    quantised = getattr(model, "is_quantized", False) or getattr(model, "hf_quantizer", None) is not None
    whole = [name for name, p in model.named_parameters() if not p.is_floating_point() or p.itemsize < 2]
    if quantised or whole:
        raise ValueError(
            f"the weights of {type(model).__name__} are quantised"
            + (f" ({whole[0]} is {model.get_parameter(whole[0]).dtype})" if whole else "")
            + "; load the model in float32, bfloat16 or float16"
        )


def read_weights(handle: LayerHandle) -> LayerWeights:
    """Return a copy of a layer's weights, in float64 on the CPU."""
    h, g = handle.n_head, handle.n_kv_head
    o_proj = handle.o_proj
    o = o_proj.weight.detach().cpu().double()  # (O, H·V)
    sink = getattr(handle.module, "sink", None)
    return LayerWeights(
        q=_rows(handle.q_proj, h),
        k=_rows(handle.k_proj, g),
        v=_rows(handle.v_proj, g),
        o=o.reshape(len(o), h, -1).transpose(0, 1).clone(),
        o_bias=None if o_proj.bias is None else o_proj.bias.detach().cpu().double(),
        sink=None if sink is None else sink.detach().cpu().double(),
    )


def write_weights(handle: LayerHandle, weights: LayerWeights) -> None:
    """Put weights into a layer, in its dtype and on its device; numbers of heads may be others than before.

    `settle` has to follow when all layers are written.

    Raises:
        ValueError: a bias that the layer has no place for.
    """
    h, g = weights.n_head, weights.n_kv_head
    module = handle.module
    for part, rows in (("q_proj", weights.q), ("k_proj", weights.k), ("v_proj", weights.v)):
        flat = rows.flatten(0, 1)  # (heads · width, D + 1)
        if getattr(module, part).bias is None and flat[:, -1].any():
            raise ValueError(f"{handle.name}.{part} has no bias to put one into")
        setattr(module, part, _linear(getattr(module, part), flat[:, :-1], flat[:, -1]))
    joined = weights.o.transpose(0, 1).flatten(1)  # (O, H·V)
    o_bias = torch.zeros(joined.shape[0]) if weights.o_bias is None else weights.o_bias
    module.o_proj = _linear(handle.o_proj, joined, o_bias)
    if weights.sink is not None:
        sink = cast(nn.Parameter, module.sink)
        module.sink = nn.Parameter(weights.sink.to(sink), requires_grad=sink.requires_grad)
    if isinstance(module, MultiHeadAttention):
        module.n_head, module.n_kv_head = h, g
    else:
        cast(Any, module).num_key_value_groups = h // g


def _rows(projection: nn.Linear, heads: int) -> Tensor:
    """Return (heads, width, D + 1), the bias as the last column."""
    weight = projection.weight.detach().cpu().double()
    bias = (
        weight.new_zeros(len(weight)) if projection.bias is None else projection.bias.detach().cpu().double()
    )
    return torch.cat((weight, bias.unsqueeze(1)), dim=1).reshape(heads, -1, weight.shape[1] + 1)


def _linear(like: nn.Linear, weight: Tensor, bias: Tensor) -> nn.Linear:
    made = nn.Linear(
        weight.shape[1],
        weight.shape[0],
        bias=like.bias is not None,
        device=like.weight.device,
        dtype=like.weight.dtype,
    )
    with torch.no_grad():
        made.weight.copy_(weight)
        if made.bias is not None:
            made.bias.copy_(bias)
    return made.train(like.training).requires_grad_(like.weight.requires_grad)


def head_counts(model: nn.Module) -> list[tuple[int, int]]:
    """Return the numbers of query heads and of key/value heads of each layer."""
    if isinstance(model, GPT):
        return [model.config.heads_of(layer) for layer in range(model.config.n_layer)]
    return [(handle.n_head, handle.n_kv_head) for handle in layer_handles(model)]


def settle(model: nn.Module) -> None:
    """Make a model's config say what its layers hold, after `write_weights`.

    A transformers model whose layers differ still runs, but no config of its class can say so: its config
    keeps the numbers it had, and `check_uniform` refuses to write it.
    """
    if isinstance(model, GPT):
        attentions = [cast(Block, block).attention for block in model.blocks]
        model.config = model.config.with_heads([(a.n_head, a.n_kv_head) for a in attentions])
        return
    counts = {(handle.n_head, handle.n_kv_head) for handle in layer_handles(model)}
    if len(counts) == 1:
        handle = layer_handles(model)[0]
        config = cast(Any, model.config)
        config.num_attention_heads, config.num_key_value_heads = next(iter(counts))
        config.head_dim = handle.d_head  # no longer hidden_size / num_attention_heads


def divided_width(model: nn.Module) -> int:
    """Return what the query heads of a layer have to divide for a stock class to hold them, 0 for anything.

    LlamaConfig wants them to divide the width, though its heads may have a width of their own.
    """
    if isinstance(model, GPT):
        c = model.config
        return c.d_model if (c.position, c.norm, c.mlp) == ("rotary", "rms", "swiglu") else 0
    llama = any(type(module).__name__ == "LlamaAttention" for module in model.modules())
    return int(cast(Any, model.config).hidden_size) if llama else 0


def is_level(model: nn.Module) -> bool:
    """Return whether a stock class holds the numbers of heads that the layers of a model have."""
    counts = set(head_counts(model))
    return len(counts) < 2 and all(h and divided_width(model) % h == 0 for h, _ in counts)


def check_uniform(model: nn.Module) -> None:
    """Raise ValueError unless the class of a transformers model holds the numbers of heads of its layers."""
    attentions = [module for module in model.modules() if type(module).__name__ in CONVENTIONS]
    counts = [
        (m.q_proj.out_features // m.head_dim, m.k_proj.out_features // m.head_dim)
        for m in cast(list[Any], attentions)
    ]
    if len(set(counts)) > 1:
        raise ValueError(
            f"the layers of this {type(model).__name__} have different numbers of heads (query/key-value: "
            f"{', '.join(f'{h}/{g}' for h, g in counts)}), which no class of transformers can hold; "
            "make them equal with compress.level, or keep the model as headwise's own folder"
        )
    width = divided_width(model)
    if counts and width % counts[0][0]:
        raise ValueError(
            f"a {type(model).__name__} of width {width} holds only numbers of heads that divide it, and this "
            f"has {counts[0][0]}; compress.level adds heads that give zero"
        )


def next_token_logits(model: nn.Module, ids: Tensor) -> Tensor:
    """Return the logits (B, T, vocab) of a GPT of ours or a causal transformers model for ids (B, T)."""
    if isinstance(model, GPT):
        return cast(Tensor, model(ids))
    return cast(Tensor, model(input_ids=ids, use_cache=False).logits)
