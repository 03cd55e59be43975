"""Masks combined by and, or, not: what a combination allows, and what it says of itself without looking."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._dynamo.utils import counters
from torch.utils._python_dispatch import TorchDispatchMode

from headwise.attention import Mask
from headwise.attention.mask_spans import complement, intersection, union
from headwise.attention.masks import Region

CPU = torch.device("cpu")
B, H = 2, 3


@st.composite
def calls(draw: st.DrawFn) -> tuple[int, int, int]:
    """T, S and an offset, the default one as often as not."""
    T, S = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    return T, S, draw(st.one_of(st.just(S - T), st.integers(-8, 8)))


def atoms(T: int, S: int) -> st.SearchStrategy[Mask]:
    """One mask of each kind that fits."""
    table = st.builds(
        lambda seed, shape: torch.rand(shape, generator=torch.Generator().manual_seed(seed)) > 0.4,
        st.integers(0, 9),
        st.sampled_from([(T, S), (B, T, S), (B, 1, 1, S), (1, H, T, S), (B, H, 1, S)]),
    )
    numbers = st.lists(st.integers(0, S + 1), min_size=B, max_size=B).map(torch.tensor)
    ids = st.lists(st.lists(st.integers(0, 2), min_size=S, max_size=S), min_size=B, max_size=B).map(
        torch.tensor
    )
    return st.one_of(
        st.just(Mask.causal()),
        st.integers(1, 7).map(Mask.window),
        st.integers(0, 7).map(Mask.prefix),
        numbers.map(Mask.prefix),
        numbers.map(Mask.lengths),
        ids.map(Mask.documents),
        ids.map(lambda t: Mask.documents(t[0].sort().values)),
        table.map(Mask.keep),
        table.map(Mask.hide),
    )


def trees(T: int, S: int) -> st.SearchStrategy[Mask]:
    return st.recursive(
        atoms(T, S),
        lambda parts: st.one_of(
            st.tuples(parts, parts).map(lambda pair: pair[0] & pair[1]),
            st.tuples(parts, parts).map(lambda pair: pair[0] | pair[1]),
            parts.map(lambda mask: ~mask),
        ),
        max_leaves=4,
    )


def shown(mask: Mask, T: int, S: int, offset: int) -> Tensor:
    return mask.to_tensor(T, S, offset=offset).expand(B, H, T, S)


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_the_laws_of_and_or_not(data: st.DataObject) -> None:
    T, S, offset = data.draw(calls())
    a, b, c = (data.draw(trees(T, S)) for _ in range(3))

    def same(one: Mask, table: Tensor) -> None:
        assert torch.equal(shown(one, T, S, offset), table)

    x, y, z = (shown(mask, T, S, offset) for mask in (a, b, c))
    same(a & b, x & y)
    same(a | b, x | y)
    same(~a, ~x)
    same(~~a, x)
    same(~(a & b), ~x | ~y)
    same(~(a | b), ~x & ~y)
    same(a & (b | c), x & (y | z))
    same(a | (b & c), x | (y & z))
    same(a & a, x)
    same(a | (a & b), x)
    same(a & ~a, torch.zeros_like(x))
    same(a | ~a, torch.ones_like(x))


@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_what_a_backend_is_told_is_true_of_any_combination_and_any_tile(data: st.DataObject) -> None:
    T, S, offset = data.draw(calls())
    mask = data.draw(trees(T, S))
    table = shown(mask, T, S, offset)
    row, key = data.draw(st.integers(0, T - 1)), data.draw(st.integers(0, S - 1))
    rows, keys = data.draw(st.integers(1, T - row)), data.draw(st.integers(1, S - key))
    tile = Region(row, rows, key, keys, offset)
    within = table[:, :, row : row + rows, key : key + keys]

    cropped = mask.crop(tile)
    assert row <= cropped.row <= cropped.row + cropped.rows <= row + rows
    assert key <= cropped.key <= cropped.key + cropped.keys <= key + keys
    left = torch.zeros_like(table)
    left[:, :, cropped.row : cropped.row + cropped.rows, cropped.key : cropped.key + cropped.keys] = True
    assert not (within & ~left[:, :, row : row + rows, key : key + keys]).any()

    allowed = mask.allowed(tile, CPU)
    assert torch.equal(torch.ones_like(within) if allowed is None else allowed.expand_as(within), within)
    if mask.hides_nothing(tile):
        assert within.all()
    if mask.is_causal(tile):
        assert torch.equal(within, torch.ones_like(within).tril())
    assert mask.varies_by_head() or torch.equal(table, table[:, :1].expand_as(table))
    mask.check(T, S, B=B, H=H, device=CPU)


@given(
    T=st.integers(1, 7),
    S=st.integers(1, 7),
    offset=st.integers(-9, 9),
    sizes=st.lists(st.integers(1, 8), min_size=1, max_size=4),
    signs=st.lists(st.integers(0, 2), min_size=4, max_size=4),
)
@settings(max_examples=150, deadline=None)
def test_of_positions_alone_everything_is_known_exactly(
    T: int, S: int, offset: int, sizes: list[int], signs: list[int]
) -> None:
    mask = Mask.causal()
    for n, sign in zip(sizes, signs, strict=False):
        window = Mask.window(n)
        mask = (mask & window, mask | ~window, ~mask | window)[sign]
    table, region = mask.to_tensor(T, S, offset=offset), Region(0, T, 0, S, offset)
    assert mask.hides_nothing(region) == bool(table.all())
    cropped = mask.crop(region)
    assert cropped.empty != bool(table.any())
    if not cropped.empty:
        inner = table[cropped.row : cropped.row + cropped.rows, cropped.key : cropped.key + cropped.keys]
        assert inner.sum() == table.sum()
        assert inner[0].any()
        assert inner[-1].any()
        assert inner[:, 0].any()
        assert inner[:, -1].any()


@given(T=st.integers(1, 7), S=st.integers(1, 7), offset=st.integers(-9, 9), n=st.integers(0, 9))
@settings(max_examples=200, deadline=None)
def test_a_prefix_is_known_exactly(T: int, S: int, offset: int, n: int) -> None:
    mask, region = Mask.prefix(n), Region(0, T, 0, S, offset)
    table = mask.to_tensor(T, S, offset=offset)
    wanted = torch.tensor([[j < n or j <= offset + i for j in range(S)] for i in range(T)])
    assert torch.equal(table, wanted)
    assert mask.hides_nothing(region) == bool(wanted.all())
    assert mask.crop(region).empty != bool(wanted.any())


@given(
    ids=st.lists(st.lists(st.integers(0, 3), min_size=6, max_size=6), min_size=1, max_size=2),
    ascending=st.booleans(),
    offset=st.integers(-4, 8),
    T=st.integers(1, 6),
    tile=st.tuples(*[st.integers(0, 5)] * 4),
)
@settings(max_examples=150, deadline=None)
def test_documents_are_known_exactly_where_they_lie_in_one_piece(
    ids: list[list[int]], ascending: bool, offset: int, T: int, tile: tuple[int, int, int, int]
) -> None:
    table = torch.tensor([sorted(row) for row in ids] if ascending else ids)
    mask = Mask.documents(table)
    wanted = torch.tensor(
        [
            [[0 <= offset + i < 6 and row[offset + i] == row[j] for j in range(6)] for i in range(T)]
            for row in table.tolist()
        ]
    )
    assert torch.equal(mask.to_tensor(T, 6, offset=offset).reshape_as(wanted), wanted)
    row, key = min(tile[0], T - 1), tile[1]
    rows, keys = 1 + tile[2] % (T - row), 1 + tile[3] % (6 - key)
    region, within = Region(row, rows, key, keys, offset), wanted[:, row : row + rows, key : key + keys]
    cropped = mask.crop(region)
    if not cropped.empty:
        start, stop = cropped.row - row, cropped.row - row + cropped.rows
        assert (
            within[:, start:stop, cropped.key - key : cropped.key - key + cropped.keys].sum() == within.sum()
        )
    else:
        assert not within.any()
    if mask.hides_nothing(region):
        assert within.all()
    if ascending and len(ids) == 1:
        assert cropped.empty != bool(within.any())
        assert mask.hides_nothing(region) == bool(within.all())


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 4)), max_size=3), st.booleans(), st.booleans())
@settings(max_examples=150, deadline=None)
def test_spans_are_sets(starts: list[tuple[int, int]], open_low: bool, open_high: bool) -> None:
    low, high = -9, 10
    spans = union((), ())
    members = set()
    for start, size in starts:
        if size:
            spans = union(spans, ((start, start + size),))
            members |= set(range(start, start + size))
    if open_low:
        spans, members = union(spans, ((None, -6),)), members | set(range(low, -6))
    if open_high:
        spans, members = union(spans, ((7, None),)), members | set(range(7, high))

    def listed(spans: Any) -> set[int]:
        return {
            x for x in range(low, high) for a, b in spans if (a is None or a <= x) and (b is None or x < b)
        }

    assert listed(spans) == members
    assert listed(complement(spans)) == set(range(low, high)) - members
    assert complement(complement(spans)) == spans
    assert intersection(spans, complement(spans)) == ()
    assert union(spans, complement(spans)) == ((None, None),)


def test_what_can_be_said_shorter_is() -> None:
    t = torch.ones(2, 2, dtype=torch.bool)
    causal, window = Mask.causal(), Mask.window
    assert (window(3) & window(5) & causal).rules == window(3).rules
    assert (window(3) | window(5)).rules == window(5).rules
    assert (causal | window(5)).rules == causal.rules
    assert (~~(causal & Mask.keep(t))).rules == (causal & Mask.keep(t)).rules
    assert (~Mask.keep(t)).rules == Mask.hide(t).rules
    assert (~Mask.hide(t)).rules == Mask.keep(t).rules
    assert (causal | ~causal).rules == ()
    assert (Mask.prefix(3) | Mask.prefix(5)).rules == Mask.prefix(5).rules
    assert Mask.prefix(0).rules == causal.rules
    assert (causal & (causal | Mask.keep(t))).rules == causal.rules
    assert (causal & Mask.prefix(4)).rules == causal.rules


def test_masks_for_different_batches_do_not_combine() -> None:
    two, three = Mask.lengths(torch.tensor([1, 2])), Mask.lengths(torch.tensor([1, 2, 3]))
    for combine in (lambda: two & three, lambda: two | three, lambda: two & (Mask.causal() | ~three)):
        with pytest.raises(ValueError, match=r"masks for \d and for \d sequences cannot be combined"):
            combine()
    heads = [Mask.keep(torch.ones(1, n, 2, 2, dtype=torch.bool)) for n in (2, 3)]
    with pytest.raises(ValueError, match="masks for 2 and for 3 heads"):
        heads[0] & heads[1]
    assert (two & Mask.lengths(torch.tensor([1]))).to_tensor(2, 2).shape == (2, 1, 2, 2)


@pytest.mark.parametrize(
    "combine", [lambda a, b: a | b, lambda a, b: b | a if isinstance(b, Mask) else a | b]
)
def test_only_masks_combine_by_or(combine: Callable[[Any, Any], Mask]) -> None:
    with pytest.raises(TypeError, match=r"must be a Mask.*Mask\.keep.*Mask\.hide"):
        combine(Mask.causal(), torch.ones(4, 4, dtype=torch.bool))


class _Largest(TorchDispatchMode):
    """Remembers the largest tensor that any operation makes."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and out.untyped_storage().nbytes() >= out.numel() * out.element_size():
            self.elements = max(self.elements, out.numel())  # a broadcast view holds less than it shows
        return out


