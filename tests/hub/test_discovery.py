"""Layers are found by running the model, in running order, without a trace."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
import transformers as hf
from torch import nn

from headwise.attention import MultiHeadAttention
from headwise.heads import observe
from headwise.hub import attention_layers
from headwise.hub.layers import UnknownProjection
from headwise.model import GPT, GPTConfig

SMALL = {
    "vocab_size": 40,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 32,
}


def test_an_encoder_decoder_tells_its_three_kinds_of_layer_apart(make_family):
    layers = attention_layers(make_family("bart").make("sdpa"))
    assert [(layer.name, layer.cross, layer.causal) for layer in layers] == [
        ("model.encoder.layers.0.self_attn", False, False),
        ("model.encoder.layers.1.self_attn", False, False),
        ("model.decoder.layers.0.self_attn", False, True),
        ("model.decoder.layers.0.encoder_attn", True, False),
        ("model.decoder.layers.1.self_attn", False, True),
        ("model.decoder.layers.1.encoder_attn", True, False),
    ]
    assert [layer.index for layer in layers] == list(range(6))


def test_sizes_are_those_at_work_not_those_that_names_suggest(make_family):
    (layer, _) = attention_layers(make_family("qwen3").make())
    assert (layer.n_head, layer.n_kv_head, layer.d_head, layer.d_value) == (4, 2, 16, 16)  # 4 · 16 > 32
    assert layer.output_weight.shape == (32, 64)


def test_conv1d_keeps_its_weight_transposed_and_the_layer_gives_it_as_a_linear_does(make_family):
    model = make_family("gpt2").make()
    layer = attention_layers(model)[1]
    assert torch.equal(layer.output_weight, model.transformer.h[1].attn.c_proj.weight.T)
    assert torch.equal(layer.output_bias, model.transformer.h[1].attn.c_proj.bias)


def test_the_projection_may_lie_outside_the_attention_module(make_family):
    model = make_family("bert").make()
    layer = attention_layers(model)[0]
    assert layer.o_proj is model.bert.encoder.layer[0].attention.output.dense


def test_values_may_be_narrower_than_keys():
    config = hf.DeepseekV3Config(
        **SMALL,
        num_key_value_heads=4,
        q_lora_rank=8,
        kv_lora_rank=8,
        qk_rope_head_dim=4,
        qk_nope_head_dim=8,
        v_head_dim=6,
        first_k_dense_replace=2,
    )
    layer = attention_layers(hf.DeepseekV3ForCausalLM(config))[0]
    assert (layer.d_head, layer.d_value) == (12, 6)
    assert layer.output_weight.shape == (32, 24)


def test_finding_layers_leaves_mode_randomness_and_gradients_alone(make_family):
    model = make_family("bert").make("sdpa").train()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    attention_layers(model)
    assert torch.equal(torch.rand(3), wanted)
    assert all(module.training for module in model.modules())
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_the_model_is_run_once_and_again_only_when_it_was_changed(make_family):
    model = make_family("llama").make("sdpa")
    runs: list[object] = []
    model.register_forward_pre_hook(lambda *_: runs.append(None))
    first = attention_layers(model)
    assert [a.module for a in attention_layers(model)] == [a.module for a in first]
    assert len(runs) == 1
    model.model.layers[0].self_attn.o_proj = nn.Linear(32, 32, bias=False)  # of the same shape
    assert attention_layers(model)[0].o_proj is model.model.layers[0].self_attn.o_proj
    assert len(runs) == 2
    model.model.layers = model.model.layers[:1]
    assert len(attention_layers(model)) == 1


def test_a_model_is_not_kept_alive_by_having_been_looked_at(make_family):
    model = make_family("llama").make("sdpa")
    attention_layers(model)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


class Adapted(nn.Module):
    """A linear layer with a low-rank adapter beside it, as PEFT makes them."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, 2, bias=False)
        self.up = nn.Linear(2, base.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x))


def test_a_projection_with_an_adapter_has_no_plain_weight(make_family):
    model = make_family("llama").make("sdpa")
    model.model.layers[1].self_attn.o_proj = Adapted(model.model.layers[1].self_attn.o_proj)
    layers = attention_layers(model)
    assert layers[0].output_weight is not None
    assert isinstance(layers[1].o_proj, UnknownProjection)
    assert layers[1].output_weight is None
    assert layers[1].output_bias is None
    assert attention_layers(model)[1].o_proj is layers[1].o_proj  # remembered


