"""A model that reads from its cache gives what it gives without, and refuses a cache that is not its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch._dynamo.utils import counters

from headwise.attention import KVCache, Mask
from headwise.model import GPT, Sampling, generate_ids
from headwise.model.blocks import Block

Make = Callable[..., GPT]
BLOCK = 8


def ids(model: GPT, length: int, batch: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(4)
    return torch.randint(model.config.vocab_size, (batch, length), generator=generator)


@pytest.mark.parametrize("prompt", [1, 2, BLOCK - 1, BLOCK])
@pytest.mark.parametrize("preset", ["gpt", "gpt2"])  # rotary positions, learned positions
@pytest.mark.parametrize("n_kv_head", [4, 2, 1])
@torch.no_grad()
def test_cached_equals_uncached_at_every_position(
    make_gpt: Make, n_kv_head: int, preset: str, prompt: int
) -> None:
    model = make_gpt(preset, n_kv_head=n_kv_head).double()
    text = ids(model, BLOCK)
    logits, weights = model(text, return_weights=True)
    for chunk in (1, 2, 5):
        cache, start = model.new_cache(batch=2), 0
        for stop in sorted({prompt, *range(prompt, BLOCK, chunk), BLOCK}):
            out, some = model(text[:, start:stop], cache=cache, return_weights=True)
            torch.testing.assert_close(out, logits[:, start:stop], atol=1e-12, rtol=1e-12)
            for got, whole in zip(some, weights, strict=True):
                torch.testing.assert_close(got, whole[:, :, start:stop, :stop], atol=1e-12, rtol=0)
            start = stop
        assert cache.length == BLOCK


@pytest.mark.parametrize("preset", ["gpt", "gpt2"])
@pytest.mark.parametrize("n_kv_head", [4, 2, 1])
@pytest.mark.parametrize("prompt", [1, 2, BLOCK - 1, BLOCK])
def test_greedy_tokens_are_the_same_in_float32(
    make_gpt: Make, prompt: int, n_kv_head: int, preset: str
) -> None:
    model = make_gpt(preset, n_kv_head=n_kv_head)
    text = ids(model, prompt, batch=1)[0].tolist()
    cached, plain = (
        list(generate_ids(model, text, 2 * BLOCK, Sampling(0.0), use_cache=use)) for use in (True, False)
    )
    assert cached == plain


@pytest.mark.parametrize("slots", [3, 5])
@torch.no_grad()
def test_a_window_cache_is_the_model_with_window_attention(make_gpt: Make, slots: int) -> None:
    model = make_gpt("gpt", n_kv_head=2).double()
    settings, text = model.config, ids(model, BLOCK)
    x = model.token_embedding(text)
    for block in model.blocks:
        assert isinstance(block, Block)
        x, _ = block(x, Mask.window(3))
    wanted = model.head(model.final_norm(x))
    cache = KVCache(settings.n_layer, 2, 2, slots, settings.head_width, window=3, dtype=torch.float64)
    out = torch.cat([model(part, cache=cache) for part in text.split([4, 1, 1, 2], dim=1)], dim=1)
    torch.testing.assert_close(out, wanted, atol=1e-12, rtol=1e-12)


@torch.no_grad()
def test_beams_are_reordered_in_every_layer(make_gpt: Make) -> None:
    model = make_gpt("gpt").double()
    text, order = ids(model, BLOCK, batch=3), torch.tensor([2, 0, 0])
    cache = model.new_cache(batch=3)
    model(text[:, :5], cache=cache)
    cache.reorder(order)
    joined = torch.cat((text[order, :5], text[:, 5:]), dim=1)
    torch.testing.assert_close(model(text[:, 5:], cache=cache), model(joined)[:, 5:])


@torch.no_grad()
def test_a_cache_that_does_not_fit_is_refused_and_left_as_it_was(make_gpt: Make) -> None:
    model = make_gpt("gpt", n_layer=2)
    text, width = ids(model, 3), model.config.head_width
    deep, shallow = (KVCache(n, 2, 4, BLOCK, width) for n in (3, 1))
    for cache in (deep, shallow):
        with pytest.raises(
            ValueError, match=rf"cache has {len(cache.layers)} layers and the model 2; make it"
        ):
            model(text, cache=cache)
    cache = model.new_cache(batch=3)
    with pytest.raises(ValueError, match=r"ids hold 2 sequences and cache 3; ids look time first, \(T, B\)"):
        model(text, cache=cache)
    with pytest.raises(ValueError, match="ids hold 1 sequences and cache 3$"):
        model(text[:1, :2], cache=cache)
    with pytest.raises(ValueError, match="9 tokens exceed block_size=8"):
        model(ids(model, 9, batch=3), cache=cache)
    with pytest.raises(TypeError, match=r"make the cache with dtype=torch\.float32"):
        model(text, cache=KVCache(2, 2, 4, BLOCK, width, dtype=torch.float64))
    assert [layer.length for c in (deep, shallow, cache) for layer in c.layers] == [0] * 6
    uneven = model.new_cache(batch=2)
    model(text, cache=uneven)
    uneven.layer(1).reset()
    with pytest.raises(ValueError, match=r"layers of cache hold 0 … 3 positions.* reset\(\) it"):
        model(text, cache=uneven)
    with pytest.raises(ValueError, match="capacity of a cache must be at least 1, got 0"):
        model.new_cache(capacity=0)


@torch.no_grad()
def test_a_compiled_step_serves_every_length(make_gpt: Make) -> None:
    torch._dynamo.reset()
    counters.clear()
    model = make_gpt("gpt", n_layer=1, block_size=32)
    fast = torch.compile(model, fullgraph=True, backend="eager")
    cache, text = model.new_cache(batch=2), ids(model, 24)
    out = torch.cat([fast(part, cache=cache) for part in text.split([20, *[1] * 4], dim=1)], dim=1)
    torch.testing.assert_close(out, model(text))
    assert counters["stats"]["unique_graphs"] <= 3  # prompt, first step, any step
    torch._dynamo.reset()
