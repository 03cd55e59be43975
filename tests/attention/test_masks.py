"""What a mask is: its constructors, how masks combine, how they show themselves, what they refuse."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.attention import Mask, attention
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


TWO = torch.tensor([1, 2])
NUMBERS = torch.tensor([[0, 0, 1]])
ALL = torch.ones(1, 4, 4, dtype=torch.bool)
PADDED = "the first t[b] keys of its sequence b (t holds 2 lengths)"
WORDS = {
    "its own key and all before it": Mask.causal(),
    "its own key only": Mask.window(1),
    "its own key and the one before it": Mask.window(2),
    "its own key and the 2 before it": Mask.window(3),
    "the keys after its own": ~Mask.causal(),
    "the keys before its own": Mask.causal() & ~Mask.window(1),
    "the key before its own": Mask.window(2) & ~Mask.window(1),
    "the 3 keys before its own": Mask.window(4) & ~Mask.window(1),
    "the keys 2 to 4 places before its own": Mask.window(5) & ~Mask.window(2),
    "the key 4 places before its own": Mask.window(5) & ~Mask.window(4),
    "the keys 5 or more places before its own": Mask.causal() & ~Mask.window(5),
    "its own key and all after it": ~(Mask.causal() & ~Mask.window(1)),
    "its own key, the 2 before it and all after it": ~Mask.causal() | Mask.window(3),
    "the keys after its own, or the keys 3 or more places before its own": ~Mask.window(3),
    "every key": Mask.causal() | ~Mask.causal(),
    "no key": Mask.causal() & ~Mask.causal(),
    "the first 4 keys, or its own key and all before it": Mask.prefix(4),
    "the first key, or its own key and all before it": Mask.prefix(1),
    f"{PADDED}, or its own key and all before it": Mask.prefix(TWO),
    "the keys from 4 on, and only the keys after its own": ~Mask.prefix(4),
    "the keys of its own document (ids of shape (1, 3))": Mask.documents(NUMBERS),
    "the keys of other documents (ids of shape (1, 3))": ~Mask.documents(NUMBERS),
    "the keys where a (1, 4, 4) tensor is True": Mask.keep(ALL),
    "the keys where a (1, 4, 4) tensor is False": ~Mask.keep(ALL),
    "the keys from t[b] on of its sequence b (t holds 2 lengths)": ~Mask.lengths(TWO),
    f"its own key and the 2 before it, and only {PADDED}": Mask.window(3) & Mask.lengths(TWO),
    f"{PADDED}, and only the keys where a (1, 4, 4) tensor is False": Mask.lengths(TWO) & Mask.hide(ALL),
    f"(the first 4 keys, or its own key and all before it), and only {PADDED}": (
        Mask.prefix(4) & Mask.lengths(TWO)
    ),
    f"(the keys after its own, or the keys 3 or more places before its own), and only {PADDED}": (
        ~Mask.window(3) & Mask.lengths(TWO)
    ),
    "(its own key and all before it, and only the keys of its own document (ids of shape (1, 3))), "
    "or the keys where a (1, 4, 4) tensor is True": Mask.causal() & Mask.documents(NUMBERS) | Mask.keep(ALL),
}


@pytest.mark.parametrize("words", WORDS)
def test_a_mask_says_in_words_who_sees_whom(words: str) -> None:
    assert WORDS[words].words() == words
    assert repr(WORDS[words]) == f"Mask(a query sees {words})"


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
    with pytest.raises(TypeError, match=r"needs a bool tensor.*t\.bool\(\).*from_torch.*bias"):
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


def test_prefix_shows_the_first_keys_to_all() -> None:
    wanted = [[1, 1, 1, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    assert Mask.prefix(3).to_tensor(5, 5).int().tolist() == wanted
    assert Mask.prefix(3).to_tensor(2, 5).int().tolist() == wanted[3:]
    assert Mask.prefix(3).to_tensor(2, 5, offset=0).int().tolist() == wanted[:2]
    assert Mask.prefix(torch.tensor([0, 3])).to_tensor(5, 5)[:, 0].int().tolist() == [
        torch.ones(5, 5).tril().int().tolist(),
        wanted,
    ]


def test_documents_do_not_see_each_other() -> None:
    ids = torch.tensor([[7, 7, 2, 2, 2], [1, 0, 1, 1, 3]])
    table = Mask.documents(ids).to_tensor(5, 5)
    assert table.shape == (2, 1, 5, 5)
    assert torch.equal(table[:, 0], ids[:, :, None] == ids[:, None, :])
    assert torch.equal(Mask.documents(ids[1]).to_tensor(5, 5), table[1, 0])
    # the last two of five positions, as when three keys are in a cache
    assert torch.equal(Mask.documents(ids[1]).to_tensor(2, 5), table[1, 0, 3:])
    beyond = Mask.documents(ids[0]).to_tensor(3, 5, offset=-1)
    assert not beyond[0].any()
    assert torch.equal(beyond[1:], table[0, 0, :2])


@pytest.mark.parametrize("n", [-1, -7])
def test_a_prefix_below_zero_is_refused(n: int) -> None:
    with pytest.raises(ValueError, match=f"n={n}.*n ≥ 0"):
        Mask.prefix(n)


@pytest.mark.parametrize("n", [2.0, True, None, torch.tensor([1.0]), torch.tensor([True])])
def test_a_prefix_is_an_int_or_integers(n: object) -> None:
    with pytest.raises(TypeError, match=r"Mask\.prefix needs an? .*integer"):
        Mask.prefix(n)  # type: ignore[arg-type]


@pytest.mark.parametrize("ids", [[0, 1], torch.tensor([0.0]), torch.tensor([True])])
def test_document_numbers_are_integers(ids: object) -> None:
    with pytest.raises(TypeError, match=r"Mask\.documents needs an integer tensor.*Mask\.keep"):
        Mask.documents(ids)  # type: ignore[arg-type]


def test_document_numbers_have_one_or_two_axes() -> None:
    with pytest.raises(ValueError, match=r"\(S,\) or \(B, S\), got \(1, 1, 2\)"):
        Mask.documents(torch.zeros(1, 1, 2, dtype=torch.int64))


@pytest.mark.parametrize("other", [torch.ones(4, 4, dtype=torch.bool), None, 3])
def test_only_masks_combine(other: object) -> None:
    with pytest.raises(TypeError, match=r"must be a Mask.*Mask\.keep.*Mask\.hide"):
        Mask.causal() & other  # type: ignore[operator]


BOOLS = torch.bool
MISFITS: dict[str, tuple[Mask, str]] = {
    "transposed": (Mask.keep(torch.ones(5, 4, dtype=BOOLS)), "it looks transposed: rows are queries"),
    "padding (B, 1, S, 1)": (Mask.keep(torch.ones(3, 1, 5, 1, dtype=BOOLS)), "it looks transposed"),
    "padding (B, S)": (
        Mask.keep(torch.ones(3, 5, dtype=BOOLS)),
        r"key padding of shape \(B, S\) as t\[:, None",
    ),
    "padding (S, B)": (
        Mask.keep(torch.ones(5, 3, dtype=BOOLS)),
        r"batch and time look swapped.*t\.T\[:, None",
    ),
    "padding (S, 1, 1, B)": (Mask.hide(torch.ones(5, 1, 1, 3, dtype=BOOLS)), "batch and time look swapped"),
    "table (T, B, S)": (Mask.hide(torch.ones(4, 3, 5, dtype=BOOLS)), r"swapped: write t\.transpose\(0, 1\)"),
    "table (H, T, S)": (
        Mask.keep(torch.ones(2, 4, 5, dtype=BOOLS)),
        r"three axes are \(B, T, S\).*t\[None\]",
    ),
    "table (B·H, T, S)": (
        Mask.keep(torch.ones(6, 4, 5, dtype=BOOLS)),
        r"Mask\.from_torch\(attn_mask=…, n_head",
    ),
    "other keys": (Mask.keep(torch.ones(4, 6, dtype=BOOLS)), r"give \(T, S\), \(B, T, S\) or \(B, H, T, S\)"),
    "length per key": (
        Mask.lengths(torch.arange(5)),
        "5 lengths for a batch of 3; batch and time look swapped",
    ),
    "other batch": (Mask.lengths(torch.arange(2)), "2 lengths for a batch of 3; give one per sequence"),
    "prefix of other batch": (Mask.prefix(torch.arange(2)), r"Mask\.prefix got 2 lengths for a batch of 3"),
    "ids (S, B)": (Mask.documents(torch.zeros(5, 3).int()), r"batch and time look swapped: write ids\.T"),
    "ids of queries": (Mask.documents(torch.zeros(4).int()), "ids number every key, those in a cache too"),
    "ids of other batch": (
        Mask.documents(torch.zeros(2, 5).int()),
        r"shape \(2, 5\) for S=5 and a batch of 3",
    ),
}


@pytest.mark.parametrize("name", MISFITS)
@pytest.mark.parametrize("wrap", [lambda m: m, lambda m: ~m, lambda m: Mask.window(2) | ~m & Mask.prefix(1)])
def test_a_mask_that_does_not_fit_is_refused_with_the_likely_cause(
    name: str, wrap: Callable[[Mask], Mask]
) -> None:
    mask, hint = MISFITS[name]
    with pytest.raises(ValueError, match=hint):
        wrap(mask).check(4, 5, B=3, H=2)
    q, k = torch.zeros(3, 2, 4, 1), torch.zeros(3, 2, 5, 1)
    with pytest.raises(ValueError, match=hint):
        attention(q, k, k, mask=wrap(mask))


def test_sizes_below_zero_are_refused() -> None:
    with pytest.raises(ValueError, match="T=-1"):
        Mask.causal().to_tensor(-1, 2)


@pytest.mark.parametrize("make", [Mask.lengths, Mask.prefix])
def test_a_length_below_0_is_refused_and_one_beyond_the_keys_means_all(
    make: Callable[[torch.Tensor], Mask],
) -> None:
    with pytest.raises(ValueError, match="got -1; it counts keys from the first one on, so give at least 0"):
        make(torch.tensor([2, -1]))
    assert make(torch.tensor([9])).to_tensor(2, 3).all()
