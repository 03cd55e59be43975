"""What a mask is: its constructors, how masks combine, how they show themselves, what they refuse."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.attention import Mask
from headwise.attention.masks import Region

LOWER = torch.ones(4, 4, dtype=torch.bool).tril()


def test_causal_is_the_lower_triangle() -> None:
    assert torch.equal(Mask.causal().to_tensor(4, 4), LOWER)


def test_causal_is_aligned_bottom_right() -> None:
    assert Mask.causal().to_tensor(2, 5).tolist() == [[True] * 4 + [False], [True] * 5]
    assert Mask.causal().to_tensor(3, 2).tolist() == [[False, False], [True, False], [True, True]]


def test_an_offset_belongs_to_the_call_not_to_the_mask() -> None:
    mask = Mask.causal()
    assert mask.to_tensor(2, 5, offset=0).tolist() == [[True] + [False] * 4, [True] * 2 + [False] * 3]
    assert torch.equal(mask.to_tensor(2, 5), mask.to_tensor(2, 5, offset=3))


@pytest.mark.parametrize(
    ("n", "sets"),
    [
        (1, [{0}, {1}, {2}, {3}]),
        (2, [{0}, {0, 1}, {1, 2}, {2, 3}]),
        (4, [{0}, {0, 1}, {0, 1, 2}, {0, 1, 2, 3}]),
        (9, [{0}, {0, 1}, {0, 1, 2}, {0, 1, 2, 3}]),
    ],
)
def test_window_counts_the_keys_seen_itself_included(n: int, sets: list[set[int]]) -> None:
    table = Mask.window(n).to_tensor(4, 4)
    assert [set(row.nonzero().flatten().tolist()) for row in table] == sets


def test_lengths_hide_the_padding_keys_from_every_query() -> None:
    table = Mask.lengths(torch.tensor([2, 0, 3])).to_tensor(2, 3)
    assert table.shape == (3, 1, 2, 3)
    assert table[:, 0, 0].tolist() == [[True, True, False], [False] * 3, [True] * 3]
    assert torch.equal(table[:, :, 0], table[:, :, 1])


def test_keep_and_hide_are_opposites() -> None:
    table = torch.rand(2, 3, 4, 5) > 0.5
    assert torch.equal(Mask.keep(table).to_tensor(4, 5), table)
    assert torch.equal(Mask.hide(table).to_tensor(4, 5), ~table)


def test_three_axes_are_batch_queries_keys() -> None:
    table = torch.rand(2, 4, 5) > 0.5
    assert torch.equal(Mask.keep(table).to_tensor(4, 5), table[:, None])


def test_and_allows_what_both_allow() -> None:
    table = torch.rand(2, 1, 1, 4) > 0.5
    both = Mask.causal() & Mask.keep(table) & Mask.lengths(torch.tensor([3, 4]))
    wanted = LOWER & table & (torch.arange(4) < torch.tensor([3, 4])[:, None, None, None])
    assert torch.equal(both.to_tensor(4, 4), wanted)


@pytest.mark.parametrize("swap", [False, True])
def test_causal_and_window_and_window_is_the_narrowest(swap: bool) -> None:
    a, b = Mask.causal() & Mask.window(3), Mask.window(2)
    both = b & a if swap else a & b
    assert torch.equal(both.to_tensor(5, 5), Mask.window(2).to_tensor(5, 5))


def test_a_mask_cannot_be_changed() -> None:
    mask = Mask.causal()
    with pytest.raises(dataclasses.FrozenInstanceError):
        mask.rules = ()  # type: ignore[misc]
    mask & Mask.window(2)  # type: ignore[unused-coroutine]
    assert torch.equal(mask.to_tensor(4, 4), LOWER)


def test_repr_says_in_words_who_sees_whom() -> None:
    text = repr(Mask.window(3) & Mask.lengths(torch.tensor([1, 2])) & Mask.hide(torch.zeros(1, 4, 4).bool()))
    assert text == (
        "Mask(a query sees its own key and the 2 before it, and only the first t[b] keys of its sequence b "
        "(t holds 2 lengths), and only the keys where a (1, 4, 4) tensor is False)"
    )
    assert repr(Mask.causal()) == "Mask(a query sees its own key and all before it)"
    assert repr(Mask.window(1)) == "Mask(a query sees its own key only)"
    assert "is True" in repr(Mask.keep(torch.ones(4, 4).bool()))


@given(
    T=st.integers(0, 7),
    S=st.integers(0, 7),
    offset=st.integers(-9, 9),
    n=st.sampled_from([None, 1, 2, 3, 9]),
)
@settings(max_examples=300, deadline=None)
def test_what_a_backend_is_told_is_what_the_mask_does(T: int, S: int, offset: int, n: int | None) -> None:
    mask = Mask.causal() if n is None else Mask.window(n)
    table = mask.to_tensor(T, S, offset=offset)
    region = mask.crop(Region(0, T, 0, S, offset))
    rows, keys = table.any(1).nonzero().flatten().tolist(), table.any(0).nonzero().flatten().tolist()
    if rows:
        assert (region.row, region.row + region.rows - 1) == (rows[0], rows[-1])
        assert (region.key, region.key + region.keys - 1) == (keys[0], keys[-1])
    else:
        assert region.rows == 0 or region.keys == 0
    inner = table[region.row : region.row + region.rows, region.key : region.key + region.keys]
    allowed = mask.allowed(region, torch.device("cpu"))
    assert torch.equal(torch.ones_like(inner) if allowed is None else allowed[0, 0], inner)
    if inner.numel():
        assert (allowed is None) == bool(inner.all())
        triangle = torch.equal(inner, torch.ones_like(inner).tril())
        assert mask.is_causal(region) == triangle or (triangle and inner.all())
    with_table = mask & Mask.keep(torch.ones(T, S, dtype=torch.bool))
    assert not with_table.is_causal(region)


def test_to_tensor_goes_to_the_asked_device() -> None:
    assert Mask.causal().to_tensor(2, 2, device="meta").device.type == "meta"
    assert Mask.lengths(torch.tensor([1], device="meta")).to_tensor(2, 2).device.type == "meta"
    assert Mask.causal().to_tensor(2, 2).device.type == "cpu"


def test_to_tensor_of_nothing_is_empty() -> None:
    assert Mask.causal().to_tensor(0, 3).shape == (0, 3)
    assert Mask.window(2).to_tensor(3, 0).shape == (3, 0)


@pytest.mark.parametrize("n", [0, -1])
def test_a_window_below_one_is_refused(n: int) -> None:
    with pytest.raises(ValueError, match=f"n={n}.*n ≥ 1"):
        Mask.window(n)


@pytest.mark.parametrize("n", [2.0, True, None, "3"])
def test_a_window_is_an_int(n: object) -> None:
    with pytest.raises(TypeError, match=r"Mask\.window needs an int"):
        Mask.window(n)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float32])
@pytest.mark.parametrize("make", [Mask.keep, Mask.hide])
def test_numbers_are_no_mask(make: object, dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match=r"needs a bool tensor.*t\.bool\(\).*bias"):
        make(torch.ones(4, 4, dtype=dtype))  # type: ignore[operator]


@pytest.mark.parametrize("shape", [(4,), (1, 1, 1, 4, 4)])
def test_keep_wants_two_to_four_axes(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"\(T, S\), \(B, T, S\) or \(B, H, T, S\)"):
        Mask.keep(torch.ones(shape, dtype=torch.bool))


@pytest.mark.parametrize("t", [torch.tensor([1.0]), torch.tensor([True]), [1, 2]])
def test_lengths_are_integers(t: object) -> None:
    with pytest.raises(TypeError, match=r"1-D integer tensor.*Mask\.keep"):
        Mask.lengths(t)  # type: ignore[arg-type]


def test_lengths_have_one_axis() -> None:
    with pytest.raises(ValueError, match=r"one length per sequence, got shape \(2, 1\)"):
        Mask.lengths(torch.ones(2, 1, dtype=torch.int64))


@pytest.mark.parametrize("other", [torch.ones(4, 4, dtype=torch.bool), None, 3])
def test_only_masks_combine(other: object) -> None:
    with pytest.raises(TypeError, match=r"must be a Mask.*Mask\.keep.*Mask\.hide"):
        Mask.causal() & other  # type: ignore[operator]


@pytest.mark.parametrize(
    ("shape", "hint"),
    [
        ((5, 4), "looks transposed"),
        ((2, 5), r"key padding of shape \(B, S\) as t\[:, None, None, :\]"),
        ((4, 6), r"give \(T, S\), \(B, T, S\) or \(B, H, T, S\)"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_with_the_likely_cause(
    shape: tuple[int, ...], hint: str
) -> None:
    with pytest.raises(ValueError, match=rf"Mask\.keep got a tensor of shape .* T=4, S=5; .*{hint}"):
        Mask.keep(torch.ones(shape, dtype=torch.bool)).to_tensor(4, 5)


def test_sizes_below_zero_are_refused() -> None:
    with pytest.raises(ValueError, match="T=-1"):
        Mask.causal().to_tensor(-1, 2)
