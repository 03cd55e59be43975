"""One step of learning: batches, a loss, gradients, an update."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headwise.training.checkpoint import NonFiniteError
from headwise.training.compiling import Forward
from headwise.training.config import TrainingConfig
from headwise.training.evaluation import token_losses
from headwise.training.optimizer import Optimizer

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From ids (B, T), the model's logits (B, T, vocab) and targets (B, T) to the sum of the losses of all
targets that are not -100, in nats."""


def cross_entropy(_x: Tensor, logits: Tensor, y: Tensor) -> Tensor:
    """The loss that language models are trained with."""
    return token_losses(logits, y)


def accumulate(
    forward: Forward, batches: Sequence[tuple[Tensor, Tensor]], loss_of: Loss = cross_entropy
) -> Tensor:
    """Add to the gradients those of the mean loss over all targets of all `batches`, and return that loss.

    The same, up to rounding, as one batch that holds them all, also where they hold unequally many targets.

    Raises:
        ValueError: no target at all.
    """
    total = sum(int((y != -100).sum()) for _, y in batches)
    if total == 0:
        raise ValueError("there is nothing to learn from: the batches hold no target")
    loss = torch.zeros((), device=batches[0][0].device)
    for x, y in batches:
        part = loss_of(x, forward(x), y) / total
        part.backward()  # type: ignore[no-untyped-call]
        loss += part.detach()
    return loss


@dataclass(frozen=True)
class Learned:
    """One step that was done."""

    loss: float
    """Mean over the step's targets before the update, in nats."""
    learning_rate: float
    gradient_norm: float
    """Of the whole gradient before clipping."""


class Learner:
    """A model and what updates it."""

    def __init__(
        self,
        model: nn.Module,
        recipe: TrainingConfig,
        *,
        forward: Forward | None = None,
        loss: Loss = cross_entropy,
    ) -> None:
        """forward: from ids to logits, by default the model itself."""
        self.model = model
        self.recipe = recipe
        self.forward: Forward = model if forward is None else forward
        self.loss = loss
        self.optimizer = Optimizer(model, recipe)

    def step(self, done: int, batches: Sequence[tuple[Tensor, Tensor]]) -> Learned:
        """Do the step that follows `done` steps.

        Raises:
            NonFiniteError: loss or gradient are not finite; the weights are as they were.
        """
        self.model.train()
        self.optimizer.zero_grad()
        loss = accumulate(self.forward, batches, self.loss).item()
        check_finite("loss", loss, done + 1)
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        check_finite("gradient", norm.item(), done + 1)
        if self.recipe.grad_clip:
            nn.utils.clip_grads_with_norm_(parameters, self.recipe.grad_clip, norm)
        rate = self.optimizer.step(done)
        torch.clear_autocast_cache()  # under autocast around many steps it would keep the old weights
        return Learned(loss, rate, norm.item())


def check_finite(what: str, value: float, step: int) -> None:
    """Raise NonFiniteError unless a number of a step is finite."""
    if not math.isfinite(value):
        raise NonFiniteError(
            f"the {what} of step {step} is {value}; stopped before it could harm the weights"
        )
