"""What is predicted is what is measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from headwise.cost import Workload, from_config, from_sizes, verify
from headwise.cost.measure import AllocatedBytes
from headwise.cost.own import to_config
from headwise.cost.training import step_peak
from headwise.cost.verification import size_that_fits
from headwise.model import PRESETS, GPTConfig

CASES: list[tuple[str, dict[str, Any], int, int]] = [
    ("gpt", {}, 2, 64),
    ("gpt", {"n_kv_head": 1, "n_layer": 1}, 1, 128),
    ("gpt", {"d_head": 12, "tied_embeddings": False, "d_ff": 50}, 3, 32),
    ("gpt2", {"n_kv_head": 2}, 2, 64),
    ("gpt2", {"vocab_size": 700, "dropout": 0.1}, 2, 16),
    ("block", {}, 2, 64),
    ("residual", {}, 2, 64),
    ("multi-head", {"output_projection": "identity"}, 2, 64),
    ("single-head", {}, 2, 64),
]


@pytest.mark.parametrize(("preset", "changes", "batch", "length"), CASES)
def test_every_prediction_holds(preset: str, changes: dict[str, Any], batch: int, length: int) -> None:
    settings = PRESETS[preset].model_dump() | {"d_model": 32, "block_size": 128, "vocab_size": 65}
    checks = verify(GPTConfig(**settings | changes), batch=batch, length=length)
    exact = {check.cost: check for check in checks if check.tolerance == 0}
    assert set(exact) == {
        "parameters",
        "kv_cache_bytes",
        "score_tensor_bytes",
        "flops_forward",
        "flops_backward",
        "flops_decode_token",
    }
    for check in exact.values():
        assert check.predicted == check.measured, check.cost
    for check in checks:
        if check.cost not in exact:
            share = 0.1 if check.cost.startswith("training_peak_bytes") else 0.02
            assert check.predicted == pytest.approx(check.measured, rel=share), check.cost


def test_grouped_heads_shrink_the_real_cache() -> None:
    """Keys and values that were repeated before being cached would save nothing."""
    settings = PRESETS["gpt"].model_dump() | {"d_model": 32, "vocab_size": 65}
    measured = {}
    for groups in (1, 2, 4):
        checks = verify(GPTConfig(**settings | {"n_kv_head": groups}), batch=1, length=16)
        measured[groups] = next(c.measured for c in checks if c.cost == "kv_cache_bytes")
    assert measured == {groups: 2 * 4 * groups * 8 * 16 * 4 for groups in (1, 2, 4)}


def test_verification_leaves_the_random_state_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    verify(GPTConfig(vocab_size=11, d_model=16, n_layer=1, block_size=16))
    assert torch.equal(torch.rand(3), expected)


def test_tensors_are_followed_from_birth_to_death() -> None:
    with AllocatedBytes() as allocated:
        a = torch.ones(1000)
        assert allocated.now == 4000
        view = a.view(10, 100)[2:]
        assert allocated.now == 4000
        b = a + 1
        del a
        assert allocated.now == 8000  # the view keeps it alive
        del view
        assert allocated.now == 4000
        (b * 2).sum()
        del b
    assert allocated.now == 0
    assert allocated.peak == 8004


def test_a_model_too_large_is_built_smaller_with_the_same_kind_of_heads() -> None:
    sizes = from_sizes(
        4096,
        32,
        n_kv_head=8,
        n_layer=32,
        d_ff=14336,
        vocab_size=128_256,
        norm="rms",
        rotary=True,
        context=8192,
    )
    config, workload = size_that_fits(to_config(sizes), Workload(batch=4, length=8192), 64 * 2**20)
    assert workload.dtype == "fp32"  # in which it is built
    assert config.n_head / config.kv_heads == 4
    assert (config.head_width, config.mlp, config.norm) == (128, "swiglu", "rms")
    assert step_peak(from_config(config), workload, tiled=False) <= 64 * 2**20
    small = GPTConfig(vocab_size=65)
    assert size_that_fits(small, Workload(length=64))[0] == small


def test_a_model_that_fits_nothing_says_what_it_needs() -> None:
    with pytest.raises(ValueError, match="not even the smallest model of this kind fits 1,000 bytes"):
        size_that_fits(GPTConfig(vocab_size=65), Workload(length=64), 1000)


def test_what_cannot_be_built_is_named() -> None:
    with pytest.raises(ValueError, match=r"layers that differ.*cannot be built with"):
        to_config(from_sizes(64, [4, 2], n_layer=2, d_head=16))
    with pytest.raises(ValueError, match="a sliding window"):
        to_config(from_sizes(64, 4, window=8))
    more_norms = from_sizes(64, 4, d_ff=8, norm="rms")
    layer = replace(more_norms.layers[0], norm_parameters=4 * 64)
    with pytest.raises(ValueError, match="norms or biases of its own"):
        to_config(replace(more_norms, layers=(layer,)))


@pytest.mark.parametrize("preset", [name for name in PRESETS if name != "bigram"])
def test_our_configurations_survive_the_way_there_and_back(preset: str) -> None:
    config = GPTConfig(vocab_size=65, **PRESETS[preset].model_dump())
    assert from_config(to_config(from_config(config))) == from_config(config)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"length": 8}, ValueError, "length must be at least 16, got 8"),
        ({"length": 100}, ValueError, "length=100 exceeds the model's block_size=64"),
        ({"batch": 0}, ValueError, "batch must be at least 1, got 0"),
        ({"batch": 1.5}, TypeError, "batch must be a whole number, got 1.5"),
    ],
)
def test_impossible_requests(arguments: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        verify(GPTConfig(vocab_size=65), **arguments)
    with pytest.raises(ValueError, match="without layers"):
        verify(GPTConfig(vocab_size=65, **PRESETS["bigram"].model_dump()))
