"""Which stock classes of transformers hold a GPT of ours, and how its weights are named there.

Letters: D width of the model.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from headwise.model.config import GPTConfig

Family = Literal["llama", "starcoder2", "gpt2"]

CLASSES: dict[Family, str] = {
    "llama": "LlamaForCausalLM",
    "starcoder2": "Starcoder2ForCausalLM",
    "gpt2": "GPT2LMHeadModel",
}

# What each class is made of: position, norm, mlp.
_MADE_OF: dict[Family, tuple[str, str, str]] = {
    "llama": ("rotary", "rms", "swiglu"),
    "starcoder2": ("rotary", "layer", "gelu"),
    "gpt2": ("learned", "layer", "gelu"),
}

_OUTER: dict[Family, dict[str, str]] = {
    family: {
        "token_embedding": "model.embed_tokens",
        "final_norm": "model.norm",
        "head": "lm_head",
    }
    for family in ("llama", "starcoder2")
} | {
    "gpt2": {
        "token_embedding": "transformer.wte",
        "position_embedding": "transformer.wpe",
        "final_norm": "transformer.ln_f",
        "head": "lm_head",
    }
}
_ROTARY_LAYER = {
    "attention_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    **{f"attention.{part}_proj": f"self_attn.{part}_proj" for part in "qkvo"},
}
_LAYER: dict[Family, dict[str, str]] = {
    "llama": _ROTARY_LAYER | {f"mlp.{part}_proj": f"mlp.{part}_proj" for part in ("gate", "up", "down")},
    "starcoder2": _ROTARY_LAYER | {"mlp.up_proj": "mlp.c_fc", "mlp.down_proj": "mlp.c_proj"},
    "gpt2": {
        "attention_norm": "ln_1",
        "mlp_norm": "ln_2",
        "attention.qkv_proj": "attn.c_attn",
        "attention.o_proj": "attn.c_proj",
        "mlp.up_proj": "mlp.c_fc",
        "mlp.down_proj": "mlp.c_proj",
    },
}
# GPT-2 keeps the matrices of its layers as (inputs, outputs).
_TRANSPOSED = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")


def family_of(config: GPTConfig) -> Family:
    """Return the class that holds a model of this config.

    Raises:
        ValueError: none does; lists every reason and what can be done.
    """
    problems = []
    made_of = (config.position, config.norm, config.mlp)
    family = next((name for name, parts in _MADE_OF.items() if parts == made_of), None)
    if family is None:
        choices = "; ".join(
            f"{CLASSES[name]} holds position={p}, norm={n}, mlp={m}" for name, (p, n, m) in _MADE_OF.items()
        )
        problems.append(f"position={config.position}, norm={config.norm}, mlp={config.mlp} ({choices})")
    if config.n_layer == 0:
        problems.append("n_layer=0")
    if not config.residual:
        problems.append("residual=false")
    if config.output_projection != "learned":
        problems.append("output_projection=identity")
    if config.layer_heads is not None and (0, 0) in config.layer_heads:
        problems.append("a layer without any heads")
    elif config.layer_heads is not None:
        problems.append("layers with different numbers of heads (compress.level makes them equal)")
    elif family == "llama" and config.d_model % config.n_head:
        problems.append(
            f"{config.n_head} heads, which do not divide the width {config.d_model} (compress.level adds "
            "heads that give zero)"
        )
    if family == "gpt2" and config.kv_heads != config.n_head:
        problems.append(
            f"{config.kv_heads} key/value heads for {config.n_head} query heads together with learned "
            "positions (compress.expand repeats them; rotary positions have classes for it)"
        )
    if family == "gpt2" and config.n_head * config.head_width != config.d_model:
        problems.append(
            f"n_head · d_head = {config.n_head * config.head_width} apart from d_model={config.d_model} "
            "together with learned positions"
        )
    if problems or family is None:
        raise ValueError(f"no stock class of transformers holds this model: {'; '.join(problems)}")
    return family


def stock_config(config: GPTConfig, family: Family) -> dict[str, Any]:
    """Return the arguments of the class's config."""
    ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    common = ends | {
        "vocab_size": config.vocab_size,
        "tie_word_embeddings": config.tied_embeddings,
        "architectures": [CLASSES[family]],
    }
    if family == "gpt2":
        dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), config.dropout)
        return (
            common
            | dropout
            | {
                "n_positions": config.block_size,
                "n_embd": config.d_model,
                "n_layer": config.n_layer,
                "n_head": config.n_head,
                "n_inner": config.hidden_width,
                "activation_function": "gelu_new",
                "layer_norm_epsilon": config.norm_eps,
            }
        )
    shape = common | {
        "hidden_size": config.d_model,
        "intermediate_size": config.hidden_width,
        "num_hidden_layers": config.n_layer,
        "num_attention_heads": config.n_head,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_width,
        "max_position_embeddings": config.block_size,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_base},
        "attention_dropout": config.dropout,
    }
    if family == "starcoder2":
        dropout = dict.fromkeys(("residual_dropout", "embedding_dropout"), config.dropout)
        kind = {"use_bias": config.bias, "norm_epsilon": config.norm_eps, "hidden_act": "gelu_pytorch_tanh"}
        return shape | dropout | kind
    return shape | {
        "attention_bias": config.bias,
        "mlp_bias": config.bias,
        "rms_norm_eps": config.norm_eps,
        "hidden_act": "silu",
    }


