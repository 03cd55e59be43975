"""Exact figures of well-known models and sizes, and the faults that other calculators were reported for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from headwise.cost import Workload, estimate, from_hf_config, from_sizes
from headwise.cost.cache import kv_cache_bytes, kv_cache_bytes_per_token, score_tensor_bytes
from headwise.cost.parameters import attention_parameters, parameters, projection_parameters

MiB, GiB = 2**20, 2**30
Published = dict[str, dict[str, Any]]


@pytest.mark.parametrize(("bias", "expected"), [(True, 1_050_624), (False, 1_048_576)])
def test_torch_multihead_attention_of_512_with_8_heads(bias: bool, expected: int) -> None:
    theirs = nn.MultiheadAttention(512, 8, bias=bias, device="meta")
    ours = from_sizes(512, 8, bias=bias).layers[0].attention
    assert attention_parameters(ours, 512) == expected == sum(p.numel() for p in theirs.parameters())


def test_twice_the_heads_are_the_same_parameters_and_twice_the_scores() -> None:
    w = Workload(length=512)
    few = from_sizes(4096, 4096 // 128).layers[0].attention
    many = from_sizes(4096, 64).layers[0].attention
    assert (few.n_head, few.d_head, many.d_head) == (32, 128, 64)
    assert projection_parameters(few, 4096) == projection_parameters(many, 4096) == 67_108_864
    assert score_tensor_bytes(many, w) == 2 * score_tensor_bytes(few, w)


def test_the_two_gib_cache_that_a_textbook_gives_as_6_4_gb() -> None:
    w = Workload(batch=1, length=4096, dtype="fp16")
    assert kv_cache_bytes(from_sizes(4096, 32, n_layer=32), w) == 2_147_483_648 == 2 * GiB
    assert kv_cache_bytes(from_sizes(4096, 32, n_kv_head=8, n_layer=32), w) == GiB // 2


def test_score_tensors_of_8_heads_in_16_bit() -> None:
    sizes = from_sizes(512, 8, n_layer=32)
    one = sizes.layers[0].attention
    assert score_tensor_bytes(one, Workload(length=512)) == 4 * MiB
    assert score_tensor_bytes(one, Workload(length=8192)) == GiB
    assert estimate(sizes, Workload(batch=8, length=8192)).score_tensor_bytes_all_layers == 256 * GiB


@pytest.mark.parametrize(
    ("name", "count", "per_token", "length", "cache"),
    [
        ("gpt2", 124_439_808, 36_864, 1024, 37_748_736),
        ("llama-2-7b", 6_738_415_616, 524_288, 4096, 2 * GiB),
        ("llama-2-70b", 68_976_648_192, 327_680, 4096, 5 * GiB // 4),
        ("tinyllama", 1_100_048_384, 22_528, 2048, 44 * MiB),
        ("llama-3-8b", 8_030_261_248, 131_072, 8192, GiB),
        ("llama-3-8b", 8_030_261_248, 131_072, 131_072, 16 * GiB),
        ("qwen2.5-0.5b", 494_032_768, 12_288, 32_768, 384 * MiB),
    ],
)
def test_rows_of_well_known_models(
    name: str, count: int, per_token: int, length: int, cache: int, published: Published
) -> None:
    model, w = from_hf_config(published[name]), Workload(length=length, dtype="fp16")
    assert parameters(model) == count
    assert kv_cache_bytes_per_token(model, w) == per_token
    assert kv_cache_bytes(model, w) == cache


def test_score_tensors_of_well_known_models(published: Published) -> None:
    llama = from_hf_config(published["llama-2-7b"]).layers[0].attention
    assert score_tensor_bytes(llama, Workload(length=4096, dtype="fp16")) == GiB
    gpt2 = from_hf_config(published["gpt2"]).layers[0].attention
    assert score_tensor_bytes(gpt2, Workload(length=1024, dtype="fp32")) == 48 * MiB
    assert kv_cache_bytes(from_hf_config(published["gpt2"]), Workload(length=1024, dtype="fp32")) == 72 * MiB


def test_keys_and_values_are_both_counted(published: Published) -> None:
    """EleutherAI's calculator missed the factor 2: 1 GiB for this case."""
    llama = from_hf_config(published["llama-2-7b"])
    assert kv_cache_bytes(llama, Workload(length=4096)) == 2 * 32 * 4096 * 4096 * 2


def test_cached_heads_are_key_value_heads_not_query_heads(published: Published) -> None:
    """Several calculators multiplied by query heads: four times too much here."""
    assert kv_cache_bytes(from_hf_config(published["llama-3-8b"]), Workload(length=8192)) == GiB


def test_an_explicit_head_dim_counts(published: Published) -> None:
    """hidden_size / heads would be 80; Qwen3-4B has 128."""
    qwen = from_hf_config(published["qwen3-4b"])
    assert {layer.attention.d_head for layer in qwen.layers} == {128}
    assert kv_cache_bytes_per_token(qwen, Workload()) == 2 * 36 * 8 * 128 * 2
    assert parameters(qwen) == 4_022_468_096


