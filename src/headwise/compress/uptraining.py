"""Uptraining: a model whose heads were merged or removed learns on for a small share of its parent's tokens.

Ainslie et al. 2023 (https://arxiv.org/abs/2305.13245) train on with 5 % of the original steps. Here the
parent's own predictions can be learned from as well (Hinton et al. 2015, https://arxiv.org/abs/1503.02531).

Letters: B rows of a batch, T tokens.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch import Tensor, nn

from headwise.hub.modes import evaluating
from headwise.hub.surgery import next_token_logits
from headwise.model import GPT
from headwise.text import Batches, TokenFile
from headwise.training.config import LEARNING_RATES, MATRIX_LEARNING_RATE, TrainingConfig
from headwise.training.config_file import problems_of
from headwise.training.evaluation import token_losses
from headwise.training.learner import Learner, Loss, cross_entropy
from headwise.training.trainer import own_random_numbers

RATE_SHARE = 0.5
"""Peak learning rate as a share of that of a training from the start."""

Data = Batches | TokenFile | Sequence[tuple[Tensor, Tensor]]


class Distilling:
    """The loss of uptraining: cross-entropy + kl · KL(parent ‖ child), summed over all targets, in nats."""

    def __init__(self, parent: nn.Module, kl: float) -> None:
        """The parent runs in eval mode and gets no gradients."""
        self.parent = parent
        self.kl = kl

    def __call__(self, x: Tensor, logits: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad(), evaluating(self.parent):
            wanted = next_token_logits(self.parent, x)
        return token_losses(logits, y) + self.kl * divergence(wanted, logits, y)


def divergence(parent: Tensor, child: Tensor, y: Tensor) -> Tensor:
    """Return the sum of KL(parent ‖ child) over all targets that are not -100, in nats, in float32.

    parent, child: logits (B, T, vocab). y: targets (B, T).

    Raises:
        ValueError: logits over different vocabularies.
    """
    if parent.shape != child.shape:
        raise ValueError(
            f"parent and child score {parent.shape[-1]} and {child.shape[-1]} tokens; KL needs a parent with "
            "the child's vocabulary, or kl=0"
        )
    kept = y != -100
    p, q = (F.log_softmax(logits[kept].float(), dim=-1) for logits in (parent, child))  # (targets, vocab)
    return F.kl_div(q, p, reduction="sum", log_target=True)


@dataclass(frozen=True, eq=False)
class UptrainResult:
    """A model that learned on."""

    model: nn.Module = field(repr=False)
    tokens: int
    """Tokens learned from."""
    steps: int
    losses: list[float] = field(repr=False)
    """Of each step before its update: mean over its targets of what is made small, in nats."""
    marks: list[tuple[int, Any]]
    """Tokens learned from, and what `on_mark` returned there."""
    seconds: float
    """Time spent in steps."""


def uptrain(
    child: nn.Module,
    parent: nn.Module | None,
    data: Data,
    *,
    tokens: int,
    kl: float = 1.0,
    block_size: int | None = None,
    at: Sequence[int] = (),
    on_mark: Callable[[nn.Module, int], Any] | None = None,
    on_step: Callable[[int, float], None] | None = None,
    **recipe: Any,
) -> UptrainResult:
    """Return a copy of a model that has learned on, from text and from the predictions of its parent.

    Args:
        child: a GPT of ours or a causal model of transformers; it stays as it is.
        parent: the model whose predictions are learned; None, or kl=0, for plain cross-entropy.
        data: `Batches`, a token file, or pairs of ids and targets (B, T), which come again when all are used.
        tokens: how many to learn from, rounded up to whole steps; the learning rate falls to 0 over them.
        kl: weight of KL(parent ‖ child) beside the cross-entropy.
        block_size: tokens of a window where a token file is given; by default a GPT's.
        at: numbers of tokens after which `on_mark` is called; 0 is before the first step.
        on_mark: gets the model, in eval mode, and the tokens learned from; may measure, must not change it.
        on_step: called after each step with the tokens learned from and the loss.
        recipe: fields of `TrainingConfig`, such as seed, optimizer, learning_rate, batch_size (of a token
            file), schedule, grad_clip.

    Raises:
        ValueError: an argument out of range, no data, vocabularies that differ, weights without gradients.
        NonFiniteError: (a ValueError) a loss or gradient is not finite.
    """
    check_amounts(tokens, kl)
    check_learnable(child)
    size, batch_at, fixed = _source(data, block_size, child, recipe)
    config = uptraining_recipe(tokens, size, **recipe | fixed)
    steps = config.max_steps
    beyond = [mark for mark in at if not 0 <= mark <= steps * size]
    if beyond:
        raise ValueError(f"at must lie in 0 … {steps * size} tokens, got {beyond[0]}")
    made = copy.deepcopy(child)
    learner = learner_of(made, config, parent, kl)
    device = next(made.parameters()).device
    marks: list[tuple[int, Any]] = []
    losses: list[float] = []
    waiting = sorted(set(at))
    seconds = 0.0
    with own_random_numbers(device):
        torch.manual_seed(config.seed)
        for step in range(steps + 1):
            if waiting and waiting[0] <= step * size:
                waiting = [mark for mark in waiting if mark > step * size]
                marks.append((step * size, _measured(made, step * size, on_mark, device)))
            if step == steps:
                break
            started = time.perf_counter()
            batches = [batch_at(step * config.grad_accumulation + i) for i in range(config.grad_accumulation)]
            losses.append(learner.step(step, [(x.to(device), y.to(device)) for x, y in batches]).loss)
            seconds += time.perf_counter() - started
            if on_step is not None:
                on_step((step + 1) * size, losses[-1])
    learner.optimizer.zero_grad()
    return UptrainResult(made.eval(), steps * size, steps, losses, marks, seconds)


def _source(
    data: Data, block_size: int | None, child: nn.Module, recipe: dict[str, Any]
) -> tuple[int, Callable[[int], tuple[Tensor, Tensor]], dict[str, Any]]:
    """Return the tokens of a step, the batch of each number, and the fields of the recipe they decide."""
    if isinstance(data, TokenFile):
        if block_size is None:
            if not isinstance(child, GPT):
                raise ValueError("a token file needs block_size, the tokens of a window, for this model")
            block_size = child.config.block_size
        seen = TrainingConfig.model_validate(
            {name: recipe[name] for name in ("seed", "batch_size") if name in recipe}
        )
        data = Batches(data, block_size, seen.batch_size, seen.seed)
    elif block_size is not None:
        raise ValueError(f"block_size={block_size} has no effect on data that comes in batches")
    parts = int(recipe.get("grad_accumulation", 1))
    if isinstance(data, Batches):
        windows = data
        fixed = {"batch_size": windows.batch_size}
        size = windows.batch_size * windows.block_size * parts
        return size, lambda number: windows.at(number * windows.batch_size), fixed
    pairs = data
    if len(pairs) == 0:
        raise ValueError("there are no batches to learn from; give at least one pair of ids and targets")
    shapes = {tuple(part.shape) for pair in pairs for part in pair}
    if len(shapes) > 1:
        raise ValueError(f"all ids and targets must have one shape (B, T), got {sorted(shapes)}")
    rows = pairs[0][0].shape[0]
    return pairs[0][0].numel() * parts, lambda number: pairs[number % len(pairs)], {"batch_size": rows}


def _measured(
    model: nn.Module,
    tokens: int,
    on_mark: Callable[[nn.Module, int], Any] | None,
    device: torch.device,
) -> Any:
    if on_mark is None:
        return None
    with own_random_numbers(device), torch.no_grad(), evaluating(model):
        return on_mark(model, tokens)


def uptraining_recipe(tokens: int, tokens_per_step: int, **fields: Any) -> TrainingConfig:
    """Return the recipe of an uptraining: as that of a training, but at lower rates where none are given.

    Raises:
        ValueError: a field that is unknown or out of range.
    """
    optimizer = fields.get("optimizer", "muon")
    rates: dict[str, Any] = {}
    if optimizer in LEARNING_RATES:
        rates["learning_rate"] = RATE_SHARE * LEARNING_RATES[optimizer]
    if optimizer == "muon":
        rates["matrix_learning_rate"] = RATE_SHARE * MATRIX_LEARNING_RATE
    given = {name: value for name, value in fields.items() if value is not None}
    try:
        return TrainingConfig(**rates | given | {"max_steps": max(1, -(-tokens // tokens_per_step))})
    except ValidationError as error:
        raise ValueError("; ".join(problems_of(error))) from None


def learner_of(model: nn.Module, recipe: TrainingConfig, parent: nn.Module | None, kl: float) -> Learner:
    """Return what updates a model of ours or of transformers; without a parent or kl by cross-entropy."""
    loss: Loss = cross_entropy if parent is None or kl == 0 else Distilling(parent, kl)
    return Learner(model, recipe, forward=partial(next_token_logits, model), loss=loss)


def check_amounts(tokens: int, kl: float) -> None:
    """Raise ValueError for no tokens, or for a weight of KL that is negative or no number."""
    if tokens < 1:
        raise ValueError(f"tokens must be at least 1, got {tokens}")
    if not 0 <= kl < float("inf"):
        raise ValueError(f"kl must be at least 0, got {kl}")


def check_learnable(model: nn.Module) -> None:
    """Raise ValueError for weights that gradients cannot change."""
    fixed = [
        name
        for name, parameter in model.named_parameters()
        if not (parameter.is_floating_point() and parameter.requires_grad)
    ]
    if fixed:
        raise ValueError(
            f"{fixed[0]}{' and others' if len(fixed) > 1 else ''} cannot learn: quantised or frozen weights "
            "have no gradients; uptrain the original model, or call model.requires_grad_()"
        )
