"""Every reader of a Hugging Face config against the model that transformers builds from it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from headwise.cost import from_hf_config
from headwise.cost.formats.reader import MODEL_TYPES
from headwise.cost.parameters import parameters

transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed, so there is no model to count parameters of"
)

LLAMA = {
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 100,
    "vocab_size": 101,
    "max_position_embeddings": 64,
    "pad_token_id": None,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
GPT2 = {"n_embd": 48, "n_layer": 3, "n_head": 6, "n_positions": 32, "vocab_size": 101}
GPT2 |= {"bos_token_id": 0, "eos_token_id": 0}
DEEPSEEK = LLAMA | {
    "num_key_value_heads": 6,
    "kv_lora_rank": 20,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 4,
    "v_head_dim": 9,
    "moe_intermediate_size": 30,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "n_group": 2,
    "topk_group": 1,
}
SIZES = ("hidden_size", "num_hidden_layers", "intermediate_size")
MIXTRAL = LLAMA | {"num_local_experts": 4, "num_experts_per_tok": 2}
EXPERTS = LLAMA | {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 30}

CONFIGS: list[tuple[str, dict[str, Any]]] = [
    ("llama", LLAMA),
    ("llama", LLAMA | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    ("llama", LLAMA | {"head_dim": 10}),
    ("llama", {k: v for k, v in LLAMA.items() if k != "num_key_value_heads"}),
    ("mistral", LLAMA | {"sliding_window": 8}),
    ("qwen2", LLAMA),
    ("qwen3", LLAMA | {"head_dim": 16}),
    ("qwen3", LLAMA),
    ("granite", LLAMA | {"tie_word_embeddings": True}),
    ("smollm3", LLAMA),
    ("phi3", LLAMA | {"sliding_window": None}),
    ("olmo2", LLAMA),
    ("gemma", LLAMA | {"head_dim": 16}),
    ("gemma2", LLAMA | {"head_dim": 16, "sliding_window": 8}),
    ("gemma3_text", LLAMA | {"head_dim": 16, "sliding_window": 8}),
    # published files of Gemma 3 leave out head counts and vocabulary
    ("gemma3_text", {name: LLAMA[name] for name in SIZES} | {"sliding_window": 8}),
    ("starcoder2", LLAMA | {"sliding_window": None}),
    ("stablelm", LLAMA | {"use_qkv_bias": True}),
    ("stablelm", LLAMA | {"qk_layernorm": True, "use_parallel_residual": True}),
    ("cohere", LLAMA),
    ("cohere", LLAMA | {"use_qk_norm": True}),
    ("phi", LLAMA),
    ("phi", LLAMA | {"qk_layernorm": True}),
    ("gpt_neox", LLAMA | {"num_key_value_heads": 6}),
    ("gpt_neox", LLAMA | {"num_key_value_heads": 6, "attention_bias": False}),
    ("gpt2", GPT2),
    ("gpt2", GPT2 | {"n_inner": 70}),
    ("gpt_bigcode", GPT2),
    ("gpt_bigcode", GPT2 | {"multi_query": False}),
    ("gptj", GPT2 | {"rotary_dim": 4}),
    ("opt", LLAMA | {"ffn_dim": 70, "word_embed_proj_dim": 48, "pad_token_id": 1}),
    ("opt", LLAMA | {"ffn_dim": 70, "word_embed_proj_dim": 48, "pad_token_id": 1, "enable_bias": False}),
    ("mixtral", MIXTRAL | {"sliding_window": None}),
    ("qwen2_moe", EXPERTS | {"shared_expert_intermediate_size": 44}),
    ("qwen2_moe", EXPERTS | {"shared_expert_intermediate_size": 44, "mlp_only_layers": [0]}),
    ("qwen3_moe", EXPERTS | {"decoder_sparse_step": 2, "head_dim": 12}),
    ("gpt_oss", MIXTRAL | {"head_dim": 8, "sliding_window": 8}),
    ("deepseek_v2", DEEPSEEK),
    ("deepseek_v2", DEEPSEEK | {"q_lora_rank": None}),
    ("deepseek_v3", DEEPSEEK),
    ("deepseek_v3", DEEPSEEK | {"attention_bias": True, "num_nextn_predict_layers": 0}),
]


def test_every_reader_is_checked() -> None:
    assert {model_type for model_type, _ in CONFIGS} == set(MODEL_TYPES) - {"gemma3"}


@pytest.mark.parametrize(("model_type", "values"), CONFIGS, ids=[name for name, _ in CONFIGS])
def test_parameters_equal_those_of_the_model_that_transformers_builds(
    model_type: str, values: dict[str, Any]
) -> None:
    config = transformers.AutoConfig.for_model(model_type, **values)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    counted = parameters(from_hf_config({"model_type": model_type, **values}))
    assert counted == sum(parameter.numel() for parameter in model.parameters())
    # what transformers itself writes for this model says the same
    assert parameters(from_hf_config(config.to_dict())) == counted


@pytest.mark.parametrize(
    ("model_type", "values"),
    [
        ("gemma2", LLAMA | {"sliding_window": 8}),
        ("gemma3_text", LLAMA | {"sliding_window": 8, "num_hidden_layers": 7}),
        ("gemma3_text", LLAMA | {"sliding_window": 8, "sliding_window_pattern": 2}),
        ("gpt_oss", MIXTRAL | {"sliding_window": 8}),
        ("qwen2", LLAMA | {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 2}),
        ("qwen3", LLAMA | {"sliding_window": 8, "use_sliding_window": False, "max_window_layers": 1}),
    ],
)
def test_the_same_layers_slide(model_type: str, values: dict[str, Any]) -> None:
    config = transformers.AutoConfig.for_model(model_type, **values)
    windows = [
        layer.attention.window for layer in from_hf_config({"model_type": model_type, **values}).layers
    ]
    assert windows == [8 if kind == "sliding_attention" else None for kind in config.layer_types]
