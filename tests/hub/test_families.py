"""Every family of transformers models is seen and cut alike."""

from __future__ import annotations

import inspect
from itertools import product

import pytest
import torch
import transformers as hf
from torch import nn

from headwise.attention import attention
from headwise.heads import AttentionCall, observe
from headwise.hub import AttentionLayer, attention_layers


def heads_of(call: AttentionCall) -> torch.Tensor:
    return attention(
        call.q,
        call.k,
        call.v,
        mask=call.mask,
        bias=call.bias,
        scale=call.scale,
        softcap=call.softcap,
        sink=call.sink,
        backend="reference",
    )


def weights_of(call: AttentionCall) -> torch.Tensor:
    return attention(
        call.q,
        call.k,
        call.v,
        mask=call.mask,
        bias=call.bias,
        scale=call.scale,
        softcap=call.softcap,
        sink=call.sink,
        return_weights=True,
    )[1]


@torch.no_grad()
def test_looking_and_gates_of_one_leave_the_logits_bit_identical(family):
    for implementation in family.implementations:
        model = family.make(implementation)
        given = family.inputs(model, "right")
        plain = model(**given)[0]
        calls: list[AttentionCall] = []
        with observe(model, calls.append) as layers:
            looked_at = model(**given)[0]
        assert torch.equal(looked_at, plain)
        assert [call.layer.index for call in calls] == [layer.index for layer in layers]
        with observe(model, gates={layer.index: torch.ones(layer.n_head) for layer in layers}):
            assert torch.equal(model(**given)[0], plain)
        assert model.config._attn_implementation == implementation
        assert torch.equal(model(**given)[0], plain)


@torch.no_grad()
def test_what_an_observer_is_shown_explains_what_the_heads_gave(family):
    for implementation, padding in product(family.implementations, (None, "right", "left")):
        model = family.make(implementation)
        given = family.inputs(model, padding)
        calls: list[AttentionCall] = []
        with observe(model, calls.append):
            model(**given)
        for call in calls:
            difference = (heads_of(call) - call.out).abs().amax(dim=(1, 3))  # (B, T)
            if padding is not None and difference.shape == given["attention_mask"].shape:
                difference = difference * given["attention_mask"]  # a padded query may give anything
            assert difference.max() < 1e-5, (implementation, call.layer.name)


@torch.no_grad()
def test_eager_and_sdpa_show_the_same(family):
    seen: list[list[AttentionCall]] = []
    for implementation in family.implementations:
        model = family.make(implementation)
        calls: list[AttentionCall] = []
        with observe(model, calls.append):
            model(**family.inputs(model))
        seen.append(calls)
    for first, second in zip(seen[0], seen[-1], strict=True):
        assert first.layer.name == second.layer.name
        assert first.cross == second.cross
        for part in ("q", "k", "v", "out"):
            torch.testing.assert_close(getattr(first, part), getattr(second, part), rtol=1e-4, atol=1e-4)
        assert repr(first.mask) == repr(second.mask)


@torch.no_grad()
def test_the_weights_are_those_of_eager_output_attentions(family):
    model = family.make("eager")
    calls: list[AttentionCall] = []
    with observe(model, calls.append):
        output = model(**family.inputs(model), output_attentions=True)
    given = [
        weights
        for name in ("encoder_attentions", "attentions", "decoder_attentions", "cross_attentions")
        for weights in (output.get(name) or ())
    ]
    # they come self-attentions first, ours in running order
    order = {"encoder": 0, "decoder": 1}
    ours = sorted(
        calls, key=lambda c: (order.get(c.layer.name.removeprefix("model.").split(".")[0], 0), c.cross)
    )
    assert len(given) == len(ours) > 0
    for call, weights in zip(ours, given, strict=True):
        torch.testing.assert_close(weights_of(call), weights, rtol=1e-5, atol=1e-5)
        if call.layer.causal:
            assert not weights.triu(1).any()


def mixed(layer: AttentionLayer) -> tuple[list[torch.Tensor], torch.utils.hooks.RemovableHandle]:
    """Collect what the output projection of a layer gives."""
    given: list[torch.Tensor] = []
    return given, layer.o_proj.register_forward_hook(lambda *call: given.append(call[2]))


@torch.no_grad()
def test_gating_a_head_removes_exactly_its_share_of_the_layer(family):
    model = family.make("eager")
    given = family.inputs(model)
    calls: list[AttentionCall] = []
    with observe(model, calls.append) as layers:
        model(**given)
    for layer in layers:
        assert layer.d_value * layer.n_head == layer.output_weight.shape[1]
        turn = [other for other in layers if other.module is layer.module].index(layer)
        outputs, handle = mixed(layer)
        model(**given)
        whole = outputs[turn]
        z = calls[layer.index].out
        shares = torch.einsum(
            "bhtv,dhv->bhtd", z, layer.output_weight.view(-1, layer.n_head, layer.d_value)
        )  # z_h W_O^h
        bias = 0.0 if layer.output_bias is None else layer.output_bias
        torch.testing.assert_close(whole, shares.sum(dim=1) + bias, rtol=1e-5, atol=1e-5)
        outputs.clear()
        gate = torch.ones(layer.n_head)
        gate[2] = 0.0
        with observe(model, gates={layer.index: gate}):
            model(**given)
        torch.testing.assert_close(whole - outputs[turn], shares[:, 2], rtol=1e-5, atol=1e-5)
        handle.remove()


