"""Looking at heads and gating them, whatever the model: what a context does, and that nothing of it stays."""

from __future__ import annotations

import threading

import pytest
import torch
import transformers as hf
from torch import nn

from headwise.attention import Mask, MultiHeadAttention, Rotary, attention
from headwise.heads import AttentionCall, observe
from headwise.model import GPT, PRESETS, GPTConfig


def gpt(**changes: object) -> GPT:
    settings = {"vocab_size": 11, "block_size": 8, "n_layer": 2, "n_head": 4, "n_kv_head": 2, "d_model": 16}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = GPT(GPTConfig(**(settings | changes)))
        for parameter in model.parameters():
            nn.init.normal_(parameter, 1.0 if parameter.ndim == 1 else 0.0, 0.3)
    return model.eval()


def llama(implementation: str = "sdpa") -> nn.Module:
    config = hf.LlamaConfig(
        vocab_size=11,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = hf.LlamaForCausalLM(config)
    model.set_attn_implementation(implementation)
    return model.eval()


@pytest.fixture(params=["ours", "theirs"])
def model(request: pytest.FixtureRequest) -> nn.Module:
    return gpt() if request.param == "ours" else llama()


IDS = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]])


def logits(model: nn.Module) -> torch.Tensor:
    out = model(IDS)
    return out if isinstance(out, torch.Tensor) else out.logits


def test_a_model_without_layers_is_refused():
    bigram = GPT(GPTConfig(vocab_size=11, **PRESETS["bigram"].model_dump() | {"block_size": 8}))
    with pytest.raises(ValueError, match="GPT has no attention"), observe(bigram):
        pass


@pytest.mark.parametrize("preset", sorted(PRESETS.keys() - {"bigram"}))
@torch.no_grad()
def test_every_preset_is_seen_and_explained(preset):
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=11, **PRESETS[preset].model_dump() | {"block_size": 8})).eval()
    plain = model(IDS)
    calls: list[AttentionCall] = []
    with observe(model, calls.append) as layers:
        assert torch.equal(model(IDS), plain)
    with observe(model, gates={layer.index: torch.ones(layer.n_head) for layer in layers}):
        assert torch.equal(model(IDS), plain)
    assert [call.layer for call in calls] == layers
    for call in calls:
        torch.testing.assert_close(
            attention(call.q, call.k, call.v, mask=call.mask, scale=call.scale), call.out
        )


