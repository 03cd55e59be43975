"""Attention weights for the tests of headwise.report."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray


@pytest.fixture
def causal_weights() -> Callable[..., NDArray[np.float64]]:
    """Softmax weights `(L, H, T, T)` of random scores under the causal mask."""

    def make(n_layer: int, n_head: int, length: int, seed: int = 0) -> NDArray[np.float64]:
        scores = np.random.default_rng(seed).normal(0, 2, (n_layer, n_head, length, length))
        exponentials = np.where(np.tri(length, dtype=bool), np.exp(scores), 0.0)
        return exponentials / exponentials.sum(-1, keepdims=True)

    return make
