"""Measuring a model: cross-entropy over batches, over a whole token file, and per byte of text."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headwise.model import GPT
from headwise.text import TokenFile, Tokenizer, sequential_windows
from headwise.training.compiling import Forward


@dataclass(frozen=True)
class Evaluation:
    """Mean cross-entropy over some tokens."""

    loss: float
    """In nats per token."""
    tokens: int
    """How many tokens were predicted."""


def token_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Sum of the cross-entropies of all targets that are not -100, in float32; none gives 0.

    `logits` are `(B, T, vocab)`, `targets` `(B, T)`.
    """
    # (B, T, vocab) -> (B·T, vocab)
    return F.cross_entropy(
        logits.flatten(0, 1).float(), targets.flatten(), ignore_index=-100, reduction="sum"
    )


@torch.no_grad()
def evaluate_batches(
    model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], forward: Forward | None = None
) -> Evaluation:
    """Mean loss of `model`, in eval mode, over `(x, y)` batches; its mode is as before afterwards.

    forward: from ids to logits, by default the model itself.

    Raises:
        ValueError: no target at all in the batches.
    """
    device = next(model.parameters()).device
    forward = model if forward is None else forward
    training = model.training
    model.eval()
    total, tokens = 0.0, 0
    try:
        for x, y in batches:
            total += token_losses(forward(x.to(device)), y.to(device)).item()
            tokens += int((y != -100).sum())
    finally:
        model.train(training)
    if tokens == 0:
        raise ValueError("there is nothing to evaluate: the batches hold no target")
    return Evaluation(total / tokens, tokens)


def evaluate(model: GPT, tokens: TokenFile, *, batch_size: int = 64) -> Evaluation:
    """Mean loss over a whole token file, every token but the first predicted once, in windows of
    `block_size` side by side. The same model and file always give the same value.

    Raises:
        ValueError: fewer than two tokens.
    """
    return evaluate_batches(model, sequential_windows(tokens, model.config.block_size, batch_size))


def bits_per_byte(evaluation: Evaluation, tokens: TokenFile, tokenizer: Tokenizer) -> float:
    """The loss over a whole file in bits per byte of its UTF-8 text, which compares across tokenizers."""
    sizes = np.array([len(tokenizer.token_bytes(index)) for index in range(tokenizer.vocab_size)])
    counts = np.bincount(tokens.tokens[1:], minlength=tokenizer.vocab_size)  # the first is not predicted
    return evaluation.loss * evaluation.tokens / (math.log(2) * int(counts @ sizes))
