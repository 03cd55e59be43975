"""Models in: those of stock classes that a GPT of ours can be."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from torch import nn

from headwise.hub.opening import load_pretrained
from headwise.hub.stock import CLASSES, Family, from_stock
from headwise.model import GPT, GPTConfig
from headwise.text import Tokenizer

_FAMILIES: dict[str, Family] = {name: family for family, name in CLASSES.items()} | {
    "MistralForCausalLM": "llama"
}


def from_transformers(model: nn.Module) -> GPT:
    """Return a GPT of ours that computes what a model of transformers does, in its dtype.

    Raises:
        ValueError: ours has no place for something it does; lists every reason.
    """
    kind = type(model).__name__
    family = _FAMILIES.get(kind)
    if family is None:
        raise ValueError(f"{kind} cannot become a GPT of headwise; these can: {', '.join(_FAMILIES)}")
    theirs = cast(Any, model).config
    problems = _beyond_ours(theirs, family)
    if problems:
        raise ValueError(
            f"this {kind} cannot become a GPT of headwise, which has no {'; no '.join(problems)}"
        )
    made = GPT(_own_config(theirs, family))
    reference = next(model.parameters())
    made.to(device=reference.device, dtype=reference.dtype)
    state = from_stock({name: p.detach() for name, p in model.state_dict().items()}, family)
    biased = family == "gpt2" or made.config.bias
    if not biased:  # layer norms of transformers always have a bias
        left_out = [name for name in state if name.endswith(".bias") and not state[name].any()]
        state = {name: tensor for name, tensor in state.items() if name not in left_out}
    made.load_state_dict(state, strict=True)
    return made.train(model.training)


def import_folder(folder: Path | str) -> tuple[GPT, Tokenizer]:
    """Read a folder of transformers as a GPT of ours and its tokenizer.

    Raises:
        FileNotFoundError: no such folder.
        ValueError: ours cannot hold the model or read its tokenizer; the vocabularies differ.
    """
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder} holds no config.json, so it is no folder of a transformers model")
    if not (folder / "tokenizer.json").is_file():
        raise FileNotFoundError(f"{folder} holds no tokenizer.json, which a GPT of headwise needs")
    tokenizer = Tokenizer.from_file(folder / "tokenizer.json")
    model = from_transformers(load_pretrained(str(folder), None, "AutoModelForCausalLM")[0])
    if tokenizer.vocab_size != model.config.vocab_size:
        raise ValueError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size} tokens but the model "
            f"{model.config.vocab_size}, which have to be equal here"
        )
    return model, tokenizer


def _own_config(theirs: Any, family: Family) -> GPTConfig:
    common = {"vocab_size": theirs.vocab_size, "tied_embeddings": theirs.tie_word_embeddings}
    if family == "gpt2":
        return GPTConfig(
            **common,
            block_size=theirs.n_positions,
            n_layer=theirs.n_layer,
            n_head=theirs.n_head,
            d_model=theirs.n_embd,
            d_ff=theirs.n_inner,
            position="learned",
            norm="layer",
            norm_eps=theirs.layer_norm_epsilon,
            mlp="gelu",
            bias=True,
            dropout=theirs.resid_pdrop,
        )
    llama = family == "llama"
    return GPTConfig(
        **common,
        block_size=theirs.max_position_embeddings,
        n_layer=theirs.num_hidden_layers,
        n_head=theirs.num_attention_heads,
        n_kv_head=theirs.num_key_value_heads,
        d_model=theirs.hidden_size,
        d_head=_head_dim(theirs),
        d_ff=theirs.intermediate_size,
        rope_base=theirs.rope_parameters.get("rope_theta", 10_000.0),
        norm="rms" if llama else "layer",
        norm_eps=theirs.rms_norm_eps if llama else theirs.norm_epsilon,
        mlp="swiglu" if llama else "gelu",
        bias=getattr(theirs, "attention_bias", False) if llama else theirs.use_bias,
        dropout=theirs.attention_dropout,
    )


def _head_dim(theirs: Any) -> int:
    return int(getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads)


def _beyond_ours(theirs: Any, family: Family) -> list[str]:
    """Return what a model of transformers has that ours has no place for."""
    problems = []
    wanted = {"llama": ("silu",), "starcoder2": ("gelu_pytorch_tanh",), "gpt2": ("gelu_new",)}[family]
    act = theirs.activation_function if family == "gpt2" else theirs.hidden_act
    if act not in (*wanted, "gelu_pytorch_tanh" if family == "gpt2" else ""):
        problems.append(f"activation {act} (ours is {wanted[0]})")
    if family == "gpt2":
        problems += [
            f"{name}={getattr(theirs, name)}"
            for name, plain in (("scale_attn_weights", True), ("scale_attn_by_inverse_layer_idx", False))
            if getattr(theirs, name) != plain
        ]
        return problems
    rope = dict(theirs.rope_parameters)
    rope.pop("rope_theta", None)
    if rope.pop("rope_type", "default") != "default" or rope:
        problems.append(f"scaled rotary positions {theirs.rope_parameters}")
    if getattr(theirs, "sliding_window", None) is not None:
        problems.append(f"sliding_window={theirs.sliding_window}")
    if getattr(theirs, "attention_bias", False) != getattr(theirs, "mlp_bias", False):
        problems.append("biases in attention without biases in the feed-forward part, or the other way")
    return problems
