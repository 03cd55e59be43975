"""Tiny models of transformers with random weights, one per family, none from the network."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import transformers as hf

COMMON = {
    "vocab_size": 40,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 32,
}
GROUPED = COMMON | {"num_key_value_heads": 2}
WINDOW = GROUPED | {"sliding_window": 4}
BOTH = "eager", "sdpa"


def _bart() -> Any:
    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 48))
    }
    return hf.BartConfig(vocab_size=40, d_model=32, max_position_embeddings=32, **sides)


def _gpt2(**more: Any) -> Any:
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    return hf.GPT2Config(vocab_size=40, n_embd=32, n_layer=2, n_head=4, n_positions=32, **ends, **more)


def _opt() -> Any:
    return hf.OPTConfig(
        vocab_size=40,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        ffn_dim=48,
        max_position_embeddings=32,
        word_embed_proj_dim=32,
    )


def _distilbert() -> Any:
    return hf.DistilBertConfig(
        vocab_size=40, dim=32, n_layers=2, n_heads=4, hidden_dim=48, max_position_embeddings=32
    )


def _gpt_oss() -> Any:
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    experts = {"num_local_experts": 2, "num_experts_per_tok": 1}
    return hf.GptOssConfig(**WINDOW, head_dim=8, rope_parameters=rope, **experts)


FAMILIES: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "llama": (lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**GROUPED)), BOTH),
    "mistral": (lambda: hf.MistralForCausalLM(hf.MistralConfig(**WINDOW)), BOTH),
    "qwen2": (lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**GROUPED)), BOTH),
    "qwen3": (lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**GROUPED, head_dim=16)), BOTH),
    "gemma2": (lambda: hf.Gemma2ForCausalLM(hf.Gemma2Config(**WINDOW, head_dim=16)), ("eager",)),
    "gemma3": (lambda: hf.Gemma3ForCausalLM(hf.Gemma3TextConfig(**WINDOW, head_dim=16)), BOTH),
    "gpt2": (lambda: hf.GPT2LMHeadModel(_gpt2()), BOTH),
    "gpt2 scaled by layer": (
        lambda: hf.GPT2LMHeadModel(_gpt2(scale_attn_by_inverse_layer_idx=True)),
        BOTH,
    ),
    "gpt-neox": (lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**COMMON)), BOTH),
    "opt": (lambda: hf.OPTForCausalLM(_opt()), BOTH),
    "gpt-oss": (lambda: hf.GptOssForCausalLM(_gpt_oss()), ("eager",)),
    "bert": (lambda: hf.BertForMaskedLM(hf.BertConfig(**COMMON)), BOTH),
    "bert decoder": (
        lambda: hf.BertLMHeadModel(hf.BertConfig(**COMMON, is_decoder=True, add_cross_attention=True)),
        BOTH,
    ),
    "roberta": (lambda: hf.RobertaModel(hf.RobertaConfig(**COMMON)), BOTH),
    "distilbert": (lambda: hf.DistilBertForMaskedLM(_distilbert()), BOTH),
    "albert": (lambda: hf.AlbertModel(hf.AlbertConfig(**COMMON, embedding_size=16)), BOTH),
    "t5": (
        lambda: hf.T5ForConditionalGeneration(
            hf.T5Config(vocab_size=40, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4)
        ),
        BOTH,
    ),
    "bart": (lambda: hf.BartForConditionalGeneration(_bart()), BOTH),
}


@functools.cache
def _random(name: str) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = FAMILIES[name][0]()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.3)
    return model.eval()


@dataclass
class Family:
    name: str

    @property
    def implementations(self) -> tuple[str, ...]:
        return FAMILIES[self.name][1]

    def make(self, implementation: str = "eager") -> Any:
        """A model whose every parameter is random, biases, norms and sinks too."""
        model = copy.deepcopy(_random(self.name))
        model.set_attn_implementation(implementation)
        return model

    def inputs(self, model: Any, padding: str | None = None) -> dict[str, torch.Tensor]:
        """Two texts of 9 tokens, the second only 6 long if there is padding."""
        generator = torch.Generator().manual_seed(2)
        ids = torch.randint(3, 40, (2, 9), generator=generator)
        given = {"input_ids": ids}
        if padding is not None:
            real = torch.ones_like(ids)
            real[1, slice(6, None) if padding == "right" else slice(0, 3)] = 0
            given["attention_mask"] = real
        if "decoder_input_ids" in inspect.signature(model.forward).parameters:
            given["decoder_input_ids"] = ids[:, :5]
        if getattr(model.config, "add_cross_attention", False):
            given["encoder_hidden_states"] = torch.randn(2, 4, 32, generator=generator)
        return given


@pytest.fixture(params=list(FAMILIES))
def family(request: pytest.FixtureRequest) -> Family:
    return Family(request.param)


@pytest.fixture(params=sorted(FAMILIES.keys() - {"t5", "bart", "bert decoder"}))
def reader(request: pytest.FixtureRequest) -> Family:
    """A family that reads one text."""
    return Family(request.param)


@pytest.fixture
def make_family() -> Callable[[str], Family]:
    return Family
