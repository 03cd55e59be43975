"""A context projected once: the same results as with the context itself, and no other context."""

from __future__ import annotations

import pytest
import torch

from headwise.attention import CrossCache, LayerCache, Mask, MultiHeadAttention, Rotary


def made(**options: object) -> MultiHeadAttention:
    settings = {"n_kv_head": 2, "d_context": 7, "d_value": 3, "qk_norm": True, "bias": True, **options}
    return MultiHeadAttention(12, 6, **settings)  # type: ignore[arg-type]


@torch.no_grad()
def test_it_gives_what_the_context_gives_however_often() -> None:
    mha, context = made().double(), torch.randn(2, 9, 7, dtype=torch.float64)
    mask, cache = Mask.lengths(torch.tensor([9, 4])), mha.cross_cache(context)
    for T in (5, 1, 1):
        x = torch.randn(2, T, 12, dtype=torch.float64)
        wanted, weights = mha(x, context, mask=mask, return_weights=True)
        for given in ((x,), (x, context)):
            out, some = mha(*given, cache=cache, mask=mask, return_weights=True)
            torch.testing.assert_close(out, wanted, atol=1e-12, rtol=0)
            torch.testing.assert_close(some, weights, atol=1e-12, rtol=0)
    assert cache.length == 9


@torch.no_grad()
def test_the_context_is_projected_once() -> None:
    mha, calls = made(), []
    for name in ("k_proj", "v_proj"):
        mha.get_submodule(name).register_forward_hook(lambda module, *_: calls.append(module))
    cache = mha.cross_cache(torch.randn(2, 9, 7))
    for _ in range(3):
        mha(torch.randn(2, 1, 12), cache=cache)
    assert calls == [mha.k_proj, mha.v_proj]


def test_another_context_is_refused() -> None:
    mha, context, x = made(), torch.randn(2, 9, 7), torch.randn(2, 5, 12)
    cache = mha.cross_cache(context)
    message = "context is not, or no longer, the tensor this cache was made from"
    with pytest.raises(ValueError, match=message):
        mha(x, torch.randn(2, 9, 7), cache=cache)
    mha(x, context, cache=cache)
    context += 1
    with pytest.raises(ValueError, match=message):
        mha(x, context, cache=cache)


def test_another_module_is_refused() -> None:
    cache = made().cross_cache(torch.randn(2, 9, 7))
    with pytest.raises(ValueError, match=r"made by another module; .* cross_cache\(context\)"):
        made()(torch.randn(2, 5, 12), cache=cache)


@torch.no_grad()
def test_rows_can_be_reordered_for_beams() -> None:
    mha, context = made().double(), torch.randn(3, 4, 7, dtype=torch.float64)
    cache, x = mha.cross_cache(context), torch.randn(3, 5, 12, dtype=torch.float64)
    order = torch.tensor([1, 1, 0])
    cache.reorder(order)
    torch.testing.assert_close(mha(x, cache=cache), mha(x, context[order]), atol=1e-12, rtol=0)
    with pytest.raises(ValueError, match="context is not, or no longer"):
        mha(x, context, cache=cache)
    with pytest.raises(ValueError, match="0 … 2, the rows of this cache, got 0 … 3"):
        cache.reorder(torch.tensor([0, 1, 3]))


def test_gradients_reach_the_projections_and_the_context_through_it() -> None:
    mha, context = made().double(), torch.randn(2, 4, 7, dtype=torch.float64, requires_grad=True)
    x = torch.randn(2, 3, 12, dtype=torch.float64)
    leaves = [context, mha.k_proj.weight, mha.v_proj.weight, mha.k_norm.weight]
    wanted = torch.autograd.grad(mha(x, context).square().sum(), leaves)
    grads = torch.autograd.grad(mha(x, cache=mha.cross_cache(context)).square().sum(), leaves)
    for grad, want in zip(grads, wanted, strict=True):
        torch.testing.assert_close(grad, want)


@torch.inference_mode()
def test_it_works_in_inference_mode() -> None:
    mha, context, x = made(), torch.randn(2, 4, 7), torch.randn(2, 3, 12)
    torch.testing.assert_close(mha(x, context, cache=mha.cross_cache(context)), mha(x, context))


def test_it_counts_its_memory_and_describes_itself() -> None:
    cache = made().cross_cache(torch.randn(4, 9, 7))
    assert cache.nbytes == 4 * 2 * 9 * (2 + 3) * 4
    assert repr(cache) == "CrossCache(9 positions, batch=4, n_kv_head=2, d_head=2, d_value=3, 1,440 bytes)"
    assert isinstance(cache, CrossCache)
    assert cache.batch == 4


def test_misfits_are_refused() -> None:
    mha, x = made(), torch.zeros(2, 5, 12)
    with pytest.raises(ValueError, match=r"context must be \(batch, length, 7\), got shape \(2, 9, 6\)"):
        mha.cross_cache(torch.zeros(2, 9, 6))
    with pytest.raises(TypeError, match=r"context is torch\.float64 and the weights are torch\.float32"):
        mha.cross_cache(torch.zeros(2, 9, 7, dtype=torch.float64))
    with pytest.raises(ValueError, match="rotary positions relate queries and keys of one sequence"):
        made(d_context=12, rotary=Rotary(2)).cross_cache(torch.zeros(2, 9, 12))
    with pytest.raises(
        ValueError, match=r"batch size 2 and cache 5; x of shape \(2, 5, 12\) looks time first"
    ):
        mha(x, cache=mha.cross_cache(torch.zeros(5, 9, 7)))
    with pytest.raises(ValueError, match=r"made with d_context=7, so it needs a context"):
        mha(x, cache=LayerCache(2, 2, 5, 2, 3))