@torch.no_grad()
def test_gating_changes_the_logits_alike_in_eager_and_sdpa(family):
    logits = []
    for implementation in family.implementations:
        model = family.make(implementation)
        given = family.inputs(model)
        with observe(model, gates={1: torch.tensor([1.0, 0.0, 0.5, 1.0])}):
            gated = model(**given)[0]
        assert (gated - model(**given)[0]).abs().max() > 1e-4
        logits.append(gated)
    torch.testing.assert_close(logits[0], logits[-1], rtol=1e-3, atol=1e-4)


@torch.no_grad()
def test_bfloat16_is_seen_as_it_is(family):
    model = family.make("eager").to(torch.bfloat16)
    given = family.inputs(model)
    given = {name: t.to(torch.bfloat16) if t.is_floating_point() else t for name, t in given.items()}
    plain = model(**given)[0]
    calls: list[AttentionCall] = []
    with observe(model, calls.append) as layers:
        assert torch.equal(model(**given)[0], plain)
    assert {call.q.dtype for call in calls} == {torch.bfloat16}
    with observe(model, gates={layer.index: torch.ones(layer.n_head) for layer in layers}):
        gated = model(**given)[0]
    assert gated.dtype == torch.bfloat16
    assert torch.equal(gated, plain)


def test_gates_get_the_gradient_that_differences_show(family):
    model = family.make("eager")
    given = family.inputs(model)
    with observe(model) as layers:
        pass
    gates = {layer.index: torch.ones(layer.n_head, requires_grad=True) for layer in layers}

    def loss(gates: dict[int, torch.Tensor]) -> torch.Tensor:
        with observe(model, gates=gates):
            return model(**given)[0].square().sum()

    found = torch.autograd.grad(loss(gates), list(gates.values()))
    assert all(gradient.abs().sum() > 0 for gradient in found)
    last = layers[-1].index
    head = int(found[last].abs().argmax())
    with torch.no_grad():
        step = 0.01 * torch.eye(4)[head]
        difference = loss({last: 1 + step}) - loss({last: 1 - step})
    assert float(difference) / 0.02 == pytest.approx(float(found[last][head]), rel=0.02)


