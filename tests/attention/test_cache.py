"""The cache as a container: what it holds, its memory, its rows, and that misuse writes nothing.

That the cached model equals the uncached one is tested in test_cached_equals_uncached.py.
"""

from __future__ import annotations

import operator

import pytest
import torch
from torch import Tensor

from headwise.attention import KVCache, LayerCache, Mask, MultiHeadAttention, Rotary


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


def numbered(start: int, stop: int, batch: int = 1) -> Tensor:
    """Keys that say their position, and their row after the comma."""
    positions = torch.arange(start, stop, dtype=torch.float64)
    rows = torch.arange(batch, dtype=torch.float64) / 10
    return (positions + rows[:, None]).view(batch, 1, -1, 1)


def windowed(window: int, capacity: int, batch: int = 1) -> LayerCache:
    return LayerCache(batch, 1, capacity, 1, window=window, dtype=torch.float64)


@pytest.mark.parametrize("capacity", [8, 9, 13, 40])
def test_a_window_rolls_only_when_it_is_full(capacity: int) -> None:
    cache = windowed(8, capacity)
    contents = []
    for start, stop in [(0, 6), (6, 7), (7, 8), (8, 9), (9, 10)]:
        k = numbered(start, stop)
        keys, values = cache.append(k, k + 0.5)
        assert torch.equal(values, keys + 0.5)
        assert keys[..., -1, 0] == stop - 1
        assert torch.equal(cache.values, cache.keys + 0.5)
        assert cache.keys.flatten().tolist() == list(cache.positions)
        contents.append((cache.positions.start, cache.positions.stop - 1))
    assert contents == [(0, 5), (0, 6), (0, 7), (1, 8), (2, 9)]
    assert cache.length == 10
    assert cache.nbytes == 1 * 1 * capacity * 2 * 8


@pytest.mark.parametrize("slack", [0, 1, 2, 7])
@pytest.mark.parametrize("window", [1, 2, 3, 5])
def test_an_append_returns_what_its_queries_may_see(window: int, slack: int) -> None:
    cache, length = windowed(window, window + slack), 0
    for chunk in (1, 1, 4, 1, 0, 9, 1, 1, 1, 2, 3, 20, 1, 1):
        k = numbered(length, length + chunk)
        keys, values = cache.append(k, -k)
        first, length = max(0, length - window + 1), length + chunk
        assert keys.flatten().tolist() == list(range(first, length))
        assert torch.equal(values, -keys)
        assert cache.positions == range(max(0, length - window), length)
        assert cache.keys.flatten().tolist() == list(cache.positions)
        assert cache.nbytes == (window + slack) * 2 * 8


def test_with_room_to_spare_steps_are_views_and_copies_are_rare() -> None:
    cache, memory = windowed(4, 4 + 3), []
    for i in range(24):
        keys, _ = cache.append(numbered(i, i + 1), numbered(i, i + 1))
        memory.append(keys.untyped_storage().data_ptr() == cache._keys.untyped_storage().data_ptr())
    assert [i for i, is_view in enumerate(memory) if not is_view] == [7, 11, 15, 19, 23]


@pytest.mark.parametrize("window", [None, 3])
def test_a_proposal_leaves_no_trace(window: int | None) -> None:
    cache = LayerCache(1, 1, 8, 1, window=window, dtype=torch.float64)
    cache.append(numbered(0, 5), numbered(0, 5))
    before = cache.keys.clone(), cache.values.clone()
    for chunk in (1, 3):
        keys, _ = cache.propose(numbered(50, 50 + chunk), numbered(50, 50 + chunk))
        assert keys[..., -1, 0] == 49 + chunk
    assert cache.length == 5
    assert torch.equal(cache.keys, before[0])
    assert torch.equal(cache.values, before[1])
    if window is not None:
        keys, _ = cache.propose(numbered(50, 59), numbered(50, 59))
        assert keys.flatten().tolist() == [3, 4, *range(50, 59)]
        assert torch.equal(cache.keys, before[0])
    assert cache.append(numbered(5, 6), numbered(5, 6))[0].flatten().tolist() == list(
        range(0 if window is None else 3, 6)
    )


@pytest.mark.parametrize("window", [None, 3])
def test_rows_can_be_reordered_and_repeated(window: int | None) -> None:
    cache = LayerCache(3, 1, 8, 1, window=window, dtype=torch.float64)
    k = numbered(0, 5, batch=3)
    cache.append(k, k + 0.05)
    cache.reorder(torch.tensor([2, 0, 0]))
    keys, values = cache.append(numbered(5, 6, batch=3), numbered(5, 6, batch=3))
    first = 0 if window is None else 3
    assert torch.equal(keys[:, :, :-1], k[[2, 0, 0], :, first:])
    assert torch.equal(values[:, :, :-1], k[[2, 0, 0], :, first:] + 0.05)
    assert keys[:, 0, -1, 0].tolist() == [5.0, 5.1, 5.2]


