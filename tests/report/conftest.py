"""Attention weights, a small model and a browser for the tests of headwise.report."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from headwise.hub import Subject
from headwise.model import GPT, GPTConfig
from headwise.text import Tokenizer


@pytest.fixture
def causal_weights() -> Callable[..., NDArray[np.float64]]:
    """Softmax weights `(L, H, T, T)` of random scores under the causal mask."""

    def make(n_layer: int, n_head: int, length: int, seed: int = 0) -> NDArray[np.float64]:
        scores = np.random.default_rng(seed).normal(0, 2, (n_layer, n_head, length, length))
        exponentials = np.where(np.tri(length, dtype=bool), np.exp(scores), 0.0)
        return exponentials / exponentials.sum(-1, keepdims=True)

    return make


@pytest.fixture(scope="session")
def subject() -> Subject:
    """A GPT with random weights, two layers of four heads that share keys and values by two, on bytes."""
    torch.manual_seed(0)
    tokenizer = Tokenizer.train("bpe", ["abc abc abc"], vocab_size=258)
    config = GPTConfig(
        vocab_size=tokenizer.vocab_size, n_layer=2, n_head=4, n_kv_head=2, d_model=32, block_size=128
    )
    model = GPT(config)
    for parameter in model.parameters():
        parameter.data *= 2
    return Subject.of(model, tokenizer, "tiny")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Debian's Chromium, one for all tests."""
    playwright = pytest.importorskip("playwright.sync_api")
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None and os.environ.get("HEADWISE_BROWSER") != "required":
        pytest.skip("no Chromium is installed; `apt install chromium` to test the page in a browser")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        yield chromium
        chromium.close()
