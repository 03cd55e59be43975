"""Small models under study."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from headwise.heads.documents import NOTHING, make_batch, make_documents
from headwise.hub.subject import OwnSubject
from headwise.model import GPT, PRESETS, GPTConfig
from headwise.text import Tokenizer

TEXTS = (
    "the quick brown fox jumps over the lazy dog.",
    "a dog, a fox, a dog, a fox!",
    "나는 학교에 버스로 갔다 🙂",
    "the end",
    "over and over, over and over again; the quick fox.",
)


@pytest.fixture(scope="session")
def texts() -> list[str]:
    return list(TEXTS)


@pytest.fixture(scope="session")
def characters() -> Tokenizer:
    return Tokenizer.train("char", ["".join(TEXTS)])


@pytest.fixture
def make_own(characters: Tokenizer) -> Callable[..., OwnSubject]:
    """Build a small GPT under study, its weights large enough that every head matters."""

    def make(preset: str = "gpt", *, seed: int = 0, scale: float = 8.0, **changes: Any) -> OwnSubject:
        settings = PRESETS[preset].model_dump(exclude_defaults=True)
        small = {"n_layer": 3, "n_head": 4, "d_model": 32, "block_size": 64}
        config = GPTConfig(**(settings | small | {"vocab_size": characters.vocab_size} | changes))
        torch.manual_seed(seed)
        model = GPT(config)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 1:
                    parameter.add_(0.2 * torch.randn_like(parameter))
                elif config.residual:  # these start small
                    parameter.mul_(scale)
        return OwnSubject(model, characters, "small")

    return make


@pytest.fixture
def trained(make_own: Callable[..., OwnSubject]) -> OwnSubject:
    """A model that knows the texts by heart, so that most heads are worth something."""
    subject = make_own(scale=1.0)
    batch = make_batch(subject, make_documents(subject, TEXTS), list(range(len(TEXTS))))
    optimizer = torch.optim.Adam(subject.model.parameters(), 1e-2)
    there = batch.targets != NOTHING
    for _ in range(60):
        loss = F.cross_entropy(subject.run(batch.tokens)[there], batch.targets[there])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.5
    optimizer.zero_grad()
    return subject