@torch.no_grad()
def test_a_query_head_reads_the_key_value_head_of_its_group(make_family):
    family = make_family("llama")
    model = family.make("sdpa")
    given = family.inputs(model)
    calls: list[AttentionCall] = []
    with observe(model, calls.append):
        model(**given)
    call = calls[0]
    assert (call.q.shape[1], call.k.shape[1]) == (4, 2)
    for head in range(4):
        pair = slice(head // 2, head // 2 + 1)
        alone = attention(
            call.q[:, head : head + 1], call.k[:, pair], call.v[:, pair], mask=call.mask, scale=call.scale
        )
        torch.testing.assert_close(alone, call.out[:, head : head + 1], rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_gating_a_query_head_leaves_its_group_mates_as_they_are(make_family):
    family = make_family("llama")
    model = family.make("sdpa")
    given = family.inputs(model)
    projection = attention_layers(model)[0].o_proj
    joined: list[torch.Tensor] = []
    handle = projection.register_forward_pre_hook(
        lambda _, args: joined.append(args[0].unflatten(-1, (4, 8)))
    )
    model(**given)
    with observe(model, gates={0: torch.tensor([1.0, 1.0, 0.0, 1.0])}):
        model(**given)
    handle.remove()
    assert not joined[1][:, :, 2].any()
    for head in (0, 1, 3):
        assert torch.equal(joined[0][:, :, head], joined[1][:, :, head])


@torch.no_grad()
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_decoding_with_a_cache_is_explained_step_by_step(make_family, implementation):
    model = make_family("llama").make(implementation)
    ids = torch.arange(3, 12)[None]
    calls: list[AttentionCall] = []
    with observe(model, calls.append):
        model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=3, do_sample=False, pad_token_id=0
        )
    shapes = [(call.q.shape[2], call.k.shape[2]) for call in calls if call.layer.index == 0]
    assert shapes == [(9, 9), (1, 10), (1, 11)]
    for call in calls:
        torch.testing.assert_close(heads_of(call), call.out, rtol=1e-5, atol=1e-5)


def cache_name(model: nn.Module) -> str:
    accepted = inspect.signature(model.forward).parameters
    return "cache" if "cache" in accepted else "past_key_values"


@torch.no_grad()
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_several_tokens_after_a_cache_see_all_that_came_before(make_family, implementation):
    model = make_family("mistral").make(implementation)
    ids = torch.arange(3, 12)[None]
    whole = model(ids).logits
    calls: list[AttentionCall] = []
    with observe(model, calls.append):
        first = model(ids[:, :5], use_cache=True)
        rest = model(ids[:, 5:], **{cache_name(model): first[cache_name(model)]}).logits
    torch.testing.assert_close(rest, whole[:, 5:], rtol=1e-4, atol=1e-4)
    for call in calls:
        torch.testing.assert_close(heads_of(call), call.out, rtol=1e-5, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_the_empty_end_of_a_static_cache_is_not_attended_to(make_family, implementation):
    model = make_family("llama").make(implementation)
    ids = torch.arange(3, 12)[None]
    cache = hf.StaticCache(config=model.config, max_cache_len=16)
    calls: list[AttentionCall] = []
    with observe(model, calls.append):
        logits = model(ids, **{cache_name(model): cache}).logits
    torch.testing.assert_close(logits, model(ids).logits, rtol=1e-4, atol=1e-4)
    for call in calls:
        torch.testing.assert_close(heads_of(call), call.out, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_float_mask_of_the_caller_hides_and_adds(make_family):
    family = make_family("llama")
    for implementation in family.implementations:
        model = family.make(implementation)
        ids = family.inputs(model)["input_ids"]
        table = torch.randn(2, 1, 9, 9, generator=torch.Generator().manual_seed(0))
        table = table.masked_fill(torch.ones(9, 9, dtype=torch.bool).triu(1), torch.finfo(torch.float32).min)
        calls: list[AttentionCall] = []
        with observe(model, calls.append):
            model(ids, attention_mask=table)
        for call in calls:
            assert call.bias is not None
            assert call.bias.abs().max() < 10
            assert repr(call.mask) == "Mask(a query sees its own key and all before it)"
            torch.testing.assert_close(heads_of(call), call.out, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_configuration_with_output_attentions_keeps_giving_them(make_family):
    family = make_family("bert")
    model = family.make("eager")
    model.config.output_attentions = True
    given = family.inputs(model)
    plain = model(**given)
    calls: list[AttentionCall] = []
    with observe(model, calls.append):
        seen = model(**given)
    assert len(seen.attentions) == 2
    for ours, theirs, before in zip(calls, seen.attentions, plain.attentions, strict=True):
        assert torch.equal(theirs, before)
        torch.testing.assert_close(weights_of(ours), theirs, rtol=1e-5, atol=1e-5)


def test_inference_mode_is_seen_too(make_family):
    family = make_family("bert decoder")
    for implementation in family.implementations:
        model = family.make(implementation)
        calls: list[AttentionCall] = []
        with torch.inference_mode(), observe(model, calls.append):
            model(**family.inputs(model, "right"))
        assert len(calls) == 4


def test_a_model_in_training_stays_in_training(make_family):
    family = make_family("bert")
    model = family.make("sdpa").train()
    model.bert.encoder.layer[0].eval()
    modes = {name: module.training for name, module in model.named_modules()}
    with observe(model) as layers:
        assert {name: module.training for name, module in model.named_modules()} == modes
    assert len(layers) == 2
    assert {name: module.training for name, module in model.named_modules()} == modes


@torch.no_grad()
def test_layers_that_share_a_module_are_gated_one_by_one(make_family):
    family = make_family("albert")
    model = family.make("sdpa")
    given = family.inputs(model)
    calls: list[AttentionCall] = []
    with observe(model, calls.append, gates={1: torch.zeros(4)}) as layers:
        assert layers[0].module is layers[1].module
        projection: list[torch.Tensor] = []
        handle = layers[0].o_proj.register_forward_pre_hook(lambda _, args: projection.append(args[0]))
        for _ in range(2):  # the count starts anew with each run
            model(**given)
        handle.remove()
    assert [call.layer.index for call in calls] == [0, 1, 0, 1]
    assert [bool(joined.any()) for joined in projection] == [True, False, True, False]


def test_an_nn_module_around_a_model_names_layers_from_its_own_root(make_family):
    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = make_family("roberta").make("sdpa")
            self.head = nn.Linear(32, 2)

        def forward(self, **given: torch.Tensor) -> torch.Tensor:
            return self.head(self.body(**given)[0][:, 0])

    model = Classifier()
    calls: list[AttentionCall] = []
    with observe(model, calls.append) as layers:
        model(input_ids=torch.arange(3, 9)[None])
    assert [layer.name for layer in layers] == [
        "body.encoder.layer.0.attention.self",
        "body.encoder.layer.1.attention.self",
    ]
    assert all(model.get_submodule(layer.name) is layer.module for layer in layers)
    assert [call.layer for call in calls] == layers
