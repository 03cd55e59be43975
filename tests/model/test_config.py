"""Settings that contradict each other are named, with what would fit."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from headwise.model import GPT, PRESETS, GPTConfig, ModelSettings


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"d_model": 10, "n_head": 4}, "d_model=10 cannot be divided among n_head=4 heads.* 2 or 5"),
        ({"d_model": 7, "n_head": 9}, "fit: 7 "),
        ({"n_head": 6, "d_model": 48, "n_kv_head": 4}, "n_head=6 .* n_kv_head=4 .*fit: 3 or 6"),
        ({"d_model": 12, "n_head": 4}, "rotary positions need an even d_head, got 3"),
        ({"d_head": 8, "output_projection": "identity"}, "4·8 and 128"),
        ({"mlp": "none", "d_ff": 7}, "d_ff=7 has no effect"),
        ({"position": "learned", "rope_base": 500.0}, "rope_base=500 has no effect with position=learned"),
        ({"norm": "none", "norm_eps": 0.1}, "norm_eps=0.1 has no effect with norm=none"),
        ({"n_layer": 0, "position": "none", "n_head": 2}, "n_layer=0 leaves nothing for n_head"),
        ({"n_layer": 0}, "position=rotary"),
        ({"n_layer": 0, "position": "none", "norm": "rms", "bias": True}, "nothing for bias"),
        ({"n_layer": 0, "position": "none", "norm": "none", "bias": True}, "nothing for bias"),
        ({"dropout": 1.0}, "less than 1"),
        ({"block_size": 0}, "greater than or equal to 1"),
        ({"heads": 4}, "Extra inputs are not permitted"),
    ],
)
def test_each_contradiction_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ModelSettings(**fields)


def test_all_problems_are_listed_at_once() -> None:
    with pytest.raises(ValidationError) as caught:
        ModelSettings(d_model=10, n_head=4, n_kv_head=3)
    assert "head counts that fit" in str(caught.value)
    assert "key/value heads" in str(caught.value)


def test_without_layers_the_last_layer_norm_still_has_a_bias() -> None:
    settings = ModelSettings(n_layer=0, position="none", norm="layer", bias=True)
    names = dict(GPT(GPTConfig(vocab_size=3, **settings.model_dump())).named_parameters())
    assert "final_norm.bias" in names


def test_a_free_head_width_needs_no_division() -> None:
    assert ModelSettings(d_model=10, n_head=4, d_head=6).head_width == 6


def test_both_feed_forward_parts_cost_about_the_same() -> None:
    gelu, swiglu = (ModelSettings(mlp=m, d_model=384) for m in ("gelu", "swiglu"))
    assert gelu.hidden_width == 1536
    assert swiglu.hidden_width == 1024


@pytest.mark.parametrize("preset", list(PRESETS))
def test_presets_survive_a_round_trip(preset: str) -> None:
    config = GPTConfig(vocab_size=5, **PRESETS[preset].model_dump())
    assert GPTConfig.model_validate_json(config.model_dump_json()) == config