PADDING = torch.rand(4, 1, 1, 16) > 0.3
BROADCAST = {
    "padding": Mask.keep(PADDING),
    "padding & causal": Mask.keep(PADDING) & Mask.causal(),
    "padding | prefix": Mask.hide(PADDING) | Mask.prefix(torch.tensor([1, 2, 3, 4])),
    "not (padding & window)": ~(Mask.keep(PADDING) & Mask.window(3)),
    "lengths & documents": Mask.lengths(torch.tensor([1, 9, 16, 3])) & Mask.documents(torch.arange(16) // 4),
}


@pytest.mark.parametrize("name", BROADCAST)
def test_padding_is_never_spread_over_the_heads(name: str) -> None:
    mask, T, S = BROADCAST[name], 16, 16
    with _Largest() as recorder:
        mask.check(T, S, B=4, H=8, device=CPU)
        region = mask.crop(Region(0, T, 0, S, 0))
        table = mask.allowed(region, CPU)
        shown = mask.to_tensor(T, S)
    assert table is not None
    assert table.shape[1] == shown.shape[1] == 1
    assert recorder.elements <= 4 * T * S < 4 * 8 * T * S


def test_padding_alone_stays_a_row() -> None:
    for mask in (Mask.keep(PADDING), Mask.hide(PADDING), ~Mask.lengths(torch.tensor([1, 2, 3, 4]))):
        with _Largest() as recorder:
            table = mask.allowed(Region(0, 16, 0, 16, 0), CPU)
        assert table is not None
        assert table.shape == (4, 1, 1, 16)
        assert recorder.elements <= 4 * 16


def test_a_tensor_is_kept_not_copied() -> None:
    table = torch.rand(2, 1, 4, 4) > 0.5
    for mask in (Mask.keep(table), Mask.hide(table), ~Mask.keep(table), Mask.causal() | ~Mask.hide(table)):
        kept = [tensor for rule in mask.rules for tensor in rule.tensors()]
        assert [tensor.data_ptr() for tensor in kept] == [table.data_ptr()]


def test_positions_are_not_materialised_to_be_asked() -> None:
    T = 10**9
    mask = (Mask.window(5) | Mask.prefix(7)) & ~Mask.window(2)
    with _Largest() as recorder:
        assert mask.crop(Region(0, T, 0, T, 0)).rows == T
        assert mask.crop(Region(0, 100, T // 2, 100, 0)).empty
        assert mask.hides_nothing(Region(T // 2, 100, 10, 20, 0)) is True
        assert Mask.causal().is_causal(Region(0, T, 0, T, 0))
        assert Mask.prefix(3).is_causal(Region(5, T, 5, T, 0))
    assert recorder.elements == 0


def test_the_device_of_a_combination_is_that_of_its_tensors() -> None:
    meta = Mask.causal() | ~Mask.lengths(torch.tensor([1], device="meta"))
    assert meta.device == torch.device("meta")
    assert meta.to_tensor(2, 2).device.type == "meta"
    with pytest.raises(ValueError, match=r"is on meta and q is on cpu; move one with \.to"):
        meta.check(2, 2, device=CPU)


@pytest.fixture
def _clean() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("_clean")
def test_a_combination_compiles_into_one_graph() -> None:
    def looked_at(ids: Tensor, lengths: Tensor) -> Tensor:
        T = ids.shape[0]
        mask = Mask.prefix(3) & Mask.lengths(lengths) | Mask.documents(ids)
        table = mask.allowed(mask.crop(Region(0, T, 0, T, 0)), CPU)
        assert table is not None
        return table.int()

    fast = torch.compile(looked_at, fullgraph=True, backend="eager")
    for T in (17, 18, 19):
        ids, lengths = torch.arange(T) // 5, torch.tensor([3, T])
        assert torch.equal(fast(ids, lengths), looked_at(ids, lengths))
    assert counters["stats"]["unique_graphs"] <= 2
