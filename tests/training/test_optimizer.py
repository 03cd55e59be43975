"""Which parameter is updated how, at which rate, and a state that can be put away and taken up."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

from headwise.model import GPT, PRESETS, GPTConfig
from headwise.training import TrainingConfig
from headwise.training.muon import Muon, orthogonalise
from headwise.training.optimizer import Optimizer, hidden_matrices, rate_factor


def make_gpt(preset: str = "gpt", **changes: Any) -> GPT:
    torch.manual_seed(0)
    settings = PRESETS[preset].model_dump() | {"d_model": 16, "block_size": 8, "vocab_size": 11}
    if settings["n_layer"] > 1:
        settings["n_layer"] = 2
    return GPT(GPTConfig(**settings | changes))


def learn(model: GPT, optimizer: Optimizer, steps: range) -> None:
    for step in steps:
        ids = torch.randint(0, 11, (3, 9), generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()
        optimizer.step(step)


def test_hidden_matrices_are_the_linear_weights_inside_the_layers() -> None:
    names = set(hidden_matrices(make_gpt("gpt2", n_layer=1)))
    attention = {f"blocks.0.attention.{part}_proj.weight" for part in "qkvo"}
    assert names == attention | {"blocks.0.mlp.up_proj.weight", "blocks.0.mlp.down_proj.weight"}
    assert hidden_matrices(make_gpt("bigram")) == {}


@pytest.mark.parametrize("name", ["muon", "adamw"])
@pytest.mark.parametrize("preset", ["gpt2", "block"])
def test_weight_decay_touches_matrices_only(name: str, preset: str) -> None:
    model = make_gpt(preset)
    config = TrainingConfig(optimizer=name, weight_decay=0.5, warmup_steps=0, schedule="constant")
    optimizer = Optimizer(model, config)
    before = {key: p.detach().clone() for key, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step(0)
    matrices = hidden_matrices(model)
    for key, parameter in model.named_parameters():
        rate = config.matrix_rate if name == "muon" and key in matrices else config.peak_rate
        factor = 1 - rate * 0.5 if parameter.ndim >= 2 else 1.0
        torch.testing.assert_close(parameter.detach(), before[key] * factor, rtol=1e-6, atol=0)


def test_adamw_is_that_of_torch_with_the_usual_groups() -> None:
    # float64: a key's bias has no gradient but rounding, which AdamW would blow up
    ours, plain = make_gpt("gpt2").double(), make_gpt("gpt2").double()
    config = TrainingConfig(optimizer="adamw", warmup_steps=0, schedule="constant", learning_rate=1e-2)
    optimizer = Optimizer(ours, config)
    reference = torch.optim.AdamW(
        [
            {"params": [p for p in plain.parameters() if p.ndim >= 2], "weight_decay": 0.1},
            {"params": [p for p in plain.parameters() if p.ndim < 2], "weight_decay": 0.0},
        ],
        lr=1e-2,
        betas=(0.9, 0.99),
        foreach=False,
    )
    learn(ours, optimizer, range(4))
    for step in range(4):
        ids = torch.randint(0, 11, (3, 9), generator=torch.Generator().manual_seed(step))
        reference.zero_grad()
        F.cross_entropy(plain(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()
        reference.step()
    for a, b in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_muon_is_nesterov_momentum_made_orthogonal() -> None:
    torch.manual_seed(0)
    matrices = {"wide": torch.randn(4, 6), "tall": torch.randn(8, 2), "wide too": torch.randn(4, 6)}
    plain = {name: matrix.clone() for name, matrix in matrices.items()}
    momentum = {name: torch.zeros_like(matrix) for name, matrix in matrices.items()}
    muon = Muon(matrices, momentum=0.9, weight_decay=0.1)
    for _ in range(3):
        gradients = {name: torch.randn_like(matrix) for name, matrix in matrices.items()}
        for name, matrix in matrices.items():
            matrix.grad = gradients[name]
        muon.step(0.05)
        for name, matrix in plain.items():
            g = gradients[name]
            momentum[name] = 0.9 * momentum[name] + 0.1 * g
            direction = orthogonalise((0.1 * g + 0.9 * momentum[name])[None])[0]
            scale = {"tall": 2.0}.get(name, 1.0)  # sqrt(8 / 2)
            plain[name] = matrix * (1 - 0.05 * 0.1) - 0.05 * scale * direction
    for name, matrix in matrices.items():
        torch.testing.assert_close(matrix, plain[name], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(muon.momentum()[name], momentum[name], rtol=1e-5, atol=1e-6)


@given(rows=st.integers(1, 12), columns=st.integers(1, 12), seed=st.integers(0, 1000))
def test_orthogonalising_keeps_directions_and_brings_singular_values_near_one(
    rows: int, columns: int, seed: int
) -> None:
    matrix = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    values = u.mT @ orthogonalise(matrix[None])[0] @ vh.mT  # diagonal in the same directions
    off = values - torch.diag(values.diagonal())
    assert off.abs().max() < 2e-3
    large = s > 0.01 * s.norm()  # five steps do not lift the tiniest all the way
    assert bool(((values.diagonal() > 0.65) & (values.diagonal() < 1.25))[large].all())


def test_orthogonalising_treats_a_stack_one_by_one_and_leaves_zero_at_zero() -> None:
    torch.manual_seed(0)
    stack = torch.randn(3, 5, 4)
    stack[1] = 0
    together = orthogonalise(stack)
    for one, matrix in zip(together, stack, strict=True):
        torch.testing.assert_close(one, orthogonalise(matrix[None])[0], rtol=1e-5, atol=1e-6)
    assert together[1].abs().max() == 0
    assert together.dtype == torch.float32


@pytest.mark.parametrize("name", ["muon", "adamw"])
@pytest.mark.parametrize("preset", ["gpt", "gpt2", "bigram"])
@pytest.mark.parametrize("before", [0, 3])
def test_a_state_put_away_and_taken_up_changes_nothing(
    tmp_path: Path, name: str, preset: str, before: int
) -> None:
    config = TrainingConfig(optimizer=name, max_steps=10)
    straight = make_gpt(preset)
    learn(straight, Optimizer(straight, config), range(5))

    first = make_gpt(preset)
    optimizer = Optimizer(first, config)
    learn(first, optimizer, range(before))
    save_file({k: v.contiguous() for k, v in optimizer.state().items()}, tmp_path / "state.safetensors")
    second = make_gpt(preset)
    second.load_state_dict(first.state_dict())
    taken_up = Optimizer(second, config)
    taken_up.load_state(load_file(tmp_path / "state.safetensors"))
    learn(second, taken_up, range(before, 5))
    for a, b in zip(straight.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_foreign_state_is_refused() -> None:
    model = make_gpt()
    optimizer = Optimizer(model, TrainingConfig())
    learn(model, optimizer, range(1))
    state = {name: value.clone() for name, value in optimizer.state().items()}
    missing = {k: v for k, v in state.items() if k != "exp_avg.token_embedding.weight"}
    with pytest.raises(ValueError, match=r"exp_avg\.token_embedding\.weight is missing"):
        optimizer.load_state(missing)
    with pytest.raises(ValueError, match="exp_avg.nobody is missing, unknown"):
        optimizer.load_state(state | {"exp_avg.nobody": torch.zeros(1)})
    wrong = "momentum.blocks.0.attention.k_proj.weight"
    with pytest.raises(ValueError, match="k_proj"):
        optimizer.load_state(state | {wrong: torch.zeros(2, 2)})
    with pytest.raises(ValueError, match="does not belong to this model and optimizer"):
        Optimizer(make_gpt(), TrainingConfig(optimizer="adamw")).load_state(state)


def test_tied_embeddings_are_updated_once() -> None:
    model = make_gpt("gpt", n_layer=0, position="none", mlp="swiglu")
    before = model.head.weight.detach().clone()
    optimizer = Optimizer(model, TrainingConfig(weight_decay=1.0, learning_rate=0.1, warmup_steps=0))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step(0)
    torch.testing.assert_close(model.head.weight.detach(), before * 0.9)


def test_the_rate_rises_peaks_and_ends_where_it_should() -> None:
    cosine = TrainingConfig(max_steps=110, warmup_steps=10, schedule="cosine", final_learning_rate_ratio=0.2)
    assert [rate_factor(step, cosine) for step in (0, 4)] == [1 / 11, 5 / 11]
    assert rate_factor(10, cosine) == 1.0
    assert rate_factor(60, cosine) == pytest.approx(0.6)  # half way down
    assert rate_factor(35, cosine) == pytest.approx(0.2 + 0.8 * (1 + math.cos(math.pi / 4)) / 2)
    assert rate_factor(110, cosine) == pytest.approx(0.2)
    linear = TrainingConfig(max_steps=110, warmup_steps=10, schedule="linear", final_learning_rate_ratio=0.0)
    assert rate_factor(35, linear) == pytest.approx(0.75)
    constant = TrainingConfig(max_steps=110, warmup_steps=10, schedule="constant")
    assert [rate_factor(step, constant) for step in (10, 109)] == [1.0, 1.0]


@pytest.mark.parametrize("name", ["muon", "adamw"])
def test_the_step_returns_and_uses_the_scheduled_rate(name: str) -> None:
    config = TrainingConfig(optimizer=name, max_steps=10, warmup_steps=4, weight_decay=0.0)
    models = [make_gpt(), make_gpt()]
    moved = []
    for model, step in zip(models, (0, 3), strict=True):
        start = [p.detach().clone() for p in model.parameters()]
        optimizer = Optimizer(model, config)
        ids = torch.arange(8)[None]
        model(ids).square().sum().backward()
        assert optimizer.step(step) == pytest.approx(config.peak_rate * (step + 1) / 5)
        moved.append([p.detach() - s for p, s in zip(model.parameters(), start, strict=True)])
    for once, four in zip(*moved, strict=True):
        torch.testing.assert_close(four, 4 * once, rtol=1e-3, atol=1e-6)
