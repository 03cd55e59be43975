"""The cache: cached equals uncached at every position, its memory is exact, misuse writes nothing."""

from __future__ import annotations

import pytest
import torch

from headwise.attention import KVCache, LayerCache, Mask, MultiHeadAttention, Rotary

CHUNKS = {"prefill, steps, chunk": (5, 1, 1, 4, 1), "steps": (1,) * 12, "two": (2, 10), "all": (12,)}


@pytest.mark.parametrize("chunks", CHUNKS.values(), ids=CHUNKS)
@pytest.mark.parametrize("window", [None, 1, 3])
@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("n_kv_head", [6, 2, 1])
def test_cached_equals_uncached_at_every_position(
    n_kv_head: int, rotary: bool, window: int | None, chunks: tuple[int, ...]
) -> None:
    torch.manual_seed(2)
    mha = MultiHeadAttention(24, 6, n_kv_head=n_kv_head, rotary=Rotary(4) if rotary else None).double()
    mask = Mask.causal() if window is None else Mask.window(window)
    x = torch.randn(2, 12, 24, dtype=torch.float64)
    cache = LayerCache(2, n_kv_head, 12, 4, dtype=torch.float64)
    with torch.no_grad():
        whole = mha(x, mask=mask)
        parts = [mha(part, mask=mask, cache=cache) for part in x.split(chunks, dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, atol=1e-12, rtol=0)
    assert cache.length == 12


def test_a_later_token_does_not_change_earlier_outputs() -> None:
    mha = MultiHeadAttention(24, 6, n_kv_head=2, rotary=Rotary(4))
    x = torch.randn(1, 12, 24)
    other = x.clone()
    other[:, 11] += 1
    out, changed = mha(x, mask=Mask.causal()), mha(other, mask=Mask.causal())
    assert torch.equal(out[:, :11], changed[:, :11])
    assert not torch.allclose(out[:, 11], changed[:, 11])


def test_weights_with_a_cache_cover_all_keys_so_far() -> None:
    mha, cache, x = MultiHeadAttention(8, 2), LayerCache(1, 2, 6, 4), torch.randn(1, 6, 8)
    with torch.no_grad():
        _, whole = mha(x, mask=Mask.causal(), return_weights=True)
        mha(x[:, :4], mask=Mask.causal(), cache=cache)
        _, weights = mha(x[:, 4:], mask=Mask.causal(), cache=cache, return_weights=True)
    torch.testing.assert_close(weights, whole[:, :, 4:])


def test_append_returns_views_of_what_is_written() -> None:
    cache = LayerCache(1, 2, 5, 3, 4)
    k, v = torch.randn(1, 2, 2, 3), torch.randn(1, 2, 2, 4)
    keys, values = cache.append(k, v)
    assert torch.equal(keys, k)
    assert torch.equal(values, v)
    more, _ = cache.append(k + 1, v)
    assert torch.equal(more, torch.cat((k, k + 1), dim=2))
    assert more.data_ptr() == keys.data_ptr()
    assert cache.length == 4


def test_overflow_is_refused_and_nothing_is_written() -> None:
    cache = LayerCache(1, 1, 4, 2)
    cache.append(torch.ones(1, 1, 3, 2), torch.ones(1, 1, 3, 2))
    with pytest.raises(ValueError, match="holds 4 positions, 3 are written and 2 more do not fit"):
        cache.append(torch.zeros(1, 1, 2, 2), torch.zeros(1, 1, 2, 2))
    assert cache.length == 3
    keys, _ = cache.append(torch.full((1, 1, 1, 2), 2.0), torch.ones(1, 1, 1, 2))
    assert keys[0, 0, :, 0].tolist() == [1, 1, 1, 2]


def test_after_reset_it_is_as_good_as_new() -> None:
    mha, x = MultiHeadAttention(8, 2, rotary=Rotary(4)), torch.randn(1, 5, 8)
    used, fresh = KVCache(1, 1, 2, 6, 4), KVCache(1, 1, 2, 6, 4)
    with torch.no_grad():
        mha(torch.randn(1, 6, 8), mask=Mask.causal(), cache=used.layer(0))
    used.reset()
    assert used.length == 0
    with torch.no_grad():
        for part in (x[:, :3], x[:, 3:]):
            outs = [mha(part, mask=Mask.causal(), cache=cache.layer(0)) for cache in (used, fresh)]
            assert torch.equal(*outs)
    assert used.length == 5


def test_reset_lets_go_of_gradients() -> None:
    mha, cache = MultiHeadAttention(8, 2), LayerCache(1, 2, 6, 4)
    for _ in range(2):
        mha(torch.randn(1, 6, 8), mask=Mask.causal(), cache=cache).sum().backward()
        cache.reset()
    keys, _ = cache.append(torch.zeros(1, 2, 1, 4), torch.zeros(1, 2, 1, 4))
    assert not keys.requires_grad


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 4), (torch.bfloat16, 2), (torch.float64, 8)])
def test_nbytes_is_the_formula(dtype: torch.dtype, size: int) -> None:
    cache = KVCache(3, 2, 5, 7, 11, 13, dtype=dtype)
    assert cache.nbytes == 3 * 2 * 5 * 7 * (11 + 13) * size
    assert cache.layer(0).nbytes * 3 == cache.nbytes
    assert KVCache(80, 64, 8, 131072, 128, device="meta").nbytes == 80 * 64 * 8 * 131072 * 256 * 4


