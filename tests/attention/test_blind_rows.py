"""Queries that see nothing, keys that nobody sees, and NaN in either."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from headwise.attention import LayerCache, Mask, attention

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
NAN = float("nan")


def inputs(
    T: int, S: int, *, H: int = 4, G: int = 2, B: int = 2, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    shapes = (B, H, T, 4), (B, G, S, 4), (B, G, S, 4)
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


def row_one(T: int, S: int) -> Mask:
    hidden = torch.zeros(T, S, dtype=torch.bool)
    hidden[1] = True
    return Mask.hide(hidden)


BLINDING = {
    "one row": row_one(4, 4),
    "one row, causal too": row_one(4, 4) & Mask.causal(),
    "left padding & causal": Mask.causal() & Mask.hide(torch.tensor([[True, True, False, False]])),
    "a whole head": Mask.keep(
        torch.tensor([True, False, True, True])[None, :, None, None].expand(1, 4, 1, 4)
    ),
    "a whole sequence": Mask.lengths(torch.tensor([4, 0])),
    "padding & window": Mask.window(2) & Mask.lengths(torch.tensor([1, 4])),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", BLINDING)
def test_a_blind_row_is_zero_and_leaves_the_others_alone(name: str, dtype: torch.dtype, backend: str) -> None:
    mask, leaves = BLINDING[name], inputs(4, 4, dtype=dtype)
    q, k, v = leaves
    blind = ~mask.to_tensor(4, 4).expand(2, 4, 4, 4).any(-1)
    assert blind.any()
    into = torch.randn(2, 4, 4, 4, generator=torch.Generator().manual_seed(6)).to(dtype)
    out = attention(q, k, v, mask=mask, backend=backend)
    assert torch.equal(out[blind], torch.zeros_like(out[blind]))
    assert out[~blind].isfinite().all()
    grads = torch.autograd.grad(out, leaves, into)
    assert torch.equal(grads[0][blind], torch.zeros_like(grads[0][blind]))
    # what the blind rows hold, and what comes back to them, must not matter at all
    wild = q.detach().masked_fill(blind[..., None], NAN).requires_grad_()
    again = attention(wild, k, v, mask=mask, backend=backend)
    assert torch.equal(again, out)
    poisoned = torch.autograd.grad(again, [wild, k, v], into.masked_fill(blind[..., None], NAN))
    for grad, wanted in zip(poisoned, grads, strict=True):
        assert grad.isfinite().all()
        assert torch.equal(grad, wanted)


@pytest.mark.parametrize("name", BLINDING)
def test_no_nan_arises_on_the_way_back(name: str, backend: str) -> None:
    q, k, v = leaves = inputs(4, 4)
    bias = torch.zeros(4, 4, dtype=torch.float64)
    bias[2] = -torch.inf
    bias.requires_grad_(backend != "sdpa")
    with torch.autograd.set_detect_anomaly(True):  # raises at the first operation that returns NaN
        out = attention(q, k, v, mask=BLINDING[name], bias=bias, backend=backend)
        grads = torch.autograd.grad(out.sum(), [*leaves, bias] if bias.requires_grad else leaves)
    assert torch.equal(out[:, :, 2], torch.zeros_like(out[:, :, 2]))
    assert all(grad.isfinite().all() for grad in grads)


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_of_a_blind_row_are_zero(dtype: torch.dtype) -> None:
    q, k, v = inputs(4, 4, dtype=dtype)
    _, weights = attention(q, k, v, mask=row_one(4, 4), return_weights=True)
    assert torch.equal(weights[:, :, 1], torch.zeros_like(weights[:, :, 1]))
    torch.testing.assert_close(weights[:, :, [0, 2, 3]].sum(-1), torch.ones(2, 4, 3, dtype=dtype))
    grads = torch.autograd.grad(weights.square().sum(), [q, k])
    assert torch.equal(grads[0][:, :, 1], torch.zeros_like(grads[0][:, :, 1]))
    assert all(grad.isfinite().all() for grad in grads)


def test_gradients_equal_those_without_the_blind_row(backend: str) -> None:
    leaves = inputs(4, 4)
    q, k, v = leaves
    grads = torch.autograd.grad(attention(q, k, v, mask=row_one(4, 4), backend=backend).sum(), leaves)
    short = q[:, :, [0, 2, 3]].detach().requires_grad_()
    wanted = torch.autograd.grad(attention(short, k, v, backend=backend).sum(), [short, k, v])
    torch.testing.assert_close(grads[0][:, :, [0, 2, 3]], wanted[0])
    torch.testing.assert_close(grads[1], wanted[1])
    torch.testing.assert_close(grads[2], wanted[2])


def test_scores_far_below_zero_do_not_revive_a_blind_row(backend: str) -> None:
    for dtype in DTYPES:
        q, k, v = inputs(3, 3, dtype=dtype)
        q, k = q.detach() * 0 - 20, k.detach() * 0 + 20
        mask = row_one(3, 3) & Mask.causal() & Mask.lengths(torch.tensor([2, 3]))
        out = attention(q, k, v, mask=mask, backend=backend)
        assert torch.equal(out[:, :, 1], torch.zeros_like(out[:, :, 1]))
        torch.testing.assert_close(out[:, :, 0], v[:, :, 0].repeat_interleave(2, dim=1))


@pytest.mark.parametrize("mask", [None, Mask.causal(), Mask.lengths(torch.tensor([4, 3]))])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("S", [4, 7, 8, 9, 15, 16, 17, 33])
def test_a_nan_in_a_query_stays_in_its_row(
    S: int, dtype: torch.dtype, mask: Mask | None, backend: str
) -> None:
    q, k, v = (t.detach().clone() for t in inputs(S, S, dtype=dtype))
    clean = attention(q, k, v, mask=mask, backend=backend)
    q[0, 1, 2] = NAN
    out = attention(q, k, v, mask=mask, backend=backend)
    assert out[0, 1, 2].isnan().all()
    out[0, 1, 2] = clean[0, 1, 2]
    torch.testing.assert_close(out, clean)


HIDING: dict[str, tuple[Mask, int, int | None, list[int]]] = {
    "padding": (Mask.lengths(torch.tensor([3, 3])), 5, None, [3, 4]),
    "padding & causal": (Mask.causal() & Mask.lengths(torch.tensor([3, 3])), 5, None, [3, 4]),
    "slots after the last query": (Mask.causal(), 2, 1, [3, 4]),
    "slots left of the window": (Mask.window(2), 2, None, [0, 1]),
    "a column of a table": (Mask.hide(torch.tensor([[False, True, False, False, True]])), 3, None, [1, 4]),
    "one decoding step": (Mask.lengths(torch.tensor([3, 3])), 1, None, [3, 4]),
    "one windowed step": (Mask.window(2) & Mask.lengths(torch.tensor([4, 4])), 1, None, [0, 1, 2, 4]),
    "queries before all keys": (Mask.causal(), 2, -4, [0, 1, 2, 3, 4]),
}


@pytest.mark.parametrize("name", HIDING)
def test_nan_hidden_from_every_query_never_leaks(name: str, backend: str) -> None:
    mask, T, offset, hidden = HIDING[name]
    leaves = inputs(T, 5)
    clean = attention(*leaves, mask=mask, offset=offset, backend=backend)
    wanted = torch.autograd.grad(clean.sum(), leaves)
    q, k, v = (t.detach().clone() for t in leaves)
    k[:, :, hidden] = NAN
    v[:, :, hidden] = NAN
    dirty = [t.requires_grad_() for t in (q, k, v)]
    out = attention(*dirty, mask=mask, offset=offset, backend=backend)
    assert torch.equal(out, clean)
    grads = torch.autograd.grad(out.sum(), dirty)
    for grad, want in zip(grads, wanted, strict=True):
        assert torch.equal(grad, want)
    for grad in grads[1:]:
        assert torch.equal(grad[:, :, hidden], torch.zeros_like(grad[:, :, hidden]))
    if backend == "reference":
        _, weights = attention(*dirty, mask=mask, offset=offset, return_weights=True)
        assert torch.equal(weights[..., hidden], torch.zeros_like(weights[..., hidden]))
        assert weights.isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("S", [3, 15, 16, 17, 24, 31, 33, 64, 70])
def test_nan_hidden_from_every_query_never_leaks_without_gradients_either(
    S: int, dtype: torch.dtype, backend: str
) -> None:
    generator = torch.Generator().manual_seed(S)
    for T in (1, 5, S):
        for _ in range(4):
            q, k, v = (t.detach().clone() for t in inputs(T, S, dtype=dtype))
            seen = torch.rand(S, generator=generator) < 0.6
            mask = Mask.keep(seen[None])
            clean = attention(q, k, v, mask=mask, backend=backend)
            k[:, :, ~seen] = NAN if T != 5 else torch.inf
            v[:, :, ~seen] = NAN
            assert torch.equal(attention(q, k, v, mask=mask, backend=backend), clean)
            q[0, 0, 0] = NAN
            dirty = attention(q, k, v, mask=mask, backend=backend)
            assert dirty[0, 0, 0].isnan().all() or not seen.any()
            assert torch.equal(dirty[1], clean[1])


def test_nan_in_one_head_group_is_hidden_by_the_heads_that_read_it(backend: str) -> None:
    table = torch.ones(1, 4, 1, 3, dtype=torch.bool)
    table[:, :2, :, 1] = False  # heads 0 and 1 read key/value head 0 and both hide its key 1
    q, k, v = (t.detach().clone() for t in inputs(3, 3))
    k[:, 0, 1] = NAN
    v[:, 0, 1] = NAN
    assert attention(q, k, v, mask=Mask.keep(table), backend=backend).isfinite().all()


def test_free_cache_slots_are_never_read() -> None:
    cache = LayerCache(1, 2, 8, 4, dtype=torch.float64)
    cache._keys.fill_(NAN)
    cache._values.fill_(NAN)
    q, k, v = (t.detach() for t in inputs(3, 3, B=1))
    out = attention(q, *cache.append(k, v), mask=Mask.causal())
    assert torch.equal(out, attention(q, k, v, mask=Mask.causal()))
