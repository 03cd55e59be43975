"""The probe: with q = 0 and v = identity each output row is the visible set divided by its size.

Every case runs on each backend, and the weights of the reference must say the same.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from headwise.attention import LayerCache, Mask, attention

Probe = Callable[..., Tensor]
Rows = Callable[[list[list[int]], int], Tensor]

CASES: dict[str, tuple[Mask, int, int, dict[str, int], list[list[int]]]] = {
    "causal": (Mask.causal(), 4, 4, {}, [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3]]),
    "keep: True may attend": (
        Mask.keep(torch.ones(4, 4, dtype=torch.bool).tril()),
        4,
        4,
        {},
        [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3]],
    ),
    "hide: True may not": (
        Mask.hide(torch.ones(4, 4, dtype=torch.bool).triu(1)),
        4,
        4,
        {},
        [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3]],
    ),
    "fewer queries than keys": (Mask.causal(), 2, 5, {}, [[0, 1, 2, 3], [0, 1, 2, 3, 4]]),
    "more queries than keys": (Mask.causal(), 5, 2, {}, [[], [], [], [0], [0, 1]]),
    "top-left by offset": (Mask.causal(), 2, 5, {"offset": 0}, [[0], [0, 1]]),
    "more queries, top-left": (Mask.causal(), 4, 2, {"offset": 0}, [[0], [0, 1], [0, 1], [0, 1]]),
    "decode: one query sees every key": (Mask.causal(), 1, 8, {}, [[0, 1, 2, 3, 4, 5, 6, 7]]),
    "decode into a half full buffer": (Mask.causal(), 1, 8, {"offset": 3}, [[0, 1, 2, 3]]),
    "before all keys": (Mask.causal(), 2, 3, {"offset": -5}, [[], []]),
    "window beyond all keys": (Mask.window(2), 2, 3, {"offset": 7}, [[], []]),
    "window leaves the keys": (Mask.window(2), 3, 3, {"offset": 2}, [[1, 2], [2], []]),
    "window 3": (Mask.window(3), 6, 6, {}, [[0], [0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5]]),
    "window 1": (Mask.window(1), 3, 3, {}, [[0], [1], [2]]),
    "window wider than all": (Mask.window(9), 3, 3, {}, [[0], [0, 1], [0, 1, 2]]),
    "window, two of eight": (Mask.window(3), 2, 8, {}, [[4, 5, 6], [5, 6, 7]]),
    "window, one of eight": (Mask.window(3), 1, 8, {}, [[5, 6, 7]]),
    "window & causal": (Mask.window(2) & Mask.causal(), 3, 3, {}, [[0], [0, 1], [1, 2]]),
    "left padding & causal": (
        Mask.causal() & Mask.hide(torch.tensor([[True, True, False, False]])),
        4,
        4,
        {},
        [[], [], [2], [2, 3]],
    ),
    "right padding & causal": (
        Mask.causal() & Mask.lengths(torch.tensor([4])),
        5,
        5,
        {},
        [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3]],
    ),
    "padding & window": (
        Mask.window(2) & Mask.lengths(torch.tensor([2])),
        5,
        5,
        {},
        [[0], [0, 1], [1], [], []],
    ),
    "padding, window and decode": (Mask.window(3) & Mask.lengths(torch.tensor([6])), 1, 8, {}, [[5]]),
    "no real key": (Mask.lengths(torch.tensor([0])), 2, 3, {}, [[], []]),
    "lengths beyond the keys": (Mask.lengths(torch.tensor([9])), 2, 3, {}, [[0, 1, 2], [0, 1, 2]]),
    "a row of a table hides all": (
        Mask.keep(torch.tensor([[True, True], [False, False], [False, True]])),
        3,
        2,
        {},
        [[0, 1], [], [1]],
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("H", "G"), [(1, 1), (6, 2)])
def test_each_query_sees_exactly_these_keys(
    name: str, H: int, G: int, backend: str, probe: Probe, visible: Rows
) -> None:
    mask, T, S, options, sets = CASES[name]
    wanted = visible(sets, S).expand(1, H, T, S)
    out = probe(mask, T, S, H=H, G=G, backend=backend, **options)
    torch.testing.assert_close(out, wanted)
    assert torch.equal(out == 0, wanted == 0)
    assert torch.equal(mask.to_tensor(T, S, **options).expand_as(wanted), wanted > 0)


@pytest.mark.parametrize("name", CASES)
def test_asking_for_weights_changes_nothing(name: str, probe: Probe, visible: Rows) -> None:
    mask, T, S, options, sets = CASES[name]
    q, k, v = torch.randn(1, 2, T, 3), torch.randn(1, 2, S, 3), torch.randn(1, 2, S, 3)
    out, weights = attention(q, k, v, mask=mask, return_weights=True, **options)  # type: ignore[call-overload]
    torch.testing.assert_close(out, attention(q, k, v, mask=mask, **options))  # type: ignore[call-overload]
    torch.testing.assert_close(out, weights @ v)
    assert torch.equal(weights != 0, (visible(sets, S) != 0).expand_as(weights))
    torch.testing.assert_close(
        weights.sum(-1), torch.tensor([float(len(s) > 0) for s in sets]).expand(1, 2, T)
    )


def test_without_a_mask_everything_is_seen(backend: str, probe: Probe) -> None:
    torch.testing.assert_close(probe(None, 2, 3, backend=backend), torch.full((1, 1, 2, 3), 1 / 3))


def test_a_padding_table_belongs_to_its_sequence_not_to_a_head(backend: str, probe: Probe) -> None:
    table = torch.tensor([[True, False], [False, True]])[:, None, None, :]
    out = probe(Mask.keep(table), 2, 2, B=2, H=2, backend=backend)
    assert torch.equal(out[0], torch.tensor([1.0, 0.0]).expand(2, 2, 2))
    assert torch.equal(out[1], torch.tensor([0.0, 1.0]).expand(2, 2, 2))


def test_a_table_may_differ_by_head(backend: str, probe: Probe) -> None:
    table = torch.eye(4, dtype=torch.bool)[None, :, None, :]  # head h keeps key h
    out = probe(Mask.keep(table), 3, 4, H=4, G=2, backend=backend)
    assert torch.equal(out[0], torch.eye(4)[:, None, :].expand(4, 3, 4))
    decode = probe(Mask.keep(table), 1, 4, H=4, G=2, backend=backend)
    assert torch.equal(decode[0, :, 0], torch.eye(4))


def test_a_bias_of_minus_infinity_hides(backend: str, probe: Probe, visible: Rows) -> None:
    bias = torch.zeros(3, 3).masked_fill(torch.tensor([[0, 1, 1], [1, 1, 1], [0, 0, 0]]).bool(), -torch.inf)
    out = probe(None, 3, 3, bias=bias, backend=backend)
    torch.testing.assert_close(out[0, 0], visible([[0], [], [0, 1, 2]], 3))
    out = probe(Mask.causal(), 3, 3, bias=bias, backend=backend)
    torch.testing.assert_close(out[0, 0], visible([[0], [], [0, 1, 2]], 3))


@pytest.mark.parametrize("window", [None, 1, 3, 8, 20])
def test_chunks_into_a_cache_see_what_the_whole_sequence_sees(
    window: int | None, backend: str, visible: Rows
) -> None:
    mask = Mask.causal() if window is None else Mask.window(window)
    cache = LayerCache(1, 1, 12, 12)
    keys, values, rows = torch.randn(1, 1, 12, 12), torch.eye(12)[None, None], []
    for start, stop in [(0, 5), (5, 6), (6, 7), (7, 11), (11, 12)]:
        k, v = cache.append(keys[:, :, start:stop], values[:, :, start:stop])
        full = torch.zeros(1, 1, stop - start, 12)
        rows.append(attention(full, k, v, mask=mask, backend=backend))
    sets = [list(range(max(0, i + 1 - (window or 12)), i + 1)) for i in range(12)]
    torch.testing.assert_close(torch.cat(rows, dim=2)[0, 0], visible(sets, 12))