@pytest.mark.parametrize(
    ("k", "v", "message"),
    [
        (
            (1, 2, 1, 3),
            (1, 2, 1, 3),
            r"k must be .* = \(4, 2, T, 3\) for this cache, got shape \(1, 2, 1, 3\)",
        ),
        ((4, 1, 1, 3), (4, 1, 1, 3), r"k must be .* \(4, 2, T, 3\)"),
        ((4, 2, 1, 5), (4, 2, 1, 3), r"k must be .* \(4, 2, T, 3\)"),
        ((4, 2, 1, 3), (4, 2, 1, 1), r"v must be .* \(4, 2, T, 3\)"),
        ((4, 2, 1, 3), (4, 2, 2, 3), "k and v must have the same length, got 1 and 2"),
        ((2, 1, 3), (4, 2, 2, 3), "k must be"),
    ],
)
def test_nothing_is_broadcast_into_a_cache(k: tuple[int, ...], v: tuple[int, ...], message: str) -> None:
    cache = LayerCache(4, 2, 5, 3)
    with pytest.raises(ValueError, match=message):
        cache.append(torch.ones(k), torch.ones(v))
    assert cache.length == 0


def test_other_dtypes_and_devices_are_refused() -> None:
    cache = LayerCache(1, 1, 2, 2)
    half = torch.ones(1, 1, 1, 2).bfloat16()
    with pytest.raises(TypeError, match=r"k is torch\.bfloat16 .* dtype=torch\.bfloat16"):
        cache.append(half, half)
    away = torch.empty(1, 1, 1, 2, device="meta")
    with pytest.raises(ValueError, match="k is on meta and the cache on cpu"):
        cache.append(away, away)


def test_bad_sizes_and_layers_are_refused() -> None:
    with pytest.raises(ValueError, match="capacity of a cache must be at least 1, got 0"):
        LayerCache(1, 1, 0, 2)
    with pytest.raises(ValueError, match="n_layer of a cache must be at least 1"):
        KVCache(0, 1, 1, 1, 2)
    with pytest.raises(ValueError, match="layers 0 … 1, got 2"):
        KVCache(2, 1, 1, 1, 2).layer(2)
    with pytest.raises(ValueError, match="layers 0 … 1, got -1"):
        KVCache(2, 1, 1, 1, 2).layer(-1)


def test_layers_are_apart_and_describe_themselves() -> None:
    cache = KVCache(2, 1, 1, 4, 2)
    cache.layer(0).append(torch.ones(1, 1, 3, 2), torch.ones(1, 1, 3, 2))
    assert (cache.layer(0).length, cache.layer(1).length, cache.length, cache.capacity) == (3, 0, 0, 4)
    assert "3 of 4 positions, batch=1, n_kv_head=1, d_head=2, d_value=2, 64 bytes" in repr(cache)
