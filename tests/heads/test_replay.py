"""A replay equals a gated forward pass, computes only what follows, and leaves the model as it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headwise.heads import observe
from headwise.heads.replay import Recording, Replayer, block_of
from headwise.hub import TokenBatch
from headwise.hub.subject import OwnSubject

Make = Callable[..., OwnSubject]

VARIANTS: list[dict[str, Any]] = [
    {},
    {"preset": "gpt2"},
    {"n_kv_head": 2},
    {"n_kv_head": 1, "d_head": 6},
    {"preset": "block", "n_layer": 1},
    {"preset": "multi-head", "n_layer": 2},
    {"output_projection": "identity"},
]


def batch_of(subject: OwnSubject, texts: list[str]) -> TokenBatch:
    return subject.batch([subject.encode(text) for text in texts])


def gated(
    subject: OwnSubject,
    batch: TokenBatch,
    silent: list[tuple[int, int]],
    fills: dict[int, Tensor] | None = None,
) -> Tensor:
    gates = {layer.index: torch.ones(layer.n_head) for layer in subject.layers}
    for layer, head in silent:
        gates[layer][head] = 0.0
    with torch.no_grad(), observe(subject.model, gates=gates, fills=fills):
        return subject.run(batch)


def difference(
    recording: Recording, subject: OwnSubject, silent: list[tuple[int, int]] | None = None
) -> float:
    """Return the largest difference to gated passes over all heads, alone and in one go."""
    worst = 0.0
    for layer in subject.layers:
        heads = list(range(layer.n_head))
        got = list(recording.silence(layer, heads))
        assert [head for head, _ in got] == heads
        for head, output in got:
            expected = gated(
                subject, recording.batch, [*(silent or []), (layer.index, head)], dict(recording.fills)
            )
            worst = max(worst, float((output - expected)[recording.batch.real].abs().max()))
    return worst


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_replay_equals_a_gated_pass(make_own: Make, texts: list[str], changes: dict[str, Any]) -> None:
    subject = make_own(**changes)
    recording = Replayer(subject).record(batch_of(subject, texts))
    assert torch.equal(recording.output, gated(subject, recording.batch, []))
    assert difference(recording, subject) < 1e-5
    # and silencing changes something, so that equality says something
    _, without = next(recording.silence(subject.layers[-1], [1]))
    assert float((without - recording.output).abs().max()) > 1e-2


@pytest.mark.parametrize("changes", [{}, {"preset": "gpt2"}], ids=str)
def test_a_fill_takes_the_place_of_the_head(
    make_own: Make, texts: list[str], changes: dict[str, Any]
) -> None:
    subject = make_own(**changes)
    batch = batch_of(subject, texts)
    torch.manual_seed(1)
    pooled = {layer.index: torch.randn(1, 4, 1, 8) for layer in subject.layers}
    each = {
        layer.index: torch.randn(*batch.ids.shape[:1], 4, batch.ids.shape[1], 8) for layer in subject.layers
    }
    for fills in (pooled, each):
        assert difference(Replayer(subject).record(batch, fills=fills), subject) < 1e-5


def test_heads_that_are_silent_throughout_stay_silent(make_own: Make, texts: list[str]) -> None:
    subject = make_own()
    batch = batch_of(subject, texts)
    torch.manual_seed(1)
    fills = {
        layer.index: torch.randn(batch.ids.shape[0], 4, batch.ids.shape[1], 8) for layer in subject.layers
    }
    silent = [(0, 1), (1, 0), (1, 3), (2, 2)]
    recording = Replayer(subject).record(batch, silenced={0: [1], 1: [0, 3], 2: [2]}, fills=fills)
    assert torch.allclose(recording.output, gated(subject, batch, silent, fills), atol=1e-6)
    assert difference_of_others(recording, subject, silent) < 1e-5


def difference_of_others(recording: Recording, subject: OwnSubject, silent: list[tuple[int, int]]) -> float:
    worst = 0.0
    for layer in subject.layers:
        heads = [head for head in range(layer.n_head) if (layer.index, head) not in silent]
        for head, output in recording.silence(layer, heads):
            expected = gated(subject, recording.batch, [*silent, (layer.index, head)], dict(recording.fills))
            worst = max(worst, float((output - expected)[recording.batch.real].abs().max()))
    return worst


def test_little_memory_gives_the_same(make_own: Make, texts: list[str]) -> None:
    subject = make_own()
    batch = batch_of(subject, texts)
    wide, narrow = Replayer(subject).record(batch), Replayer(subject, memory=1).record(batch)
    for layer in subject.layers:
        for (_, a), (_, b) in zip(
            wide.silence(layer, range(4)), narrow.silence(layer, range(4)), strict=True
        ):
            assert torch.allclose(a, b, atol=1e-6)


def test_what_stands_before_is_not_run_again(make_own: Make, texts: list[str]) -> None:
    subject = make_own()
    recording = Replayer(subject).record(batch_of(subject, texts))
    ran: list[str] = []
    for name, module in subject.model.named_modules():
        if isinstance(module, nn.Linear) and module is not subject.gpt.head:
            module.register_forward_pre_hook(lambda *_, name=name: ran.append(name))
    list(recording.silence(subject.layers[1], range(4)))
    mlp = ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
    attention = [f"attention.{p}_proj" for p in "qkvo"]
    assert ran == [f"blocks.1.{part}" for part in mlp] + [f"blocks.2.{part}" for part in attention + mlp]


def test_the_model_is_as_before_also_after_an_exception(make_own: Make, texts: list[str]) -> None:
    subject = make_own()
    batch = batch_of(subject, texts)
    before = gated(subject, batch, [])
    recording = Replayer(subject).record(batch)

    def fail(*_: object) -> None:
        raise RuntimeError("broken")

    handle = subject.gpt.blocks[2].register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="broken"):
        list(recording.silence(subject.layers[1], [0]))
    with pytest.raises(RuntimeError, match="broken"):
        Replayer(subject).record(batch, silenced={0: [0]})
    handle.remove()
    for module in subject.model.modules():
        assert "forward" not in vars(module)
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    assert torch.equal(gated(subject, batch, []), before)


def test_a_forward_that_was_replaced_before_is_put_back(make_own: Make, texts: list[str]) -> None:
    subject = make_own()
    block = subject.gpt.blocks[0]
    mine = block.forward
    block.forward = mine  # type: ignore[method-assign]
    recording = Replayer(subject).record(batch_of(subject, texts))
    list(recording.silence(subject.layers[1], [0]))
    assert vars(block)["forward"] == mine


def test_a_model_that_changes_the_projection_afterwards_runs_its_layer_in_full(
    make_own: Make, texts: list[str]
) -> None:
    """The attention then gives not just what the projection gave, so no share can be taken off."""
    subject = make_own()
    for layer in subject.layers:
        layer.module.mix = lambda joined, mix=layer.module.mix: torch.tanh(mix(joined))
    recording = Replayer(subject).record(batch_of(subject, texts))
    assert recording._shortcuts == [None, None, None]
    assert difference(recording, subject) < 1e-5


@pytest.mark.parametrize("where", ["attention", "attention.o_proj", "attention_norm", "mlp", ""])
def test_hooks_that_change_an_output_are_obeyed_once(make_own: Make, texts: list[str], where: str) -> None:
    subject = make_own()
    for block in subject.gpt.blocks:
        block.get_submodule(where).register_forward_hook(lambda *given: _scaled(given[2]))
    recording = Replayer(subject).record(batch_of(subject, texts))
    assert difference(recording, subject) < 1e-5


def _scaled(output: Any) -> Any:
    return 1.5 * output if isinstance(output, Tensor) else (1.5 * output[0], *output[1:])


def test_a_layer_that_runs_twice_is_run_in_full(make_own: Make, texts: list[str]) -> None:
    subject = make_own()
    blocks = subject.gpt.blocks
    subject.gpt.blocks = nn.ModuleList([blocks[0], blocks[1], blocks[0]])
    subject.__dict__.pop("layers", None)
    assert len(subject.layers) == 2
    recording = Replayer(subject).record(batch_of(subject, texts))
    assert difference(recording, subject) < 1e-5


def test_the_block_is_the_child_of_the_outermost_list(make_own: Make) -> None:
    subject = make_own()
    assert [block_of(subject.model, layer) for layer in subject.layers] == list(subject.gpt.blocks)
    alone = subject.layers[0]
    assert block_of(alone.module, replace(alone, index=0, name="")) is alone.module
