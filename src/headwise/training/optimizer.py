"""The optimizer of a run: which parameter is updated how, at which rate, and its whole state as tensors."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from headwise.training.config import TrainingConfig
from headwise.training.muon import Muon

_IN_A_LAYER = re.compile(r"(blocks|(.+\.)?(layers|h))\.\d+\.")


def rate_factor(step: int, config: TrainingConfig) -> float:
    """The learning rate of step `step` (from 0) over its peak: linear warm-up, then `config.schedule`."""
    if step < config.warmup:
        return (step + 1) / (config.warmup + 1)
    progress = min(1.0, (step - config.warmup) / (config.max_steps - config.warmup))
    if config.schedule == "constant":
        return 1.0
    left = 1 - progress if config.schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return config.final_ratio + (1 - config.final_ratio) * left


class Optimizer:
    """AdamW for every parameter, or (`optimizer="muon"`) Muon for the matrices inside the layers and AdamW
    for embeddings, output layer, norms and biases.

    Weight decay is decoupled (`p ← p - rate·decay·p`) and touches only parameters with two axes or more.
    """

    def __init__(self, model: nn.Module, config: TrainingConfig) -> None:
        self.config = config
        # named_parameters() lists tied parameters once, under their first name.
        self._parameters = dict(model.named_parameters())
        matrices = hidden_matrices(model) if config.optimizer == "muon" else {}
        self._muon = Muon(matrices, config.momentum, config.weight_decay)
        self._rest = {name: p for name, p in self._parameters.items() if name not in matrices}
        rest = list(self._rest.values())
        self._adamw = torch.optim.AdamW(
            [
                {"params": [p for p in rest if p.ndim >= 2], "weight_decay": config.weight_decay},
                {"params": [p for p in rest if p.ndim < 2], "weight_decay": 0.0},
            ],
            lr=config.peak_rate,
            betas=(config.beta1, config.beta2),
            fused=all(p.device.type in ("cpu", "cuda") for p in rest),  # same mathematics, fewer passes
        )

    def step(self, step: int) -> float:
        """Update the parameters from their gradients, at the rate that step `step` (from 0) has in the
        schedule; returns AdamW's."""
        factor = rate_factor(step, self.config)
        rate = self.config.peak_rate * factor
        for group in self._adamw.param_groups:
            group["lr"] = rate
        self._adamw.step()
        self._muon.step(self.config.matrix_rate * factor)
        return rate

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for parameter in self._parameters.values():
            parameter.grad = None

    def state(self) -> dict[str, Tensor]:
        """The whole state, "what.parameter name" → tensor; the tensors are the live ones, not copies."""
        state = {f"momentum.{name}": value for name, value in self._muon.momentum().items()}
        for name, parameter in self._rest.items():
            values: dict[str, Tensor] = self._adamw.state.get(parameter, {})  # none before the first step
            state |= {f"{what}.{name}": value for what, value in values.items()}
        return state

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state()` returned for an equal model and recipe.

        Raises:
            ValueError: entries missing or left over, or of another shape.
        """
        momentum = {f"momentum.{name}": value for name, value in self._muon.momentum().items()}
        expected = {key: value.shape for key, value in momentum.items()}
        started = len(state) > len(momentum)
        if started:
            for name, parameter in self._rest.items():
                expected |= {f"step.{name}": torch.Size()}
                expected |= {f"{what}.{name}": parameter.shape for what in ("exp_avg", "exp_avg_sq")}
        wrong = {k for k, v in state.items() if expected.get(k) != v.shape} | expected.keys() - state.keys()
        if wrong:
            raise ValueError(
                f"the optimizer state does not belong to this model and optimizer: {min(wrong)} "
                "is missing, unknown or of another shape"
            )
        for key, value in momentum.items():
            value.copy_(state[key])
        self._adamw.state.clear()
        for name, parameter in self._rest.items() if started else ():
            # AdamW counts its steps on the CPU, except where it runs fused on a GPU.
            counter = parameter.device if parameter.device.type == "cuda" else "cpu"
            self._adamw.state[parameter] = {
                "step": state[f"step.{name}"].to(counter, copy=True),
                "exp_avg": state[f"exp_avg.{name}"].to(parameter.device, copy=True),
                "exp_avg_sq": state[f"exp_avg_sq.{name}"].to(parameter.device, copy=True),
            }


def hidden_matrices(model: nn.Module) -> dict[str, Tensor]:
    """The weights of linear layers inside the model's layers, by name: those in `blocks` of a GPT, in
    `model.layers` or `transformer.h` of a model of transformers."""
    return {
        name: parameter
        for name, parameter in model.named_parameters()
        if _IN_A_LAYER.match(name) and parameter.ndim == 2
    }