def test_n_kv_head_is_a_number_of_heads_not_the_size_of_a_group() -> None:
    sizes = from_sizes(768, 24, n_kv_head=8, d_head=32)
    assert kv_cache_bytes_per_token(sizes, Workload()) == 2 * 8 * 32 * 2


def test_a_window_bounds_the_cache_of_its_layers_only(published: Published) -> None:
    values = published["llama-3-8b"] | {"model_type": "gemma2", "head_dim": 128, "sliding_window": 1024}
    model = from_hf_config(values)
    per_layer = 2 * 8 * 128 * 2
    assert kv_cache_bytes(model, Workload(length=4096)) == per_layer * (16 * 1024 + 16 * 4096)
    assert kv_cache_bytes(model, Workload(length=500)) == per_layer * 32 * 500


def test_latent_attention_caches_one_vector_not_keys_and_values(published: Published) -> None:
    """DeepSeek-V3: 70,272 bytes for a token; a published calculator doubled a part of it."""
    deepseek = from_hf_config(published["deepseek-v3"])
    assert kv_cache_bytes(deepseek, Workload(length=1, dtype="bf16")) == 70_272
    assert parameters(deepseek) == 671_026_404_352


def test_experts_count_in_full_and_a_token_visits_some(published: Published) -> None:
    cost = estimate(from_hf_config(published["mixtral-8x7b"]), Workload())
    assert cost.parameters == 46_702_792_704
    assert cost.parameters - cost.parameters_active == 32 * 6 * 3 * 4096 * 14336


def test_fewer_key_value_heads_save_cache_and_projections_but_no_scores() -> None:
    """Grouped queries are often sold as fewer FLOPs in attention; those stay what they are."""
    w = Workload(length=256, dtype="fp32")
    full = estimate(from_sizes(64, 8, n_layer=2), w)
    grouped = estimate(from_sizes(64, 8, n_kv_head=2, n_layer=2), w)
    saved = 2 * (2 * 64 * 8 * 6)  # layers · (keys and values · D · K · (H - G))
    assert full.parameters - grouped.parameters == saved
    assert full.flops_forward - grouped.flops_forward == 2 * 256 * saved
    assert full.score_tensor_bytes == grouped.score_tensor_bytes
    assert full.kv_cache_bytes == 4 * grouped.kv_cache_bytes


def test_flops_of_multi_head_attention_in_the_published_closed_form() -> None:
    """24 B L T D² (1 + T/(6D) + V/(12LD)), Narayanan et al. 2021, for D_ff = 4D and H·K = D."""
    d, n_layer, t, vocabulary, b = 64, 3, 48, 100, 2
    sizes = from_sizes(d, 4, n_layer=n_layer, d_ff=4 * d, gated=False, vocab_size=vocabulary)
    closed = 24 * b * n_layer * t * d**2 + 4 * b * n_layer * t**2 * d + 2 * b * t * d * vocabulary
    cost = estimate(sizes, Workload(b, t))
    assert cost.flops_forward == closed
    assert cost.flops_backward == 2 * closed
    assert cost.flops_decode_token == 2 * (n_layer * 12 * d**2 + d * vocabulary) + 4 * n_layer * d * t


def test_hidden_pairs_are_those_above_the_diagonal_or_outside_the_window() -> None:
    t, per_pair = 16, 2 * 2 * (8 + 8)
    causal = torch.ones(t, t).tril()
    for window in (None, 5):
        visible = causal if window is None else causal.triu(1 - window)
        cost = estimate(from_sizes(16, 2, window=window), Workload(3, t))
        assert cost.flops_forward_on_hidden_pairs == 3 * per_pair * int((visible == 0).sum())


@pytest.mark.parametrize(
    ("dtype", "scales", "per_vector"),
    [
        ("int8", "token-head", 128 + 4),
        ("int4", None, 64 + 4),
        ("fp8", None, 128),
        ("int8", "none", 128),
        ("fp32", None, 512),
    ],
)
def test_a_cache_of_another_type_with_its_scales(dtype: str, scales: Any, per_vector: int) -> None:
    sizes = from_sizes(4096, 32, n_kv_head=8, n_layer=2)
    w = Workload(length=100, cache_dtype=dtype, cache_scales=scales)
    per_layer_scales = 2 * 2 * 4 if dtype == "fp8" else 0
    assert kv_cache_bytes(sizes, w) == 2 * 2 * 8 * 100 * per_vector + per_layer_scales


def test_paged_caches_are_whole_blocks() -> None:
    sizes = from_sizes(64, 1)
    assert kv_cache_bytes(sizes, Workload(length=17, cache_block=16)) == 32 * 2 * 64 * 2


def test_decoding_attention_does_two_h_over_g_flops_per_number_of_cache() -> None:
    for groups, expected in ((8, 1.0), (2, 4.0), (1, 8.0)):
        cost = estimate(from_sizes(64, 8, n_kv_head=groups, n_layer=3), Workload(batch=5, length=77))
        assert cost.flops_per_byte_decode_attention == pytest.approx(expected)
