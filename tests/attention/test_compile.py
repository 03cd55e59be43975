"""The module compiles into one graph, and export takes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from headwise.attention import LayerCache, Mask, MultiHeadAttention, Rotary, WeightsOf

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


ALL: dict[str, object] = {"d_value": 3, "d_out": 5, "qk_norm": True, "softcap": 3.0, "sink": True}


@pytest.mark.parametrize(
    ("name", "lengths", "options"),
    [
        *((name, (7, 8, 9), {}) for name in MASKS),
        ("causal", (17, 18, 19), {}),  # long enough for PyTorch's own causal kernel
        ("padding", (7, 8, 9), ALL),
    ],
)
def test_one_graph_and_at_most_one_recompile_over_lengths(
    name: str, lengths: tuple[int, ...], options: dict[str, object]
) -> None:
    mha = MultiHeadAttention(24, 6, n_kv_head=3, rotary=Rotary(4), **options)  # type: ignore[arg-type]
    fast = compiled(mha)
    for T in lengths:
        x, mask = torch.randn(2, T, 24), MASKS[name](T)
        torch.testing.assert_close(fast(x, mask=mask), mha(x, mask=mask))
    assert counters["stats"]["unique_graphs"] <= 2


@pytest.mark.parametrize("first", [6, 20])
def test_a_cache_step_is_one_graph_that_serves_every_length(first: int) -> None:
    mha = MultiHeadAttention(24, 6, n_kv_head=3, rotary=Rotary(4, interleaved=True))
    fast = compiled(mha)
    caches = [LayerCache(2, 3, 40, 4) for _ in range(2)]
    with torch.no_grad():
        for T in (first, 1, 1, 1, 1, 1):
            x = torch.randn(2, T, 24)
            out = fast(x, mask=Mask.causal(), cache=caches[0])
            torch.testing.assert_close(out, mha(x, mask=Mask.causal(), cache=caches[1]))
    assert caches[0].length == caches[1].length == first + 5
    assert counters["stats"]["unique_graphs"] <= 3  # prefill, the first step, any step


def test_chunks_of_7_8_9_into_a_cache_are_at_most_one_recompile() -> None:
    mha = MultiHeadAttention(24, 6, n_kv_head=3, rotary=Rotary(4))
    fast = compiled(mha)
    caches, prompt = [LayerCache(2, 3, 60, 4) for _ in range(2)], torch.randn(2, 20, 24)
    with torch.no_grad():
        for cache in caches:  # enough keys for PyTorch's own causal kernel from the first chunk on
            mha(prompt, mask=Mask.causal(), cache=cache)
        for T in (7, 8, 9):
            x = torch.randn(2, T, 24)
            out = fast(x, mask=Mask.causal(), cache=caches[0])
            torch.testing.assert_close(out, mha(x, mask=Mask.causal(), cache=caches[1]))
    assert counters["stats"]["unique_graphs"] <= 2


def test_a_ring_compiles_and_settles() -> None:
    mha = MultiHeadAttention(24, 6, n_kv_head=3, rotary=Rotary(4))
    fast, seen = compiled(mha), []
    caches = [LayerCache(2, 3, 20, 4, window=18) for _ in range(2)]
    with torch.no_grad():
        for T in (19, *(1,) * 24):
            x = torch.randn(2, T, 24)
            out = fast(x, mask=Mask.causal(), cache=caches[0])
            torch.testing.assert_close(out, mha(x, mask=Mask.causal(), cache=caches[1]))
            seen.append(counters["stats"]["unique_graphs"])
    assert seen[-1] == seen[10]  # the roll round the ring after next meets nothing new
    assert seen[-1] <= 5


@torch.no_grad()
def test_a_cross_cache_compiles() -> None:
    mha = MultiHeadAttention(24, 6, n_kv_head=3, d_context=7)
    context = torch.randn(2, 5, 7)
    fast, cache = compiled(mha), mha.cross_cache(context)
    for T in (7, 8, 9):
        x = torch.randn(2, T, 24)
        torch.testing.assert_close(fast(x, cache=cache), mha(x, context))
    assert counters["stats"]["unique_graphs"] <= 2


def test_gates_and_chosen_weights_compile() -> None:
    mha, x, gate = MultiHeadAttention(24, 6, n_kv_head=3), torch.randn(2, 5, 24), torch.rand(2, 6)
    options = {"mask": Mask.causal(), "gate": gate, "return_weights": WeightsOf(heads=[1, 4], rows=[-1])}
    for got, wanted in zip(compiled(mha)(x, **options), mha(x, **options), strict=True):
        torch.testing.assert_close(got, wanted)


def test_returned_weights_compile() -> None:
    mha, x = MultiHeadAttention(24, 6), torch.randn(2, 5, 24)
    fast = torch.compile(mha, fullgraph=True, backend="eager")
    for got, wanted in zip(
        fast(x, mask=Mask.causal(), return_weights=True),
        mha(x, mask=Mask.causal(), return_weights=True),
        strict=True,
    ):
        torch.testing.assert_close(got, wanted)


class Causal(nn.Module):
    """A mask is not a tensor, so it is part of the exported program rather than an input."""

    def __init__(self, mha: MultiHeadAttention) -> None:
        super().__init__()
        self.mha = mha

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        return self.mha(x, mask=Mask.causal() & Mask.lengths(lengths))


@pytest.mark.parametrize("options", [{}, ALL], ids=["plain", "every option"])
def test_export_in_eval_mode(options: dict[str, object]) -> None:
    mha = MultiHeadAttention(24, 6, n_kv_head=3, rotary=Rotary(4), **options).eval()  # type: ignore[arg-type]
    model, x, lengths = Causal(mha), torch.randn(2, 20, 24), torch.tensor([20, 11])
    exported = torch.export.export(model, (x, lengths)).module()
    torch.testing.assert_close(exported(x, lengths), model(x, lengths))


def test_export_for_any_length() -> None:
    model = Causal(MultiHeadAttention(24, 6, n_kv_head=3, rotary=Rotary(4)).eval())
    sizes = {"x": {1: torch.export.Dim("T", min=16, max=64)}, "lengths": {}}
    given = torch.randn(2, 20, 24), torch.tensor([20, 11])
    exported = torch.export.export(model, given, dynamic_shapes=sizes).module()
    x, lengths = torch.randn(2, 33, 24), torch.tensor([5, 33])
    torch.testing.assert_close(exported(x, lengths), model(x, lengths))
