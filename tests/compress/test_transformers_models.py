"""Surgery on models of transformers: they stay in their class, and stock code loads what was made of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headwise.compress import group, level, prune
from headwise.hub.export import save_transformers
from headwise.hub.surgery import head_counts, is_level, layer_handles

Make = Callable[..., nn.Module]
Gap = Callable[[nn.Module, nn.Module], float]

KINDS = ["Llama", "Mistral", "Qwen2", "Starcoder2"]


def load(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder).eval()


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_grouped_model_loads_in_its_own_class_with_a_smaller_cache(
    kind: str, make_hf: Make, rows: list[Tensor], tmp_path: Path, gap: Gap
) -> None:
    parent: Any = make_hf(kind)
    made: Any = group(parent, 2, "closed", rows).model
    save_transformers(tmp_path / "out", made)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]) == (4, 2, 6)
    loaded = load(tmp_path / "out")
    assert type(loaded) is type(parent)
    assert gap(loaded, made) < 1e-6
    assert cache_bytes(loaded, rows[0]) * 2 == cache_bytes(parent, rows[0])
    # 2 layers, keys and values, 2 heads of 6 float32 numbers, 2 texts of 24 tokens
    assert cache_bytes(loaded, rows[0]) == 2 * 2 * 2 * 6 * 4 * 2 * 24
    options = {"max_new_tokens": 5, "do_sample": False, "attention_mask": torch.ones_like(rows[0])}
    assert torch.equal(loaded.generate(rows[0], **options), made.generate(rows[0], **options))


def cache_bytes(model: Any, ids: Tensor) -> int:
    cache = model(input_ids=ids, use_cache=True)
    kept = cache.past_key_values if hasattr(cache, "past_key_values") else cache.cache
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in kept.layers)


@pytest.mark.parametrize("kind", KINDS)
def test_a_pruned_model_loads_in_its_own_class(kind: str, make_hf: Make, tmp_path: Path, gap: Gap) -> None:
    made = prune(make_hf(kind), [(0, 1), (1, 3)]).model
    save_transformers(tmp_path / "out", made)
    loaded = load(tmp_path / "out")
    assert head_counts(loaded) == [(3, 3), (3, 3)]
    assert gap(loaded, made) < 1e-6


def test_layers_that_differ_are_not_written_before_they_are_levelled(
    make_hf: Make, tmp_path: Path, gap: Gap
) -> None:
    made = group(make_hf("Llama"), [1, 4], "mean").model
    with pytest.raises(ValueError, match=r"different numbers of heads \(query/key-value: 4/1, 4/4\).*level"):
        save_transformers(tmp_path / "out", made)
    assert not (tmp_path / "out").exists()
    save_transformers(tmp_path / "out", level(made))
    loaded = load(tmp_path / "out")
    assert head_counts(loaded) == [(4, 4), (4, 4)]
    assert gap(loaded, made) < 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_a_number_of_heads_that_does_not_divide_the_width_is_filled_up_for_llama(
    kind: str, make_hf: Make, tmp_path: Path, gap: Gap
) -> None:
    shape = {"num_attention_heads": 6, "head_dim": 4, "num_key_value_heads": 6}
    made = prune(make_hf(kind, **shape), [(0, 1), (1, 3)]).model
    assert is_level(made) == (kind != "Llama")
    if kind == "Llama":
        with pytest.raises(ValueError, match=r"width 24 holds only .* divide it, and this has 5.*level"):
            save_transformers(tmp_path / "out", made)
        assert not (tmp_path / "out").exists()
    save_transformers(tmp_path / "out", level(made))
    loaded = load(tmp_path / "out")
    assert head_counts(loaded) == [(6, 6) if kind == "Llama" else (5, 5)] * 2
    assert gap(loaded, made) < 1e-5


def test_half_precision_stays(make_hf: Make, rows: list[Tensor]) -> None:
    made = group(make_hf("Llama").to(torch.bfloat16), 2, "closed", rows).model
    assert {p.dtype for p in made.parameters()} == {torch.bfloat16}


def test_the_parent_is_left_as_it_was(make_hf: Make, rows: list[Tensor]) -> None:
    parent: Any = make_hf("Llama")
    before = {name: tensor.clone() for name, tensor in parent.state_dict().items()}
    group(parent, 1, "closed", rows)
    assert parent.config.num_key_value_heads == 4
    assert all(torch.equal(tensor, before[name]) for name, tensor in parent.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in parent.modules())


def test_handles_say_how_positions_turn(make_hf: Make, make_gpt: Make) -> None:
    found = {kind: layer_handles(make_hf(kind))[1] for kind in ("Llama", "Cohere")}
    assert [h.rotary for h in found.values()] == ["half-split", "interleaved"]
    assert (found["Llama"].name, found["Llama"].index) == ("model.layers.1.self_attn", 1)
    own = layer_handles(make_gpt(n_head=4, n_kv_head=2, d_head=6, interleaved=True))[0]
    assert (own.rotary, own.rotary_width, own.n_head, own.n_kv_head, own.d_head) == (
        "interleaved",
        6,
        4,
        2,
        6,
    )
    assert layer_handles(make_gpt("gpt2", n_head=4))[0].rotary is None


def test_attention_of_another_shape_is_refused_by_name(make_hf: Make) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    with pytest.raises(ValueError, match="GPT2LMHeadModel is not Llama-shaped: its attention is GPT2A"):
        layer_handles(GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=9)))
    with pytest.raises(ValueError, match="Qwen3ForCausalLM is not Llama-shaped: its attention is Qwen3A"):
        layer_handles(make_hf("Qwen3"))
    with pytest.raises(ValueError, match=r"self_attn norms its queries and keys \(CohereAttention\)"):
        layer_handles(make_hf("Cohere", use_qk_norm=True))
    with pytest.raises(ValueError, match="Linear is not Llama-shaped: no attention was found"):
        layer_handles(nn.Linear(2, 2))


def test_quantised_weights_are_refused(make_hf: Make) -> None:
    model: Any = make_hf("Llama")
    weight = model.model.layers[1].self_attn.k_proj.weight
    weight.requires_grad_(False)
    weight.data = (weight.data * 10).to(torch.int8)
    with pytest.raises(ValueError, match=r"quantised \(model.layers.1.self_attn.k_proj.weight is torch"):
        group(model, 2, "mean")


def test_adapters_and_other_projections_are_refused(make_hf: Make) -> None:
    model: Any = make_hf("Llama")
    model.model.layers[0].self_attn.q_proj = nn.Sequential(model.model.layers[0].self_attn.q_proj)
    with pytest.raises(ValueError, match=r"layers.0.self_attn.q_proj is Sequential, wanted is a plain"):
        group(model, 2, "mean")