class Coarse(nn.Linear):
    """A linear layer that works with other numbers than its weight, as quantised ones do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight.round())


def test_a_quantised_projection_has_no_plain_weight(make_family):
    model = make_family("llama").make("sdpa")
    model.model.layers[0].self_attn.o_proj = Coarse(32, 32)
    layer = attention_layers(model)[0]
    assert isinstance(layer.o_proj, UnknownProjection)
    assert layer.output_weight is None


def test_a_gate_of_the_model_itself_leaves_no_plain_weight(make_family):
    model = make_family("llama").make("sdpa")
    projection = model.model.layers[0].self_attn.o_proj
    model.model.layers[0].self_attn.o_proj = nn.Sequential(nn.LayerNorm(32), projection)
    layers = attention_layers(model)
    assert isinstance(layers[0].o_proj, UnknownProjection)
    assert layers[1].o_proj is model.model.layers[1].self_attn.o_proj


def test_a_model_that_bypasses_the_interface_is_refused_by_name():
    model = hf.BloomModel(hf.BloomConfig(vocab_size=40, hidden_size=32, n_layer=2, n_head=4))
    with (
        pytest.raises(
            ValueError,
            match="BloomModel has no attention that goes through transformers' attention interface",
        ),
        observe(model),
    ):
        pass


def test_an_option_that_bypasses_the_interface_is_refused_with_the_way_out():
    config = hf.GPT2Config(
        vocab_size=40,
        n_embd=32,
        n_layer=1,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
        reorder_and_upcast_attn=True,
    )
    model = hf.GPT2Model(config)
    model.set_attn_implementation("eager")
    with pytest.raises(ValueError, match=r"GPT2Model has no attention that goes.*sdpa"):
        attention_layers(model)
    model.set_attn_implementation("sdpa")
    assert len(attention_layers(model)) == 1


def test_an_attention_function_whose_masks_cannot_be_read_is_refused(make_family):
    model = make_family("llama").make("sdpa")
    model.set_attn_implementation("flex_attention")
    with pytest.raises(ValueError, match=r"'flex_attention'.*set_attn_implementation\(\"sdpa\"\)"):
        attention_layers(model)


def test_attention_of_another_kind_is_refused_rather_than_misread(make_family, monkeypatch):
    from transformers.models.llama import modeling_llama

    def linear_attention(module, query, key, value, attention_mask, scaling, **_):
        key = key.repeat_interleave(2, 1)
        return (query @ key.mT * scaling @ value.repeat_interleave(2, 1)).transpose(1, 2), None

    monkeypatch.setattr(modeling_llama, "eager_attention_forward", linear_attention)
    with pytest.raises(ValueError, match=r"LlamaForCausalLM attends in a way of its own \(LlamaAttention\)"):
        attention_layers(make_family("llama").make("eager"))


def test_a_model_of_pictures_is_refused():
    config = hf.ViTConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=48, image_size=32
    )
    with pytest.raises(ValueError, match="ViTModel reads pixel_values, not token ids"):
        attention_layers(hf.ViTModel(config))


def test_a_part_of_a_transformers_model_is_refused(make_family):
    model = make_family("llama").make("sdpa")
    with pytest.raises(ValueError, match="ModuleList has no attention that can be observed"):
        attention_layers(model.model.layers)


def test_a_model_without_attention_is_refused():
    with pytest.raises(ValueError, match="Linear has no attention that can be observed"):
        attention_layers(nn.Linear(2, 2))


def test_layers_of_ours():
    model = GPT(GPTConfig(vocab_size=11, block_size=8, n_layer=2, n_head=4, n_kv_head=2, d_model=16))
    layers = attention_layers(model)
    assert [layer.name for layer in layers] == ["blocks.0.attention", "blocks.1.attention"]
    assert (layers[0].n_head, layers[0].n_kv_head, layers[0].d_head, layers[0].d_value) == (4, 2, 4, 4)
    assert layers[0].output_weight is model.blocks[0].attention.o_proj.weight
    assert layers[0].output_bias is None


def test_heads_that_are_not_mixed_have_no_output_weight():
    layer = attention_layers(MultiHeadAttention(8, 2, output_projection=False))[0]
    assert layer.name == ""
    assert layer.output_weight is None
    assert layer.output_bias is None


def test_both_makes_in_one_module_are_counted_together(make_family):
    both = nn.ModuleDict({"theirs": make_family("llama").make("sdpa"), "ours": MultiHeadAttention(8, 2)})
    assert [(layer.index, layer.name) for layer in attention_layers(both)] == [
        (0, "ours"),
        (1, "theirs.model.layers.0.self_attn"),
        (2, "theirs.model.layers.1.self_attn"),
    ]


def test_compiled_models_of_transformers_are_refused_because_nothing_would_be_seen(make_family):
    model = make_family("llama").make("sdpa")
    with pytest.raises(ValueError, match="OptimizedModule was compiled"):
        attention_layers(torch.compile(model, backend="eager"))
    assert len(attention_layers(model)) == 2
    model.compile(backend="eager")
    with pytest.raises(ValueError, match="LlamaForCausalLM was compiled"):
        attention_layers(model)


def test_a_compiled_model_of_ours_is_looked_into():
    model = GPT(GPTConfig(vocab_size=11, block_size=8, n_layer=2, n_head=2, d_model=8)).eval()
    compiled = torch.compile(model, backend="eager")
    ids = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        plain = compiled(ids)
        seen: list[object] = []
        with observe(compiled, seen.append, gates={1: torch.tensor([0.0, 1.0])}):
            gated = compiled(ids)
        assert len(seen) == 2
        assert not torch.equal(gated, plain)
        assert torch.equal(compiled(ids), plain)


def test_a_model_that_runs_as_copies_is_refused(make_family):
    with pytest.raises(ValueError, match=r"DataParallel runs copies .* model\.module"):
        attention_layers(nn.DataParallel(make_family("llama").make("sdpa")))


def test_weights_that_are_not_numbers_are_refused(make_family):
    model = make_family("llama").make("sdpa")
    with torch.no_grad():
        model.model.layers[0].self_attn.q_proj.weight[0, 0] = float("nan")
    with pytest.raises(ValueError, match="not finite"):
        attention_layers(model)