@torch.no_grad()
def test_gating_a_head_of_ours_removes_exactly_its_share():
    model = gpt(bias=True)
    calls: list[AttentionCall] = []
    with observe(model, calls.append) as layers:
        model(IDS)
    for layer in layers:
        outputs: list[torch.Tensor] = []
        handle = layer.o_proj.register_forward_hook(lambda *call, kept=outputs: kept.append(call[2]))
        model(IDS)
        gate = torch.ones(4)
        gate[1] = 0.0
        with observe(model, gates={layer.index: gate}):
            model(IDS)
        handle.remove()
        shares = torch.einsum("bhtv,dhv->bhtd", calls[layer.index].out, layer.output_weight.view(16, 4, 4))
        torch.testing.assert_close(outputs[0], shares.sum(1) + layer.output_bias, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(outputs[0] - outputs[1], shares[:, 1], rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_fill_takes_the_place_of_what_was_gated(model):
    calls: list[AttentionCall] = []
    with observe(model, calls.append) as layers:
        logits(model)
    joined: list[torch.Tensor] = []
    handle = layers[1].o_proj.register_forward_pre_hook(lambda _, args: joined.append(args[0]))
    gate = torch.tensor([1.0, 0.25, 0.0, 1.0])
    fill = torch.arange(4.0).view(4, 1, 1).expand(4, 5, layers[1].d_value)
    with observe(model, gates={1: gate}, fills={1: fill}):
        logits(model)
    handle.remove()
    g = gate.view(4, 1, 1)
    wanted = calls[1].out * g + (1 - g) * fill  # (B, H, T, V)
    torch.testing.assert_close(joined[0], wanted.transpose(1, 2).flatten(2), rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_gates_may_differ_between_texts(model):
    with observe(model, gates={0: torch.tensor([[1.0, 1, 1, 1], [0, 1, 1, 1]])}):
        mixed = logits(model)
    with observe(model, gates={0: torch.tensor([0.0, 1, 1, 1])}):
        gated = logits(model)
    assert torch.equal(mixed[0], logits(model)[0])
    torch.testing.assert_close(mixed[1], gated[1])


@torch.no_grad()
def test_one_tensor_gates_all_layers(model):
    gates = torch.tensor([[1.0, 0.0, 1.0, 1.0], [0.5, 1.0, 1.0, 0.0]])
    with observe(model, gates=gates):
        together = logits(model)
    with observe(model, gates={0: gates[0], 1: gates[1]}):
        assert torch.equal(logits(model), together)
    assert not torch.equal(logits(model), together)


@torch.no_grad()
def test_everything_is_as_before_after_an_exception(model):
    plain = logits(model)
    before = hf.modeling_utils.AttentionInterface.get_interface

    def fail(call: AttentionCall) -> None:
        raise RuntimeError("observer")

    with pytest.raises(RuntimeError, match="observer"), observe(model, fail, gates=torch.zeros(2, 4)):
        logits(model)
    assert torch.equal(logits(model), plain)
    assert hf.modeling_utils.AttentionInterface.get_interface is before
    for module in model.modules():
        assert not module._forward_pre_hooks
        if isinstance(module, MultiHeadAttention):
            assert module.attend is attention


def test_a_mistake_in_the_arguments_leaves_nothing_behind(model):
    with pytest.raises(ValueError, match="layer 9"), observe(model, gates={9: torch.ones(4)}):
        pass
    assert not any(module._forward_pre_hooks for module in model.modules())


@torch.no_grad()
def test_nested_contexts_all_see_the_heads_before_any_gate_and_all_gates_act(model):
    outer: list[AttentionCall] = []
    inner: list[AttentionCall] = []
    first, second = torch.tensor([1.0, 0.0, 1.0, 1.0]), torch.tensor([1.0, 1.0, 0.5, 1.0])
    with observe(model, outer.append, gates={0: first}):
        with observe(model, inner.append, gates={0: second}):
            nested = logits(model)
        with observe(model, gates={0: second}):
            pass
        only_outer = logits(model)
    with observe(model, gates={0: first * second}):
        torch.testing.assert_close(logits(model), nested)
    with observe(model, gates={0: first}):
        assert torch.equal(logits(model), only_outer)
    assert torch.equal(outer[0].out, inner[0].out)
    assert outer[0].out[:, 1].any()


@torch.no_grad()
def test_contexts_may_end_in_any_order(model):
    plain = logits(model)
    first, second = observe(model, gates={0: torch.zeros(4)}), observe(model, gates={1: torch.zeros(4)})
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    with observe(model, gates={1: torch.zeros(4)}):
        pass
    left = logits(model)
    second.__exit__(None, None, None)
    with observe(model, gates={1: torch.zeros(4)}):
        assert torch.equal(logits(model), left)
    assert torch.equal(logits(model), plain)


@torch.no_grad()
def test_two_models_looked_at_together_are_not_mixed_up():
    models = [llama("sdpa"), llama("eager"), gpt()]
    calls: list[list[AttentionCall]] = [[], [], []]
    with (
        observe(models[0], calls[0].append, gates={0: torch.zeros(4)}),
        observe(models[1], calls[1].append),
        observe(models[2], calls[2].append),
    ):
        outs = [logits(model) for model in models]
    assert [len(seen) for seen in calls] == [2, 2, 2]
    for model, seen in zip(models, calls, strict=True):
        assert all(call.layer.module in set(model.modules()) for call in seen)
    assert not torch.equal(outs[0], logits(models[0]))
    assert torch.equal(outs[1], logits(models[1]))
    assert models[0].config._attn_implementation == "sdpa"
    assert models[1].config._attn_implementation == "eager"


@torch.no_grad()
def test_models_in_two_threads_are_not_mixed_up():
    wrong: list[str] = []

    def look(implementation: str) -> None:
        with torch.no_grad():
            model = llama(implementation)
            plain = logits(model)
            for _ in range(10):
                calls: list[AttentionCall] = []
                with observe(model, calls.append):
                    same = torch.equal(logits(model), plain)
                strangers = {call.layer.module for call in calls} - set(model.modules())
                if not same or len(calls) != 2 or strangers:
                    wrong.append(implementation)

    before = hf.modeling_utils.AttentionInterface.get_interface
    threads = [threading.Thread(target=look, args=(name,)) for name in ("sdpa", "eager")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert hf.modeling_utils.AttentionInterface.get_interface is before


def test_gates_get_gradients_per_text(model):
    gate = torch.ones(2, 4, requires_grad=True)
    with observe(model, gates={1: gate}):
        logits(model)[0].square().sum().backward()  # a loss of the first text only
    assert gate.grad[0].abs().min() > 0
    assert not gate.grad[1].any()


@pytest.mark.parametrize(
    ("gates", "fills", "message"),
    [
        (torch.ones(2, 3), None, r"\(n_layer, n_head\) = \(2, 4\), got \(2, 3\)"),
        ({2: torch.ones(4)}, None, r"gates names layer 2, but the layers are 0 … 1"),
        ({-1: torch.ones(4)}, None, "names layer -1"),
        ({True: torch.ones(4)}, None, "names layer True"),
        ({1: torch.ones(3)}, None, r"layer 1 \(.*\) must be one number per head.*H = 4, got shape \(3,\)"),
        ({1: torch.ones(1, 2, 4)}, None, r"got shape \(1, 2, 4\)"),
        ({0: torch.ones(4, dtype=torch.int64)}, None, "floating-point numbers, got torch.int64"),
        ({0: torch.ones(4, dtype=torch.bool)}, None, "floating-point numbers, got torch.bool"),
        ({0: torch.ones(4, device="meta")}, None, "are on meta but the layer is on cpu"),
        ({0: torch.ones(4)}, {1: torch.ones(3, 1, 1)}, r"fill of layer 1 .* got shape \(3, 1, 1\)"),
        ({0: torch.ones(4)}, {0: torch.ones(4)}, None),  # broadcasts to V = 4
        ({0: torch.ones(4)}, {0: torch.ones(3, 1, 1)}, r"H = 4 and V = 4, got shape \(3, 1, 1\)"),
        ({0: torch.ones(4)}, {0: torch.ones(1, 1, 5)}, r"got shape \(1, 1, 5\)"),
        ({0: torch.ones(4)}, {5: torch.ones(1)}, "fills names layer 5"),
        ({0: torch.ones(4)}, {0: torch.ones(1, device="meta")}, "fills of layer 0 .* are on meta"),
    ],
)
def test_gates_and_fills_that_do_not_fit_are_refused_before_the_model_runs(model, gates, fills, message):
    if message is None:
        with observe(model, gates=gates, fills=fills):
            logits(model)
        return
    with pytest.raises(ValueError, match=message), observe(model, gates=gates, fills=fills):
        pass


@pytest.mark.parametrize("gates", [[1.0], {0: [1.0, 1, 1, 1]}])
def test_what_is_no_tensor_is_a_type_error(model, gates):
    with pytest.raises(TypeError, match="tensor"), observe(model, gates=gates):
        pass


def test_gates_for_another_batch_are_refused_when_the_model_runs(model):
    with (
        observe(model, gates={1: torch.ones(3, 4)}),
        pytest.raises(ValueError, match=r"for 3 texts.*holds 2"),
    ):
        logits(model)
    wrong = torch.ones(4, 7, 1)
    with (
        observe(model, gates={1: torch.zeros(4)}, fills={1: wrong}),
        pytest.raises(ValueError, match=r"\(4, 7, 1\), which does not broadcast to \(B, H, T, V\)"),
    ):
        logits(model)


def test_layers_with_different_numbers_of_heads_are_gated_by_a_mapping():
    stack = nn.ModuleList([MultiHeadAttention(8, 2), MultiHeadAttention(8, 4)])
    with pytest.raises(ValueError, match=r"layers have \[2, 4\] heads; give a mapping"):  # noqa: SIM117
        with observe(stack, gates=torch.ones(2, 2)):
            pass
    with observe(stack, gates={0: torch.ones(2), 1: torch.ones(4)}):
        stack[1](stack[0](torch.ones(1, 3, 8)))


@torch.no_grad()
@pytest.mark.parametrize("return_weights", [False, True])
def test_a_module_with_cap_and_sink_is_explained(return_weights):
    torch.manual_seed(0)
    module = MultiHeadAttention(16, 4, n_kv_head=2, d_value=3, softcap=2.0, sink=True, qk_norm=True)
    module.sink.normal_()
    x, bias = torch.randn(2, 5, 16), torch.randn(4, 5, 5)
    plain = module(x, mask=Mask.window(3), bias=bias, return_weights=return_weights)
    calls: list[AttentionCall] = []
    with observe(module, calls.append, gates={0: torch.ones(4)}):
        seen = module(x, mask=Mask.window(3), bias=bias, return_weights=return_weights)
    for ours, theirs in zip(*((t if return_weights else (t,)) for t in (seen, plain)), strict=True):
        assert torch.equal(ours, theirs)
    (call,) = calls
    assert call.softcap == 2.0
    assert call.sink is module.sink
    assert call.bias is bias
    assert (call.q.shape[3], call.v.shape[3]) == (4, 3)
    torch.testing.assert_close(
        attention(
            call.q,
            call.k,
            call.v,
            mask=call.mask,
            bias=call.bias,
            scale=call.scale,
            softcap=call.softcap,
            sink=call.sink,
        ),
        call.out,
    )


@torch.no_grad()
def test_a_gate_that_the_caller_gives_acts_too_and_is_not_in_what_is_shown():
    module = MultiHeadAttention(8, 2)
    x, own = torch.randn(2, 3, 8), torch.tensor([[0.5, 0.0], [1.0, 2.0]])
    plain = module(x, gate=own)
    calls: list[AttentionCall] = []
    with observe(module, calls.append):
        assert torch.equal(module(x, gate=own), plain)
    torch.testing.assert_close(attention(calls[0].q, calls[0].k, calls[0].v), calls[0].out)
    with observe(module, gates={0: torch.tensor([0.0, 1.0])}):
        gated = module(x, gate=own)
    torch.testing.assert_close(gated, module(x, gate=own * torch.tensor([0.0, 1.0])))


@torch.no_grad()
def test_whether_a_call_crosses_is_told_by_the_call():
    module = MultiHeadAttention(8, 2)
    x, context = torch.randn(1, 3, 8), torch.randn(1, 3, 8)
    calls: list[AttentionCall] = []
    with observe(module, calls.append) as (layer,):
        module(x)
        module(x, context)
        module(x, context=context)
        module(x, cache=module.cross_cache(context))
        module(x, mask=Mask.causal())
    assert [call.cross for call in calls] == [False, True, True, True, False]
    assert layer.cross is False
    with observe(MultiHeadAttention(8, 2, d_context=6)) as (layer,):
        assert layer.cross is True


@torch.no_grad()
def test_decoding_with_our_cache_is_explained_step_by_step():
    model = gpt()
    cache = model.new_cache(2)
    calls: list[AttentionCall] = []
    with observe(model, calls.append):
        model(IDS[:, :3], cache=cache)
        model(IDS[:, 3:], cache=cache)
    assert [(call.q.shape[2], call.k.shape[2]) for call in calls] == [(3, 3), (3, 3), (2, 5), (2, 5)]
    for call in calls:
        torch.testing.assert_close(
            attention(call.q, call.k, call.v, mask=call.mask, scale=call.scale), call.out
        )


@torch.no_grad()
def test_queries_are_shown_as_they_are_after_turning():
    model = gpt()
    calls: list[AttentionCall] = []
    with observe(model, calls.append):
        model(IDS)
    x = model.blocks[0].attention_norm(model.token_embedding(IDS))
    module = model.blocks[0].attention
    assert isinstance(module.rotary, Rotary)
    turned = module.rotary(module.queries(x), torch.arange(5))
    torch.testing.assert_close(calls[0].q, turned)


@torch.no_grad()
def test_bfloat16_stays_bfloat16(model):
    model = model.to(torch.bfloat16)
    plain = logits(model)
    with observe(model, gates=torch.ones(2, 4)):
        gated = logits(model)
    assert gated.dtype == torch.bfloat16
    assert torch.equal(gated, plain)