def to_stock(state: dict[str, Tensor], family: Family) -> dict[str, Tensor]:
    """Return the weights of a GPT of ours under the names of the class."""
    state = _fused(state) if family == "gpt2" else state
    made = {}
    for name, tensor in state.items():
        new = _renamed(name, _OUTER[family], _LAYER[family], "blocks.", _layers(family))
        made[new] = tensor.T.contiguous() if family == "gpt2" and new.endswith(_TRANSPOSED) else tensor
    return made


def from_stock(state: dict[str, Tensor], family: Family) -> dict[str, Tensor]:
    """Undo `to_stock`."""
    outer = {theirs: ours for ours, theirs in _OUTER[family].items()}
    layer = {theirs: ours for ours, theirs in _LAYER[family].items()}
    made = {}
    for name, tensor in state.items():
        transposed = family == "gpt2" and name.endswith(_TRANSPOSED)
        new = _renamed(name, outer, layer, _layers(family), "blocks.")
        made[new] = tensor.T.contiguous() if transposed else tensor
    return _split(made) if family == "gpt2" else made


def _layers(family: Family) -> str:
    return "transformer.h." if family == "gpt2" else "model.layers."


def _renamed(name: str, outer: dict[str, str], layer: dict[str, str], before: str, after: str) -> str:
    module, _, kind = name.rpartition(".")
    if not name.startswith(before):
        return f"{outer[module]}.{kind}"
    number, _, inner = module.removeprefix(before).partition(".")
    return f"{after}{number}.{layer[inner]}.{kind}"


def _fused(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Put the projections of queries, keys and values into one, and zeros where GPT-2 has a bias."""
    made = {name: tensor for name, tensor in state.items() if ".q_proj." not in name}
    for name, tensor in state.items():
        if ".q_proj." in name:
            parts = [tensor, *(made.pop(name.replace(".q_", f".{part}_")) for part in "kv")]
            made[name.replace(".q_", ".qkv_")] = torch.cat(parts)
    return made


def _split(state: dict[str, Tensor]) -> dict[str, Tensor]:
    made = {}
    for name, tensor in state.items():
        if ".qkv_proj." not in name:
            made[name] = tensor
            continue
        for part, rows in zip("qkv", tensor.chunk(3), strict=True):
            made[name.replace(".qkv_", f".{part}_")] = rows.contiguous()
    return made