def test_every_layer_is_reordered() -> None:
    cache = KVCache(2, 2, 1, 4, 1)
    for layer in cache.layers:
        layer.append(torch.tensor([1.0, 2.0]).view(2, 1, 1, 1), torch.tensor([3.0, 4.0]).view(2, 1, 1, 1))
    cache.reorder(torch.tensor([1, 1]))
    for layer in cache.layers:
        assert layer.keys.flatten().tolist() == [2, 2]
        assert layer.values.flatten().tolist() == [4, 4]


@pytest.mark.parametrize(
    ("index", "error", "message"),
    [
        (torch.tensor([0.0, 1.0]), TypeError, r"integer tensor of rows, got torch\.float32"),
        (torch.tensor([True, False]), TypeError, r"got torch\.bool"),
        ([0, 1], TypeError, "got list"),
        (torch.tensor([0]), ValueError, r"a row for each of the 2, got shape \(1,\)"),
        (torch.tensor([[0, 1]]), ValueError, r"got shape \(1, 2\)"),
        (torch.tensor([0, 2]), ValueError, r"0 … 1, the rows of this cache, got 0 … 2"),
        (torch.tensor([-1, 0]), ValueError, "got -1 … 0"),
        (torch.zeros(2, dtype=torch.int64, device="meta"), ValueError, "index is on meta"),
    ],
)
def test_a_bad_order_changes_nothing(index: Tensor, error: type[Exception], message: str) -> None:
    cache = KVCache(2, 2, 1, 4, 1)
    for layer in cache.layers:
        layer.append(torch.tensor([1.0, 2.0]).view(2, 1, 1, 1), torch.zeros(2, 1, 1, 1))
    with pytest.raises(error, match=message):
        cache.reorder(index)
    assert all(layer.keys.flatten().tolist() == [1, 2] for layer in cache.layers)


@pytest.mark.parametrize("window", [None, 3])
def test_after_reset_it_is_bit_for_bit_as_a_fresh_one(window: int | None) -> None:
    used, fresh = (KVCache(2, 1, 2, 6, 4, window=window) for _ in range(2))
    for layer in used.layers:
        for _ in range(2):
            layer.append(torch.randn(1, 2, 3, 4), torch.randn(1, 2, 3, 4))
        if window is not None:
            layer.append(torch.randn(1, 2, 9, 4), torch.randn(1, 2, 9, 4))
    used.reset()
    for one, other in zip(used.layers, fresh.layers, strict=True):
        mine, wanted = vars(one), vars(other)
        assert mine.keys() == wanted.keys()
        for name, value in mine.items():
            same = torch.equal if isinstance(value, Tensor) else operator.eq
            assert same(value, wanted[name]), name


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


@pytest.mark.parametrize("options", [{}, {"window": 3}])
def test_gradients_flow_to_all_that_was_appended_until_the_next_append(options: dict[str, int]) -> None:
    k, v = (torch.randn(1, 1, 4, 2, requires_grad=True) for _ in range(2))
    cache = LayerCache(1, 1, 8, 2, **options)
    cache.append(k[:, :, :3], v[:, :, :3])
    keys, values = cache.append(k[:, :, 3:], v[:, :, 3:])
    first = 0 if not options else 1
    grads = torch.autograd.grad((keys.square().sum() + 3 * values.sum()), [k, v], retain_graph=True)
    wanted = torch.zeros_like(k), torch.zeros_like(v)
    wanted[0][:, :, first:] = 2 * k[:, :, first:]
    wanted[1][:, :, first:] = 3
    assert torch.equal(grads[0], wanted[0])
    assert torch.equal(grads[1], wanted[1])
    score = keys.square().sum()
    cache.append(k[:, :, 3:], v[:, :, 3:])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        score.backward()


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 4), (torch.bfloat16, 2), (torch.float64, 8)])
def test_nbytes_is_the_formula(dtype: torch.dtype, size: int) -> None:
    cache = KVCache(3, 2, 5, 7, 11, 13, dtype=dtype)
    assert cache.nbytes == 3 * 2 * 5 * 7 * (11 + 13) * size
    assert cache.layer(0).nbytes * 3 == cache.nbytes
    assert KVCache(80, 64, 8, 131072, 128, device="meta").nbytes == 80 * 64 * 8 * 131072 * 256 * 4
    assert KVCache(3, 2, 5, 7, 11, 13, window=4, dtype=dtype).nbytes == cache.nbytes


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
    with pytest.raises(ValueError, match="window of a cache must be at least 1, got 0"):
        LayerCache(1, 1, 4, 2, window=0)
    with pytest.raises(ValueError, match="window=5 does not fit into capacity=4 slots; give at least 5"):
        LayerCache(1, 1, 4, 2, window=5)
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
    windows = KVCache(2, 1, 1, 4, 2, window=3)
    assert (windows.window, windows.batch, cache.window) == (3, 1, None)
    assert "2 × LayerCache(0 positions, the last 3 kept, batch=1" in repr(windows)
