"""Blockwise attention beyond being right: linear memory, skipped tiles, dropout that repeats itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from headwise.attention import Mask, attention, blockwise_passes
from headwise.attention.dropout import PairDropout
from headwise.attention.tiles import TileSizes

Watch = Callable[[], Any]


@pytest.fixture
def tiles(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int, int], None]:
    """Sets how many queries, keys and heads a tile has."""

    def set_sizes(queries: int, keys: int, heads: int) -> None:
        monkeypatch.setattr(blockwise_passes, "tile_sizes", lambda _: TileSizes(queries, keys, heads))

    return set_sizes


def leaves(T: int, S: int | None = None, *, B: int = 1, H: int = 2, G: int = 2, K: int = 4) -> list[Tensor]:
    generator = torch.Generator().manual_seed(T)
    shapes = (B, H, T, K), (B, G, S or T, K), (B, G, S or T, K)
    return [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]


def both_ways(*inputs: Tensor, **options: Any) -> list[Tensor]:
    out = attention(*inputs, backend="blockwise", **options)
    return [out, *torch.autograd.grad(out.square().sum(), inputs)]


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("kind", ["none", "causal", "padding", "window"])
def test_nothing_as_large_as_the_scores_is_made_in_either_direction(
    kind: str, dropout: float, tiles: Callable[..., None], operations: Watch
) -> None:
    tiles(32, 64, 2)
    T = 512
    mask = {
        "none": None,
        "causal": Mask.causal(),
        "padding": Mask.causal() & Mask.lengths(torch.tensor([T - 7])),
        "window": Mask.window(20),
    }[kind]
    with operations() as seen:
        both_ways(*leaves(T), mask=mask, dropout=dropout)
    assert seen.largest() == 2 * T * 4  # the inputs: 4 numbers per query or key
    assert seen.largest(torch.bool) <= 32 * T


def test_what_is_saved_for_backward_grows_linearly(tiles: Callable[..., None]) -> None:
    tiles(32, 64, 2)

    def saved(T: int) -> int:
        sizes: dict[int, int] = {}

        def note(t: Tensor) -> Tensor:
            sizes[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
            return t

        with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
            attention(*leaves(T), mask=Mask.causal(), dropout=0.1, backend="blockwise")
        return sum(sizes.values())

    # q, k, v, out of 4 numbers; the log of the denominator and the dropout's number per query and head,
    # its number per key; nothing is kept aside from what is saved
    assert saved(512) == 4 * (2 * 512 * (4 * 4 + 2) + 512)
    assert saved(1024) == 2 * saved(512)


@pytest.mark.parametrize(
    ("mask", "tiles_of_64"),
    [
        (None, 64),
        (Mask.causal(), 36),
        (Mask.window(64), 15),
        (Mask.prefix(64), 36),
        (Mask.documents(torch.arange(512) // 128), 16),
        (Mask.documents(torch.arange(512) // 128) & Mask.causal(), 12),
        (Mask.lengths(torch.tensor([100])), 16),
        (Mask.keep(torch.ones(512, 512, dtype=torch.bool)), 64),
        (Mask.hide(torch.ones(512, 512, dtype=torch.bool)), 0),
    ],
)
def test_tiles_in_which_nothing_is_seen_are_skipped(
    mask: Mask | None, tiles_of_64: int, tiles: Callable[..., None], operations: Watch
) -> None:
    tiles(64, 64, 2)
    q, k, v = leaves(512)
    with operations() as seen, torch.no_grad():
        attention(q, k, v, mask=mask, backend="blockwise")
    assert seen.count("bmm") == tiles_of_64


def test_sequences_that_end_early_cost_less(tiles: Callable[..., None], operations: Watch) -> None:
    tiles(64, 64, 2)
    q, k, v = leaves(256, B=2)
    with operations() as seen, torch.no_grad():
        attention(q, k, v, mask=Mask.lengths(torch.tensor([64, 256])), backend="blockwise")
    assert seen.count("bmm") == 4 * (1 + 4)


def test_no_table_is_made_for_tiles_that_are_seen_whole(
    tiles: Callable[..., None], operations: Watch
) -> None:
    tiles(64, 64, 2)
    q, k, v = leaves(512)
    with operations() as seen, torch.no_grad():
        attention(q, k, v, mask=Mask.causal(), backend="blockwise")
    assert seen.count("masked_fill_") == 8  # on the diagonal


def test_only_wanted_gradients_are_computed(tiles: Callable[..., None], operations: Watch) -> None:
    tiles(64, 64, 2)
    q, k, v = (t.detach() for t in leaves(64))
    wanted = attention(q, k, v.requires_grad_(), backend="blockwise")
    with operations() as seen:
        (grad,) = torch.autograd.grad(wanted.sum(), v)
    assert seen.count("baddbmm_") <= 2
    torch.testing.assert_close(grad, torch.autograd.grad(attention(q, k, v, backend="reference").sum(), v)[0])


def test_dropout_keeps_the_right_share_everywhere() -> None:
    torch.manual_seed(0)
    for p in (0.1, 0.5, 0.9):
        kept = PairDropout.draw(p, (2, 2, 512, 768), torch.device("cpu")).kept().double()
        deviation = (kept - (1 - p)) / math.sqrt(p * (1 - p))  # mean 0, variance 1
        assert abs(deviation.mean()) * math.sqrt(deviation.numel()) < 4
        for axis, size in ((-1, 768), (-2, 512)):
            sums = deviation.sum(axis) / math.sqrt(size)
            assert abs(sums.var() - 1) < 0.15
            assert sums.abs().max() < 5
        # neither two rows nor two columns nor two heads go together
        flat = deviation.flatten(0, 2)
        together = flat @ flat.mT / math.sqrt(768)
        together = together[~torch.eye(2048, dtype=torch.bool)]
        assert abs(together.var() - 1) < 0.02
        assert together.abs().max() < 7


def test_dropout_does_not_depend_on_the_tiles(tiles: Callable[..., None]) -> None:
    q, k, v = leaves(23, 29, B=2, H=6, G=3)
    results = []
    for sizes in ((23, 29, 6), (5, 7, 2), (1, 1, 1), (16, 4, 3)):
        tiles(*sizes)
        torch.manual_seed(4)
        results.append(both_ways(q, k, v, mask=Mask.causal(), dropout=0.4))
    for result in results[1:]:
        for a, b in zip(result, results[0], strict=True):
            torch.testing.assert_close(a, b)


def test_the_seed_fixes_dropout_and_every_call_draws_anew() -> None:
    q, k, v = leaves(16)
    torch.manual_seed(1)
    first, second = (attention(q, k, v, dropout=0.5, backend="blockwise") for _ in range(2))
    torch.manual_seed(1)
    assert torch.equal(attention(q, k, v, dropout=0.5, backend="blockwise"), first)
    assert not torch.allclose(first, second)
    before = torch.get_rng_state()
    attention(q, k, v, backend="blockwise")
    assert torch.equal(torch.get_rng_state(), before)


def test_gradients_with_dropout_are_those_of_finite_differences(tiles: Callable[..., None]) -> None:
    tiles(2, 3, 1)
    q, k, v = (t.detach().double().requires_grad_() for t in leaves(4, 5, H=4, K=3))
    bias = torch.randn(4, 1, 5, dtype=torch.float64, requires_grad=True)
    sink = torch.randn(4, dtype=torch.float64, requires_grad=True)

    def run(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, sink: Tensor) -> Tensor:
        torch.manual_seed(0)
        return attention(
            q,
            k,
            v,
            bias=bias,
            sink=sink,
            softcap=1.5,
            mask=Mask.causal(),
            dropout=0.3,
            backend="blockwise",
        )

    assert torch.autograd.gradcheck(run, (q, k, v, bias, sink))


def test_checkpointing_repeats_the_dropout() -> None:
    q, k, v = leaves(33)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v, mask=Mask.causal(), dropout=0.3, backend="blockwise")

    torch.manual_seed(2)
    wanted = torch.autograd.grad(run(q, k, v).square().sum(), (q, k, v))
    torch.manual_seed(2)
    out = checkpoint(run, q, k, v, use_reentrant=False)
    for a, b in zip(torch.autograd.grad(out.square().sum(), (q, k, v)), wanted, strict=True):
        assert torch.equal(a, b)


def test_second_derivatives_and_transforms_are_refused() -> None:
    q, k, v = leaves(5)
    with pytest.raises(RuntimeError, match=r"no second derivatives.*backend='reference'"):
        torch.autograd.grad(attention(q, k, v, backend="blockwise").sum(), q, create_graph=True)
    many = torch.randn(3, 1, 2, 5, 4)
    with pytest.raises(ValueError, match=r"'blockwise' cannot run.*torch\.func.*vmap"):
        torch.vmap(lambda q: attention(q, k, v, backend="blockwise"))(many)
    with pytest.raises(ValueError, match=r"'blockwise' cannot run.*torch\.func"):
        torch.func.grad(lambda q: attention(q, k, v, backend="blockwise").sum())(q)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo looks at it
def test_compiled_code_breaks_off_for_it_and_auto_avoids_that() -> None:
    q, k, v = leaves(9)

    def run(q: Tensor, backend: str) -> Tensor:
        return 2 * attention(q * 2, k, v, mask=Mask.causal(), backend=backend)

    torch._dynamo.reset()
    compiled = torch.compile(run, backend="eager")
    torch.testing.assert_close(compiled(q, "blockwise"), run(q, "blockwise"))
    whole = torch.compile(run, backend="eager", fullgraph=True)
    torch.testing.assert_close(whole(q, "auto"), run(q, "auto"))
    torch._dynamo.reset()
