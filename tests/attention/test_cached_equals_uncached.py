"""Reading a text in pieces from a cache gives what reading it whole gives, at every position."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from headwise.attention import LayerCache, Mask, MultiHeadAttention, Rotary, WeightsOf

BLOCK = 12
ROTARIES: dict[str, Callable[[], Rotary | None]] = {
    "learned": lambda: None,  # added to x, as a model does
    "half-split": lambda: Rotary(4),
    "interleaved": lambda: Rotary(4, interleaved=True),
}
WINDOWS: dict[str, tuple[int | None, int | None, int]] = {
    # name: window of the mask, window of the cache, slots
    "all keys": (None, None, BLOCK),
    "window by mask": (3, None, BLOCK),
    "ring of 1": (None, 1, 1),
    "ring of 3": (None, 3, 3),
    "ring of 3, 2 to spare": (None, 3, 5),
    "ring of 8 under a window of 3": (3, 8, 8),
    "ring wider than the text": (None, 20, 20),
}


def pieces(prompt: int) -> list[list[int]]:
    """Ways to cut BLOCK positions: the prompt at once, then single steps, threes, or the rest at once."""
    rest = BLOCK - prompt
    ways = [[1] * rest, [3] * (rest // 3) + [1] * (rest % 3), [1, *([rest - 1] if rest > 1 else [])], [rest]]
    return [[prompt, *(size for size in way if size)] for way in (ways if rest else [[]])]


def in_pieces(
    mha: MultiHeadAttention, x: Tensor, sizes: list[int], cache: LayerCache, mask: Mask | None
) -> Tensor:
    return torch.cat([mha(part, mask=mask, cache=cache) for part in x.split(sizes, dim=1)], dim=1)


@pytest.mark.parametrize("prompt", [1, 2, BLOCK - 1, BLOCK])
@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("position", ROTARIES)
@pytest.mark.parametrize("n_kv_head", [6, 2, 1])
@torch.no_grad()
def test_at_every_position(n_kv_head: int, position: str, windows: str, prompt: int) -> None:
    torch.manual_seed(2)
    by_mask, by_cache, slots = WINDOWS[windows]
    mha = MultiHeadAttention(24, 6, n_kv_head=n_kv_head, rotary=ROTARIES[position]()).double()
    x = torch.randn(2, BLOCK, 24, dtype=torch.float64)
    if position == "learned":
        x = x + torch.randn(BLOCK, 24, dtype=torch.float64)
    mask = Mask.causal() if by_mask is None else Mask.window(by_mask)
    whole = mha(x, mask=mask if by_cache is None else mask & Mask.window(by_cache))
    for sizes in pieces(prompt):
        cache = LayerCache(2, n_kv_head, slots, 4, window=by_cache, dtype=torch.float64)
        out = in_pieces(mha, x, sizes, cache, mask)
        torch.testing.assert_close(out, whole, atol=1e-12, rtol=0)
        assert cache.length == BLOCK


HEADS = torch.rand(1, 6, 1, BLOCK, generator=torch.Generator().manual_seed(3)) < 0.4
MASKS: dict[str, Callable[[int], Mask]] = {
    # given how many positions there are so far
    "no more": lambda _: Mask.causal(),
    "padding": lambda _: Mask.causal() & Mask.lengths(torch.tensor([9, 4])),
    "a prefix": lambda _: Mask.prefix(2),
    "prefixes": lambda _: Mask.prefix(torch.tensor([5, 1])) & Mask.window(4),
    "not the first": lambda _: Mask.causal() & ~Mask.lengths(torch.tensor([2, 4])),
    "either": lambda _: (Mask.window(2) | Mask.lengths(torch.tensor([3, 6]))) & Mask.causal(),
    "a table": lambda S: Mask.causal() & Mask.keep(torch.arange(S).remainder(3).ne(1)[None]),
    "a table per head": lambda S: Mask.causal() & Mask.hide(HEADS[..., :S]),
    "documents": lambda S: Mask.causal() & Mask.documents(torch.arange(S) // 5),
}


@pytest.mark.parametrize("slots", [4, 6])
@pytest.mark.parametrize("sizes", [[5, 1, 1, 4, 1], [1] * BLOCK, [BLOCK]])
@pytest.mark.parametrize("name", MASKS)
@torch.no_grad()
def test_a_ring_under_any_mask(name: str, sizes: list[int], slots: int) -> None:
    """Masks count positions from the first, dropped ones included; so do the columns of weights."""
    mha = MultiHeadAttention(24, 6, n_kv_head=2, rotary=Rotary(4)).double()
    x = torch.randn(2, BLOCK, 24, dtype=torch.float64)
    cache = LayerCache(2, 2, slots, 4, window=4, dtype=torch.float64)
    whole, weights = mha(x, mask=MASKS[name](BLOCK) & Mask.window(4), return_weights=True)
    for part in x.split(sizes, dim=1):
        start, length = cache.length, cache.length + part.shape[1]
        out, some = mha(part, mask=MASKS[name](length), cache=cache, return_weights=True)
        torch.testing.assert_close(out, whole[:, start:length], atol=1e-12, rtol=0)
        torch.testing.assert_close(some, weights[:, :, start:length, :length], atol=1e-12, rtol=0)


@torch.no_grad()
def test_a_ring_without_a_mask_is_a_window() -> None:
    mha, x = MultiHeadAttention(24, 6, n_kv_head=2).double(), torch.randn(1, BLOCK, 24, dtype=torch.float64)
    cache = LayerCache(1, 2, 3, 4, window=3, dtype=torch.float64)
    out = torch.cat([mha(part, cache=cache) for part in x.split([5, 1, 6], dim=1)], dim=1)
    torch.testing.assert_close(out, mha(x, mask=Mask.window(3)), atol=1e-12, rtol=0)


@pytest.mark.parametrize("window", [None, 4])
@torch.no_grad()
def test_with_every_option_on(window: int | None) -> None:
    mha = MultiHeadAttention(
        24,
        6,
        n_kv_head=2,
        d_head=8,
        d_value=3,
        d_out=5,
        bias=True,
        rotary=Rotary(8, interleaved=True, fraction=0.5),
        qk_norm=True,
        softcap=2.0,
        sink=True,
    ).double()
    for name, parameter in mha.named_parameters():
        if name in ("sink", "q_norm.weight", "k_norm.weight"):
            parameter.normal_()
    x, bias = torch.randn(2, BLOCK, 24).double(), torch.randn(6, BLOCK, BLOCK).double()
    gate = torch.rand(2, 6, dtype=torch.float64)
    mask = Mask.causal() if window is None else Mask.window(window)
    whole, weights = mha(x, mask=mask, bias=bias, gate=gate, return_weights=True)
    for sizes in pieces(2):
        cache = LayerCache(2, 2, window or BLOCK, 8, 3, window=window, dtype=torch.float64)
        for part in x.split(sizes, dim=1):
            start, stop = cache.length, cache.length + part.shape[1]
            out, some = mha(
                part,
                mask=Mask.causal(),
                bias=bias[:, start:stop, :stop],
                cache=cache,
                gate=gate,
                return_weights=WeightsOf(heads=[4, 1], rows=slice(-1, None)),
            )
            torch.testing.assert_close(out, whole[:, start:stop], atol=1e-12, rtol=0)
            torch.testing.assert_close(some, weights[:, [4, 1], stop - 1 : stop, :stop], atol=1e-12, rtol=0)


@pytest.mark.parametrize("window", [None, 3])
def test_a_later_token_leaves_earlier_outputs_bit_for_bit(window: int | None, any_backend: str) -> None:
    mha = MultiHeadAttention(24, 6, n_kv_head=2, rotary=Rotary(4), backend=any_backend)
    x = torch.randn(1, BLOCK, 24)
    other = x.clone()
    other[:, BLOCK - 1] += 1
    mask = Mask.causal() if window is None else Mask.window(window)
    with torch.no_grad():
        out, changed = mha(x, mask=mask), mha(other, mask=mask)
    assert torch.equal(out[:, :-1], changed[:, :-1])
    assert not torch.allclose(out[:, -1], changed[:, -1])


@pytest.mark.parametrize("window", [None, 3])
@torch.no_grad()
def test_nothing_leaks_from_one_call_or_cache_to_another(window: int | None) -> None:
    mha, x = MultiHeadAttention(24, 6, n_kv_head=2, rotary=Rotary(4)), torch.randn(2, BLOCK, 24)
    caches = [LayerCache(1, 2, BLOCK, 4, window=window) for _ in range(2)]
    alone = in_pieces(mha, x[:1], [5, 1, 6], LayerCache(1, 2, BLOCK, 4, window=window), Mask.causal())
    parts: list[Tensor] = []
    for part, noise in zip(x[:1].split([5, 1, 6], dim=1), x[1:].split([5, 1, 6], dim=1), strict=True):
        parts.append(mha(part, mask=Mask.causal(), cache=caches[0]))
        mha(noise, mask=Mask.causal(), cache=caches[1])  # another text, another cache, in between
        mha(noise, mask=Mask.causal())
    assert torch.equal(torch.cat(parts, dim=1), alone)
    caches[0].reset()
    assert torch.equal(in_pieces(mha, x[:1], [5, 1, 6], caches[0], Mask.causal()), alone)


@torch.no_grad()
def test_beams_go_on_from_the_rows_they_came_from() -> None:
    mha, x = MultiHeadAttention(24, 6, n_kv_head=2, rotary=Rotary(4)).double(), torch.randn(3, 8, 24).double()
    for window in (None, 3):
        cache = LayerCache(3, 2, 8, 4, window=window, dtype=torch.float64)
        mha(x[:, :5], mask=Mask.causal(), cache=cache)
        order = torch.tensor([2, 2, 0])
        cache.reorder(order)
        out = mha(x[:, 5:], mask=Mask.causal(), cache=cache)
        joined = torch.cat((x[order, :5], x[:, 5:]), dim=1)
        mask = Mask.causal() if window is None else Mask.window(window)
        torch.testing.assert_close(out, mha(joined, mask=mask)[:, 5:], atol=1e-12, rtol=0)


BAD: dict[str, dict[str, object]] = {
    "mask too narrow": {"mask": Mask.keep(torch.ones(1, 3, dtype=torch.bool))},
    "bare mask": {"mask": torch.ones(1, 7, dtype=torch.bool)},
    "lengths of another batch": {"mask": Mask.lengths(torch.tensor([1, 2, 3]))},
    "mask elsewhere": {"mask": Mask.lengths(torch.tensor([1, 2], device="meta"))},
    "bias": {"bias": torch.zeros(5)},
    "gate": {"gate": torch.zeros(3)},
    "weights": {"return_weights": "yes"},
}


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("name", BAD)
@torch.no_grad()
def test_a_bad_call_writes_nothing(name: str, window: int | None) -> None:
    mha, x = MultiHeadAttention(24, 6, n_kv_head=2, rotary=Rotary(4)), torch.randn(2, 7, 24)
    cache = LayerCache(2, 2, 7 if window is None else 3, 4, window=window)
    mha(x[:, :6], mask=Mask.causal(), cache=cache)
    before = cache.keys.clone(), cache.values.clone()
    with pytest.raises((TypeError, ValueError)):
        mha(x[:, 6:], cache=cache, **{"mask": Mask.causal(), **BAD[name]})
    assert cache.length == 6
    assert torch.equal(cache.keys, before[0])
    assert torch.equal(cache.values, before[1])
    whole = mha(x, mask=Mask.causal() if window is None else Mask.window(window))
    torch.testing.assert_close(mha(x[:, 6:], mask=Mask.causal(), cache=cache), whole[:, 6:])


def test_misfits_between_x_and_the_cache_are_named() -> None:
    mha = MultiHeadAttention(24, 6, n_kv_head=2)
    cache = LayerCache(4, 2, 8, 4)
    with pytest.raises(ValueError, match="x has batch size 1 and cache 4; both are batch first"):
        mha(torch.zeros(1, 3, 24), cache=cache)
    with pytest.raises(
        ValueError, match=r"batch size 3 and cache 4; x of shape \(3, 4, 24\) looks time first"
    ):
        mha(torch.zeros(3, 4, 24), cache=cache)
    with pytest.raises(
        ValueError, match=r"k must be .* \(4, 1, T, 4\) for this cache, got shape \(4, 2, 3, 4\)"
    ):
        mha(torch.zeros(4, 3, 24), cache=LayerCache(4, 1, 8, 4))
    with pytest.raises(
        TypeError, match=r"cache must be a LayerCache, such as kv_cache\.layer\(i\).* got list"
    ):
        mha(torch.zeros(4, 3, 24), cache=[cache])
    ring = LayerCache(1, 2, 2, 4, window=2)
    with torch.no_grad():
        mha(torch.zeros(1, 3, 24), cache=ring)
        with pytest.raises(ValueError, match=r"bias of shape \(2,\) must have 1 or 4 columns.* dropped 2"):
            mha(torch.zeros(1, 1, 24), cache=ring, bias=torch.zeros(2))
