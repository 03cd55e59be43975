"""Sizes and workloads: what does not fit together is refused in one sentence."""

from __future__ import annotations

from typing import Any

import pytest

from headwise.cost import Workload, from_config, from_sizes
from headwise.cost.numbers import read_bytes, say_bytes
from headwise.cost.parameters import parameters
from headwise.model import GPT, GPTConfig


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"d_model": 0}, ValueError, "d_model must be at least 1, got 0"),
        ({"d_model": -4}, ValueError, "d_model must be at least 1, got -4"),
        ({"d_model": 64.0}, TypeError, "d_model must be a whole number, got 64.0"),
        ({"d_model": True}, TypeError, "d_model must be a whole number, got True"),
        ({"n_head": 3}, ValueError, "d_model=64 cannot be divided among n_head=3 heads; 2 or 4 would fit"),
        ({"n_head": "8"}, TypeError, "n_head must be a whole number, got '8'"),
        ({"n_head": [4, 4, 4]}, ValueError, "n_head lists 3 layers, but n_layer is 2"),
        ({"n_kv_head": 3}, ValueError, "n_head=4 query heads cannot share n_kv_head=3"),
        ({"n_kv_head": 8}, ValueError, "not the size of a group"),
        ({"n_kv_head": [4, 0]}, ValueError, "n_kv_head must be at least 1, got 0"),
        ({"d_ff": 0}, ValueError, "d_ff must be at least 1, got 0"),
        ({"window": 0}, ValueError, "window must be at least 1, got 0"),
        ({"n_layer": -1}, ValueError, "n_layer must be at least 0, got -1"),
        ({"d_head": 8, "output_projection": False}, ValueError, "without an output projection"),
    ],
)
def test_impossible_sizes(arguments: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error) as caught:
        from_sizes(**({"d_model": 64, "n_head": 4, "n_layer": 2} | arguments))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"batch": 0}, ValueError, "batch must be at least 1, got 0"),
        ({"length": 1.5}, TypeError, "length must be a whole number, got 1.5"),
        ({"dtype": "int8"}, ValueError, "dtype must be one of fp64, fp32, bf16, fp16, got 'int8'"),
        ({"cache_dtype": "half"}, ValueError, "cache_dtype must be one of"),
        (
            {"cache_scales": "row"},
            ValueError,
            "cache_scales must be one of none, layer, token-head, got 'row'",
        ),
        ({"cache_block": 0}, ValueError, "cache_block must be at least 1"),
    ],
)
def test_impossible_workloads(arguments: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error) as caught:
        Workload(**arguments)
    assert words in str(caught.value)


def test_a_model_without_layers_has_neither_scores_nor_cache() -> None:
    bigram = from_config(
        GPTConfig(vocab_size=65, n_layer=0, position="none", norm="none", tied_embeddings=False)
    )
    from headwise.cost import estimate

    cost = estimate(bigram, Workload())
    assert cost.parameters == 2 * 65 * 128
    assert (cost.score_tensor_bytes, cost.kv_cache_bytes) == (0, 0)
    assert cost.flops_per_byte_decode_attention is None


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"mlp": "gelu", "norm": "layer", "bias": True, "position": "learned"},
        {"mlp": "none", "output_projection": "identity", "norm": "none", "bias": True},
        {"n_head": 8, "n_kv_head": 2, "d_head": 6, "tied_embeddings": False, "d_ff": 7},
    ],
)
def test_every_field_of_our_configuration_counts(changes: dict[str, Any]) -> None:
    config = GPTConfig(**{"vocab_size": 65, "d_model": 32, **changes})
    assert parameters(from_config(config)) == GPT(config).num_parameters()


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (1023, "1,023 bytes"),
        (4 * 2**20, "4,194,304 bytes (4 MiB)"),
        (2**31, "2,147,483,648 bytes (2 GiB)"),
        (3 * 2**39, "1,649,267,441,664 bytes (1.5 TiB)"),
    ],
)
def test_bytes_are_said_exactly_then_in_binary_units(count: int, text: str) -> None:
    assert say_bytes(count) == text


def test_sizes_are_read_in_binary_units_only() -> None:
    assert read_bytes("--memory", "24GiB") == 24 * 2**30
    assert read_bytes("--memory", "0.5 mib") == 2**19
    assert read_bytes("--memory", "1000") == 1000
    for text in ("24GB", "much", "-1GiB", "0", "nan", "inf"):
        with pytest.raises(ValueError, match="--memory must be a positive number of bytes or of KiB"):
            read_bytes("--memory", text)
