"""Uptraining in memory: what is made small, what is learned, what is refused."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headwise.compress import group, uptrain
from headwise.compress.uptraining import RATE_SHARE, Distilling, divergence, uptraining_recipe
from headwise.hub.surgery import next_token_logits
from headwise.model import GPT, GPTConfig
from headwise.text import Batches, TokenFile, Tokenizer, write_tokens
from headwise.training import NonFiniteError
from headwise.training.learner import Learner, accumulate
from headwise.training.optimizer import rate_factor

Pairs = list[tuple[Tensor, Tensor]]


@pytest.fixture
def pairs() -> Pairs:
    """Texts that count upwards, which a model can learn."""
    torch.manual_seed(3)
    starts = torch.randint(31, (8, 4, 1))
    ids = (starts + torch.arange(17)) % 31  # (8, B, T + 1)
    return [(rows[:, :-1], rows[:, 1:]) for rows in ids]


def gradients(model: nn.Module, loss: Any, pairs: Pairs) -> tuple[float, list[Tensor]]:
    model.zero_grad()
    found = accumulate(lambda ids: next_token_logits(model, ids), pairs, loss).item()
    return found, [p.grad.clone() for p in model.parameters() if p.grad is not None]


def test_kl_is_what_its_formula_says() -> None:
    torch.manual_seed(0)
    parent, child = torch.randn(2, 2, 3, 5)
    y = torch.tensor([[0, 1, -100], [2, -100, 4]])
    p, q = parent.double().softmax(-1), child.double().softmax(-1)
    every = (p * (p / q).log()).sum(-1)
    assert divergence(parent, child, y).item() == pytest.approx(every[y != -100].sum().item(), rel=1e-5)
    assert divergence(child, parent, y).item() != pytest.approx(every[y != -100].sum().item(), rel=1e-2)


def test_a_child_that_is_its_parent_has_no_divergence_and_no_gradient_of_it(
    make_gpt: Callable[..., GPT], pairs: Pairs
) -> None:
    child = make_gpt()
    parent = copy.deepcopy(child)
    for x, y in pairs[:2]:
        wanted = next_token_logits(parent, x).detach()
        found = divergence(wanted, next_token_logits(child, x), y)
        assert found.item() == pytest.approx(0.0, abs=1e-4)
        child.zero_grad()
        found.backward()
        assert max(float(p.grad.abs().max()) for p in child.parameters()) < 1e-4


def test_the_loss_is_cross_entropy_and_kl_and_the_parent_gets_no_gradient(
    make_gpt: Callable[..., GPT], pairs: Pairs
) -> None:
    child, parent = make_gpt(seed=1), make_gpt(seed=2)
    x, y = pairs[0]
    loss, _ = gradients(child, Distilling(parent, 0.5), [(x, y)])
    p, q = (F.log_softmax(m(x).double(), -1) for m in (parent, child))
    cross = F.nll_loss(q.flatten(0, 1), y.flatten())
    kl = (p.exp() * (p - q)).sum(-1).mean()
    assert loss == pytest.approx((cross + 0.5 * kl).item(), rel=1e-5)
    assert all(parameter.grad is None for parameter in parent.parameters())


def test_the_parent_runs_in_eval_mode_and_keeps_its_own(make_gpt: Callable[..., GPT], pairs: Pairs) -> None:
    parent = make_gpt(dropout=0.5).train()
    x, y = pairs[0]
    losses = {Distilling(parent, 1.0)(x, torch.zeros(4, 16, 31), y).item() for _ in range(3)}
    assert len(losses) == 1
    assert parent.training


def test_without_kl_a_step_is_a_plain_training_step(make_gpt: Callable[..., GPT], pairs: Pairs) -> None:
    child, parent = make_gpt(seed=1), make_gpt(seed=2)
    size = pairs[0][0].numel()
    found = uptrain(child, parent, pairs, tokens=5 * size, kl=0, learning_rate=1e-3)
    plain = copy.deepcopy(child)
    learner = Learner(plain, uptraining_recipe(5 * size, size, learning_rate=1e-3, batch_size=4))
    for step in range(5):
        assert learner.step(step, [pairs[step]]).loss == found.losses[step]
    for name, parameter in plain.named_parameters():
        assert torch.equal(parameter, found.model.get_parameter(name)), name


def test_it_learns_back_what_the_mean_of_heads_lost(make_gpt: Callable[..., GPT], pairs: Pairs) -> None:
    size = pairs[0][0].numel()
    parent = uptrain(make_gpt(), None, pairs, tokens=60 * size, learning_rate=5e-3).model
    child = group(parent, 1, "mean", []).model
    before = {name: value.clone() for name, value in child.state_dict().items()}
    x, y = pairs[0]

    def loss(model: nn.Module, _tokens: int = 0) -> float:
        return F.cross_entropy(next_token_logits(model, x).flatten(0, 1), y.flatten()).item()

    made = uptrain(child, parent, pairs, tokens=40 * size, at=[0, 10 * size, 40 * size], on_mark=loss)
    (_, start), (tenth, middle), (end, last) = made.marks
    assert (tenth, end) == (10 * size, 40 * size)
    assert start == loss(child)
    assert last == loss(made.model)
    assert last < middle < start
    assert last < (start + loss(parent)) / 2
    assert all(torch.equal(value, before[name]) for name, value in child.state_dict().items())


def test_a_model_of_transformers_learns_as_well(make_hf: Callable[..., nn.Module], pairs: Pairs) -> None:
    parent = make_hf("Llama")
    child = group(parent, 2, "mean", []).model
    size = pairs[0][0].numel()
    made = uptrain(child, parent, pairs, tokens=20 * size, optimizer="adamw", learning_rate=3e-3)
    assert made.losses[-1] < made.losses[0]
    assert type(made.model) is type(parent)


def test_muon_updates_the_matrices_inside_the_layers_of_a_model_of_transformers(
    make_hf: Callable[..., nn.Module],
) -> None:
    learner = Learner(make_hf("Llama"), uptraining_recipe(100, 10))
    names = {key.removeprefix("momentum.") for key in learner.optimizer.state()}
    assert "model.layers.0.self_attn.q_proj.weight" in names
    assert "model.layers.1.mlp.down_proj.weight" in names
    assert not any("embed" in name or "norm" in name or "lm_head" in name for name in names)


def test_amounts_and_rates_of_the_recipe() -> None:
    recipe = uptraining_recipe(1001, 100)
    assert recipe.max_steps == 11
    assert recipe.peak_rate == pytest.approx(RATE_SHARE * 5e-3)
    assert recipe.matrix_rate == pytest.approx(RATE_SHARE * 0.02)
    assert rate_factor(11, recipe) == 0.0
    adamw = uptraining_recipe(10, 100, optimizer="adamw", learning_rate=None)
    assert adamw.max_steps == 1
    assert adamw.matrix_learning_rate is None
    assert adamw.peak_rate == pytest.approx(RATE_SHARE * 3e-3)


@pytest.fixture
def token_file(tmp_path: Path) -> TokenFile:
    tokenizer = Tokenizer.train("char", ["".join(chr(97 + i) for i in range(26)) + "01234"])
    write_tokens(tmp_path / "t.tokens", [np.arange(400) * 7 % 31], tokenizer)
    return TokenFile(tmp_path / "t.tokens", tokenizer)


def test_a_token_file_is_the_batches_made_of_it(make_gpt: Callable[..., GPT], token_file: TokenFile) -> None:
    child = make_gpt()
    options = {"tokens": 6 * 2 * 32, "seed": 4}
    one = uptrain(child, None, token_file, batch_size=2, **options)
    other = uptrain(child, None, Batches(token_file, 32, 2, 4), **options)
    assert one.steps == other.steps == 6
    assert one.losses == other.losses
    assert uptrain(child, None, token_file, batch_size=2, tokens=6 * 64, seed=5).losses != one.losses
    both = uptrain(child, None, token_file, batch_size=2, grad_accumulation=3, **options)
    assert both.steps == 2
    assert both.losses[0] == pytest.approx(sum(_mean_losses(child, Batches(token_file, 32, 2, 4), 3)) / 3)


def _mean_losses(model: nn.Module, batches: Batches, count: int) -> list[float]:
    found = []
    for number in range(count):
        x, y = batches.at(2 * number)
        found.append(F.cross_entropy(model(x).flatten(0, 1), y.flatten()).item())
    return found


def test_the_callers_random_numbers_and_measuring_change_nothing(
    make_gpt: Callable[..., GPT], pairs: Pairs
) -> None:
    child = make_gpt(dropout=0.3)
    torch.manual_seed(9)
    expected = torch.rand(3)
    torch.manual_seed(9)
    quiet = uptrain(child, None, pairs, tokens=300)
    assert torch.equal(torch.rand(3), expected)
    seen = []
    measured = uptrain(
        child,
        None,
        pairs,
        tokens=300,
        at=range(0, 300, 50),
        on_mark=lambda model, _tokens: (torch.rand(()), model.training),
        on_step=lambda tokens, loss: seen.append((tokens, loss)),
    )
    assert measured.losses == quiet.losses == [loss for _, loss in seen]
    assert [tokens for tokens, _ in seen] == [64, 128, 192, 256, 320]
    assert [tokens for tokens, _ in measured.marks] == [0, 64, 128, 192, 256]
    assert not any(training for _, (_, training) in measured.marks)


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"tokens": 0}, "tokens must be at least 1, got 0"),
        ({"kl": -1.0}, "kl must be at least 0, got -1"),
        ({"kl": math.nan}, "kl must be at least 0, got nan"),
        ({"at": [5000]}, r"at must lie in 0 … 128 tokens, got 5000"),
        ({"data": []}, "no batches to learn from"),
        ({"block_size": 8}, "block_size=8 has no effect"),
        ({"colour": 3}, "colour"),
        ({"learning_rate": -1.0}, "learning_rate"),
    ],
)
def test_what_cannot_be_is_refused(
    make_gpt: Callable[..., GPT], pairs: Pairs, changes: dict[str, Any], wanted: str
) -> None:
    options = {"data": pairs, "tokens": 100} | changes
    with pytest.raises(ValueError, match=wanted):
        uptrain(make_gpt(), None, options.pop("data"), **options)


def test_batches_of_different_shapes_are_refused(make_gpt: Callable[..., GPT], pairs: Pairs) -> None:
    with pytest.raises(ValueError, match="one shape"):
        uptrain(make_gpt(), None, [pairs[0], (pairs[1][0][:2], pairs[1][1][:2])], tokens=100)


def test_vocabularies_that_differ_are_refused(make_gpt: Callable[..., GPT], pairs: Pairs) -> None:
    with pytest.raises(ValueError, match="parent and child score 40 and 31 tokens"):
        uptrain(make_gpt(), make_gpt(vocab_size=40), pairs, tokens=100)
    uptrain(make_gpt(), make_gpt(vocab_size=40), pairs, tokens=100, kl=0)


def test_weights_without_gradients_are_refused(make_gpt: Callable[..., GPT], pairs: Pairs) -> None:
    frozen = make_gpt()
    frozen.head.weight.requires_grad_(False)
    with pytest.raises(ValueError, match=r"token_embedding.weight cannot learn: quantised or frozen"):
        uptrain(frozen, None, pairs, tokens=100)


def test_a_loss_that_is_no_number_stops_it(make_gpt: Callable[..., GPT], pairs: Pairs) -> None:
    with pytest.raises(NonFiniteError, match=r"the \w+ of step \d+ is (nan|inf)"):
        uptrain(make_gpt(), None, pairs, tokens=6400, optimizer="adamw", learning_rate=1e30, warmup_steps=0)


def test_autocast_around_all_steps_learns_from_the_weights_of_each() -> None:
    torch.manual_seed(0)
    child = GPT(GPTConfig(vocab_size=5, n_layer=1, n_head=2, d_model=16, block_size=8))
    ids = torch.arange(9).remainder(5).repeat(4, 1)
    batches = [(ids[:, :-1], ids[:, 1:])]
    with torch.autocast("cpu", torch.bfloat16):
        made = uptrain(child, None, batches, tokens=32 * 40, learning_rate=0.05, warmup_steps=1)
    assert made.losses[-1] < 0.5 * made.losses[0]
