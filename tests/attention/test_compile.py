"""The module compiles into one graph, and export takes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from headwise.attention import LayerCache, Mask, MultiHeadAttention, Rotary

MASKS: dict[str, Callable[[int], Mask | None]] = {
    "no mask": lambda _: None,
    "causal": lambda _: Mask.causal(),
    "table": lambda T: Mask.keep(torch.ones(T, T, dtype=torch.bool).tril()),
    "padding": lambda T: Mask.causal() & Mask.lengths(torch.tensor([3, T])),
    "window": lambda _: Mask.window(3),
}


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def compiled(mha: nn.Module) -> Callable[..., Tensor]:
    made: Callable[..., Tensor] = torch.compile(mha, fullgraph=True, backend="eager")
    return made


@pytest.mark.parametrize("name", MASKS)
def test_one_graph_and_at_most_one_recompile_over_lengths(name: str) -> None:
    mha = MultiHeadAttention(24, 6, n_kv_head=3, rotary=Rotary(4))
    fast = compiled(mha)
    for T in (17, 18, 19):
        x, mask = torch.randn(2, T, 24), MASKS[name](T)
        torch.testing.assert_close(fast(x, mask=mask), mha(x, mask=mask))
    assert counters["stats"]["unique_graphs"] <= 2


def test_a_cache_step_is_one_graph_that_serves_every_length() -> None:
    mha = MultiHeadAttention(24, 6, n_kv_head=3, rotary=Rotary(4))
    fast = compiled(mha)
    caches = [LayerCache(2, 3, 40, 4) for _ in range(2)]
    with torch.no_grad():
        for step in range(20, 28):
            x = torch.randn(2, 20 if step == 20 else 1, 24)
            out = fast(x, mask=Mask.causal(), cache=caches[0])
            torch.testing.assert_close(out, mha(x, mask=Mask.causal(), cache=caches[1]))
    assert caches[0].length == caches[1].length == 27
    assert counters["stats"]["unique_graphs"] <= 3  # prefill, the first step, any step


def test_returned_weights_compile() -> None:
    mha, x = MultiHeadAttention(24, 6), torch.randn(2, 5, 24)
    fast = torch.compile(mha, fullgraph=True, backend="eager")
    for got, wanted in zip(
        fast(x, mask=Mask.causal(), return_weights=True),
        mha(x, mask=Mask.causal(), return_weights=True),
        strict=True,
    ):
        torch.testing.assert_close(got, wanted)


def test_export_in_eval_mode() -> None:
    mha, x = MultiHeadAttention(24, 6, rotary=Rotary(4)).eval(), torch.randn(2, 5, 24)
    torch.testing.assert_close(torch.export.export(mha, (x,)).module()(x), mha(x))
