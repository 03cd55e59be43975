"""Shared means of these tests: the probe, which makes masks visible, and attention written as plain loops."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from headwise.attention import Mask, attention

Sees = Callable[[int, int, int, int], bool]
"""Whether, in batch element b and head h, the query at position p sees key j: ``sees(b, h, p, j)``."""


@pytest.fixture(params=["reference", "sdpa"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def probe() -> Callable[..., Tensor]:
    """With q = 0 and v = identity, each output row is the visible set divided by its size."""

    def run(
        mask: Mask | None, T: int, S: int, *, B: int = 1, H: int = 1, G: int | None = None, **options: object
    ) -> Tensor:
        groups = H if G is None else G
        q, k = torch.zeros(B, H, T, S), torch.randn(B, groups, S, S)
        v = torch.eye(S).expand(B, groups, S, S)
        result = attention(q, k, v, mask=mask, **options)  # type: ignore[call-overload]
        assert isinstance(result, Tensor)
        return result

    return run


@pytest.fixture
def visible() -> Callable[..., Tensor]:
    """The rows that the probe must give for these visible sets."""

    def rows(sets: list[list[int]], S: int) -> Tensor:
        table = torch.zeros(len(sets), S)
        for i, keys in enumerate(sets):
            table[i, keys] = 1 / max(len(keys), 1)
        return table

    return rows


@pytest.fixture
def plain() -> Callable[..., tuple[Tensor, Tensor]]:
    """Attention row by row over the visible keys only: nothing is masked, as nothing hidden is touched."""

    def run(
        q: Tensor, k: Tensor, v: Tensor, sees: Sees, *, offset: int, scale: float, bias: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        (B, H, T, _), (G, S), V = q.shape, k.shape[1:3], v.shape[3]
        out, weights = q.new_zeros(B, H, T, V), q.new_zeros(B, H, T, S)
        for b in range(B):
            for h in range(H):
                g = h // (H // G)
                for i in range(T):
                    keys = [j for j in range(S) if sees(b, h, offset + i, j)]
                    if not keys:
                        continue
                    score = k[b, g, keys] @ q[b, h, i] * scale
                    if bias is not None:
                        score = score + bias.expand(B, H, T, S)[b, h, i, keys]
                    weight = (score - score.max()).exp()
                    weight = weight / weight.sum()
                    weights[b, h, i, keys] = weight
                    out[b, h, i] = weight @ v[b, g, keys]
        return out, weights

    return run
