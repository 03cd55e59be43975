"""Small models and tokenizers for the tests of headwise.model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from headwise.model import GPT, PRESETS, GPTConfig
from headwise.text import Tokenizer

TEXT = "the quick brown fox jumps over the lazy dog\n나는 학교에 버스로 갔다 🙂\n"


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.train("char", [TEXT])


@pytest.fixture(scope="session")
def bpe() -> Tokenizer:
    return Tokenizer.train("bpe", [TEXT * 5], vocab_size=300)


@pytest.fixture
def make_gpt(tokenizer: Tokenizer) -> Callable[..., GPT]:
    """Build a small GPT of a preset, its weights large enough that every part matters."""

    def make(preset: str = "gpt", *, seed: int = 0, scale: float = 10.0, **changes: Any) -> GPT:
        settings = PRESETS[preset].model_dump(exclude_defaults=True)
        small = {"d_model": 16, "block_size": 8}
        if settings.get("n_layer") is None:
            small["n_layer"] = 2
        config = GPTConfig(**(settings | small | {"vocab_size": tokenizer.vocab_size} | changes))
        torch.manual_seed(seed)
        model = GPT(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 1:
                    parameter.add_(0.1 * torch.randn_like(parameter))
                elif config.residual:  # these start small
                    parameter.mul_(scale)
        return model

    return make
