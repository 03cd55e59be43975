"""Costs of headwise's own models after heads were taken from them."""

from __future__ import annotations

import pytest

from headwise.cost import from_config
from headwise.cost.parameters import parameters
from headwise.model import GPT, GPTConfig


def test_layers_from_which_heads_were_taken_are_counted_as_they_are() -> None:
    config = GPTConfig(
        vocab_size=11, n_layer=2, n_head=4, d_model=16, d_head=4, block_size=8, layer_heads=((3, 3), (4, 2))
    )
    architecture = from_config(config)
    assert parameters(architecture) == GPT(config).num_parameters()
    assert [layer.attention.n_kv_head for layer in architecture.layers] == [3, 2]


def test_a_layer_without_heads_is_refused_by_number() -> None:
    config = GPTConfig(
        vocab_size=11, n_layer=2, n_head=4, d_model=16, d_head=4, block_size=8, layer_heads=((4, 4), (0, 0))
    )
    with pytest.raises(ValueError, match="layer 1 of headwise GPT has no heads left"):
        from_config(config)
