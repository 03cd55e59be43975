"""Every backend against attention written as plain loops, in float64, outputs and gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from headwise.attention import Mask, attention

Plain = Callable[..., tuple[Tensor, Tensor]]
Watch = Callable[[], Any]


@st.composite
def calls(draw: st.DrawFn) -> dict[str, object]:
    """Draw a call of `attention`, and who sees whom in it, said a second time as a predicate."""
    size = st.sampled_from([0, 1, 2, 3, 4, 5, 6, 16, 17, 21])  # from 16 keys on kernels take vectors of them
    B, G, R = draw(st.sampled_from([1, 2, 0])), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    T, S, K, V = draw(size), draw(size), draw(st.integers(1, 5)), draw(st.integers(1, 5))
    V = K if draw(st.booleans()) else V
    H = G * R
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    random = {"generator": generator, "dtype": torch.float64}
    offset = draw(st.sampled_from([None, S - T, 0, -2, S + 1]))
    mask: Mask | None = None
    rules: list[Callable[[int, int, int, int], bool]] = []
    for kind in draw(st.lists(st.sampled_from(["causal", "window", "lengths", "keep", "hide"]), max_size=3)):
        if kind == "causal":
            part = Mask.causal()
            rules.append(lambda _b, _h, p, j: j <= p)
        elif kind == "window":
            n = draw(st.integers(1, 4))
            part = Mask.window(n)
            rules.append(lambda _b, _h, p, j, n=n: p - n < j <= p)  # type: ignore[misc]
        elif kind == "lengths":
            t = torch.randint(0, S + 1, (B,), generator=generator)
            part = Mask.lengths(t)
            rules.append(lambda b, _h, _p, j, t=t: bool(j < t[b]))  # type: ignore[misc]
        else:
            shape = [draw(st.sampled_from([1, size])) for size in (B, H, T)] + [S]
            table = torch.rand(shape, generator=generator) < 0.6
            part = Mask.keep(table) if kind == "keep" else Mask.hide(table)
            first = S - T if offset is None else offset
            full = table.expand(B, H, T, S)
            rules.append(
                lambda b, h, p, j, full=full, first=first, polarity=kind == "keep": (  # type: ignore[misc]
                    bool(full[b, h, p - first, j]) is polarity
                )
            )
        mask = part if mask is None else mask & part
    bias = None
    if draw(st.booleans()):
        shape = [draw(st.sampled_from([1, size])) for size in (B, H, T, S)]
        bias = torch.randn(shape, **random)  # type: ignore[call-overload]
        bias = bias[0] if B and shape[0] == 1 and draw(st.booleans()) else bias
    return {
        "q": torch.randn(B, H, T, K, **random),  # type: ignore[call-overload]
        "k": torch.randn(B, G, S, K, **random),  # type: ignore[call-overload]
        "v": torch.randn(B, G, S, V, **random),  # type: ignore[call-overload]
        "mask": mask,
        "bias": bias,
        "offset": offset,
        "scale": draw(st.sampled_from([None, 0.3, -1.0])),
        "sees": lambda b, h, p, j: all(rule(b, h, p, j) for rule in rules),
        "into": torch.randn(B, H, T, V, **random),  # type: ignore[call-overload]
        "transposed": draw(st.booleans()),
    }


def gradients(out: Tensor, into: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    grads = torch.autograd.grad(out, leaves, into, allow_unused=True)
    return [
        torch.zeros_like(leaf) if grad is None else grad for leaf, grad in zip(leaves, grads, strict=True)
    ]


@given(call=calls())
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_backends_equal_plain_loops_forward_and_backward(call: dict[str, object], plain: Plain) -> None:
    def leaf(name: str) -> Tensor:
        t = call[name]
        assert isinstance(t, Tensor)
        t = t.transpose(1, 2).contiguous().transpose(1, 2) if call["transposed"] and t.ndim == 4 else t
        return t.detach().requires_grad_()

    leaves = [leaf(name) for name in ("q", "k", "v", "bias") if call[name] is not None]
    q, k, v, *rest = leaves
    bias = rest[0] if rest else None
    T, S, K = q.shape[2], k.shape[2], q.shape[3]
    offset, scale = call["offset"], call["scale"]
    wanted, wanted_weights = plain(
        q,
        k,
        v,
        call["sees"],
        offset=S - T if offset is None else offset,
        scale=K**-0.5 if scale is None else scale,
        bias=bias,
    )
    into = call["into"]
    assert isinstance(into, Tensor)
    # plain loops touch no leaf at all if nothing is visible
    wanted_grads = gradients(wanted + 0 * sum(t.sum() for t in leaves), into, leaves)
    options = {"mask": call["mask"], "bias": bias, "offset": offset, "scale": scale}
    for backend in ("reference", "sdpa", "auto"):
        try:
            out = attention(q, k, v, backend=backend, **options)  # type: ignore[call-overload]
        except ValueError as error:
            reasons = str(error)
            assert backend == "sdpa"
            if scale == -1.0:
                assert "a scale of 0 or below" in reasons
                continue
            assert "keys and values would be copied" in reasons
            assert q.shape[1] > k.shape[1]
            assert q.shape[3] != v.shape[3] or bias is not None
            continue
        assert out.shape == wanted.shape
        torch.testing.assert_close(out, wanted)
        assert torch.equal(out[~wanted_weights.any(-1)], wanted[~wanted_weights.any(-1)])
        for grad, wanted_grad in zip(gradients(out, into, leaves), wanted_grads, strict=True):
            torch.testing.assert_close(grad, wanted_grad)
    out, weights = attention(q, k, v, return_weights=True, **options)  # type: ignore[call-overload]
    torch.testing.assert_close(weights, wanted_weights)
    assert torch.equal(weights == 0, wanted_weights == 0)


@pytest.mark.parametrize(("T", "S"), [(20, 20), (18, 21), (21, 17), (5, 19), (2, 30)])
@pytest.mark.parametrize("window", [None, 4, 40])
@pytest.mark.parametrize("offset", [None, 0, 3, -4])
@pytest.mark.parametrize("kind", ["band only", "table", "bias", "bias in one column"])
def test_tables_and_biases_are_cut_where_positions_cut_queries_and_keys(
    T: int, S: int, window: int | None, offset: int | None, kind: str, backend: str, plain: Plain
) -> None:
    torch.manual_seed(7)
    q, k, v = (torch.randn(1, 2, n, 4, dtype=torch.float64) for n in (T, S, S))
    table = torch.rand(T, S) < 0.7
    bias = {"bias": torch.randn(T, S), "bias in one column": torch.randn(2, T, 1)}.get(kind)
    mask = Mask.causal() if window is None else Mask.window(window)
    mask = mask & Mask.keep(table) if kind == "table" else mask
    first = S - T if offset is None else offset

    def sees(_b: int, _h: int, p: int, j: int) -> bool:
        in_band = j <= p and (window is None or j > p - window)
        return in_band and (kind != "table" or bool(table[p - first, j]))

    wanted, weights = plain(q, k, v, sees, offset=first, scale=0.5, bias=bias)
    options = {"mask": mask, "bias": bias, "offset": offset}
    torch.testing.assert_close(attention(q, k, v, backend=backend, **options), wanted)  # type: ignore[call-overload]
    if backend == "reference":
        got = attention(q, k, v, return_weights=True, **options)[1]  # type: ignore[call-overload]
        torch.testing.assert_close(got, weights)


def test_query_head_h_reads_key_value_head_h_div_group(backend: str) -> None:
    q, k = torch.randn(1, 6, 3, 4), torch.randn(1, 2, 5, 4)
    v = torch.arange(2.0)[None, :, None, None].expand(1, 2, 5, 4)
    out = attention(q, k, v, backend=backend)
    torch.testing.assert_close(out[0, :, 0, 0], torch.tensor([0.0, 0, 0, 1, 1, 1]))
    decode = attention(q[:, :, :1], k, v, backend=backend)
    torch.testing.assert_close(decode[0, :, 0, 0], torch.tensor([0.0, 0, 0, 1, 1, 1]))


@pytest.mark.parametrize("T", [1, 3])
def test_a_bias_may_differ_by_head(T: int, backend: str) -> None:
    q, k, v = torch.randn(2, 6, T, 4), torch.randn(2, 2, 5, 4), torch.randn(2, 2, 5, 4)
    bias = torch.randn(6, 1, 5)
    out = attention(q, k, v, bias=bias, backend=backend)
    for h in range(6):
        g = h // 3
        alone = attention(q[:, [h]], k[:, [g]], v[:, [g]], bias=bias[h], backend=backend)
        torch.testing.assert_close(out[:, [h]], alone)


@pytest.mark.parametrize("T", [1, 2])
def test_grouped_keys_and_values_are_never_copied(backend: str, T: int, operations: Watch) -> None:
    B, H, G, S, K = 2, 8, 2, 512, 16
    q, k, v = torch.randn(B, H, T, K), torch.randn(B, G, S, K), torch.randn(B, G, S, K)
    with operations() as seen, torch.no_grad():
        attention(q, k, v, mask=Mask.causal(), backend=backend)
    # the largest thing made may be the scores; a copy of the keys per head would be B·H·S·K
    assert seen.largest() <= B * max(H * T * S, G * S * K)


def test_a_padding_mask_is_not_spread_over_heads_and_queries(backend: str, operations: Watch) -> None:
    B, H, S = 2, 4, 64
    q = torch.randn(B, H, S, 8)
    with operations() as seen, torch.no_grad():
        attention(q, q, q, mask=Mask.lengths(torch.tensor([5, S])), backend=backend)
    assert seen.largest(torch.bool) <= B * S


def test_the_window_bounds_the_work_of_a_decoding_step(backend: str, operations: Watch) -> None:
    q, k = torch.randn(1, 2, 1, 8), torch.randn(1, 2, 4096, 8)
    with operations() as seen, torch.no_grad():
        attention(q, k, k, mask=Mask.window(16), backend=backend)
    assert seen.largest() <= 2 * 16 * 8


@pytest.mark.parametrize("sizes", [(0, 2, 2, 3, 4), (2, 4, 2, 0, 4), (2, 4, 2, 3, 0)])
def test_empty_batch_queries_and_keys_give_zeros(sizes: tuple[int, ...], backend: str) -> None:
    B, H, G, T, S = sizes
    q = torch.randn(B, H, T, 4, requires_grad=True)
    k, v = torch.randn(B, G, S, 4, requires_grad=True), torch.randn(B, G, S, 4, requires_grad=True)
    for mask in (None, Mask.causal(), Mask.lengths(torch.ones(B, dtype=torch.int64))):
        out = attention(q, k, v, mask=mask, backend=backend)
        assert torch.equal(out, torch.zeros(B, H, T, 4))
        for leaf, grad in zip((q, k, v), gradients(out, torch.ones_like(out), [q, k, v]), strict=True):
            assert torch.equal(grad, torch.zeros_like(leaf))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_is_as_good_as_plain_maths_in_it(dtype: torch.dtype, backend: str) -> None:
    generator = torch.Generator().manual_seed(3)
    leaves = [torch.randn(2, 4, 33, 11, generator=generator).to(dtype) for _ in range(3)]
    bias = torch.randn(33, 33, generator=generator)
    into = torch.randn(2, 4, 33, 11, generator=generator).to(dtype)
    mask = Mask.causal() & Mask.lengths(torch.tensor([20, 33]))

    def run(kind: torch.dtype, how: Callable[[Tensor, Tensor, Tensor], Tensor]) -> list[Tensor]:
        parts = [leaf.to(kind).requires_grad_() for leaf in leaves]
        out = how(*parts)
        return [t.double() for t in (out, *torch.autograd.grad(out, parts, into.to(kind)))]

    def low(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        hidden = ~mask.to_tensor(33, 33)
        score = q @ k.mT * 11**-0.5 + bias.to(dtype)
        return score.masked_fill(hidden, -torch.inf).softmax(-1) @ v

    exact = run(torch.float64, lambda q, k, v: attention(q, k, v, mask=mask, bias=bias, backend="reference"))
    rough = run(dtype, low)
    ours = run(dtype, lambda q, k, v: attention(q, k, v, mask=mask, bias=bias, backend=backend))
    for i, (a, b, c) in enumerate(zip(exact, rough, ours, strict=True)):
        factor = 2 if i == 0 else 3
        assert (c - a).abs().max() <= factor * (b - a).abs().max()


def test_the_softmax_is_at_least_float32() -> None:
    q = torch.tensor([[[[60.0]]]], dtype=torch.float16)
    k = torch.tensor([[[[2000.0], [-2000.0]]]], dtype=torch.float16)  # the scores overflow float16
    out, weights = attention(q, k, k, scale=1.0, return_weights=True)
    assert torch.equal(weights, torch.tensor([[[[1.0, 0.0]]]], dtype=torch.float16))
    assert out.item() == 2000.0


def test_dropout_drops_and_rescales_weights_but_returns_them_whole(backend: str) -> None:
    torch.manual_seed(0)
    q, k, v = torch.zeros(1, 1, 64, 4), torch.zeros(1, 1, 64, 4), torch.eye(64)[None, None]
    out = attention(q, k, v, dropout=0.25, backend=backend)
    kept = out != 0
    torch.testing.assert_close(out[kept], torch.full_like(out[kept], 1 / 64 / 0.75))
    assert 0.7 < kept.double().mean().item() < 0.8
    out, weights = attention(q, k[:, :, :1], v[:, :, :1], dropout=0.25, return_weights=True)
    assert torch.equal(weights, torch.ones(1, 1, 64, 1))
    assert {round(x, 4) for x in out[..., 0].flatten().tolist()} == {0.0, 1.3333}


@pytest.mark.parametrize("group", [1, 3])
def test_every_option_is_alive_or_refused(group: int, backend: str) -> None:
    torch.manual_seed(1)
    # of fewer than these queries the heads of a group are folded, which leaves sdpa nothing to refuse
    q, k, v = torch.randn(1, 2 * group, 50, 4), torch.randn(1, 2, 55, 4), torch.randn(1, 2, 55, 4)
    plainly = attention(q, k, v, backend=backend)
    options: dict[str, object] = {
        "mask": Mask.causal(),
        "bias": torch.randn(2 * group, 50, 55),
        "scale": 2.0,
        "dropout": 0.5,
        "softcap": 0.5,
        "sink": torch.randn(2 * group),
        "gate": torch.randn(2 * group),
    }
    refused: dict[str, str] = {}
    for name, value in options.items():
        try:
            out = attention(q, k, v, backend=backend, **{name: value})  # type: ignore[call-overload]
        except ValueError as error:
            refused[name] = str(error)
            continue
        assert not torch.allclose(out, plainly), name
        if name != "dropout":
            wanted = attention(q, k, v, backend="reference", **{name: value})  # type: ignore[call-overload]
            torch.testing.assert_close(out, wanted)
    cannot = {"softcap", "sink"} | ({"dropout"} if group == 3 else set())
    assert set(refused) == (cannot if backend == "sdpa" else set())
    says = {"dropout": "no dropout", "softcap": "know no softcap", "sink": "know no sink"}
    assert all(says[name] in message for name, message in refused.items())
    moved = attention(q, k, v, mask=Mask.causal(), offset=0, backend=backend)
    assert not torch.allclose(moved, attention(q, k, v, mask=Mask.causal(), backend=backend))


def test_softcap_bounds_the_scores_before_the_bias() -> None:
    q, k, v = torch.ones(1, 1, 1, 1), torch.tensor([0.0, 10.0]).view(1, 1, 2, 1), torch.eye(2)[None, None]
    plainly = attention(q, k, v, scale=1.0)
    torch.testing.assert_close(plainly.flatten(), torch.tensor([0.00005, 0.99995]), atol=1e-5, rtol=0)
    for backend in ("reference", "blockwise"):
        capped = attention(q, k, v, scale=1.0, softcap=5.0, backend=backend)
        torch.testing.assert_close(capped.flatten(), torch.tensor([0.008, 0.992]), atol=1e-4, rtol=0)
        # 5 · tanh(10 / 5) = 4.82, and a bias of as much undoes it
        bias = torch.tensor([5 * math.tanh(2), 0.0])
        even = attention(q, k, v, scale=1.0, softcap=5.0, bias=bias, backend=backend)
        torch.testing.assert_close(even.flatten(), torch.tensor([0.5, 0.5]))


def test_a_sink_takes_weight_and_gives_no_value(backend: str) -> None:
    if backend == "sdpa":
        return
    q, k = torch.zeros(1, 2, 1, 2), torch.randn(1, 1, 2, 2)
    sink = torch.tensor([0.0, 100.0], requires_grad=True)
    out, weights = attention(q, k, torch.ones(1, 1, 2, 1), sink=sink, return_weights=True, backend=backend)
    torch.testing.assert_close(weights[0, 0], torch.full((1, 2), 1 / 3))
    torch.testing.assert_close(out[0, :, 0, 0], torch.tensor([2 / 3, 0.0]))
    (grad,) = torch.autograd.grad(out.sum(), sink)
    torch.testing.assert_close(grad, torch.tensor([-2 / 9, 0.0]))  # d (2 / (2 + e^s)) / ds at s = 0


def test_a_blind_row_stays_zero_with_a_sink(backend: str) -> None:
    if backend == "sdpa":
        return
    q, k = torch.randn(1, 2, 3, 2), torch.randn(1, 2, 3, 2)
    sink = torch.zeros(2, requires_grad=True)
    for mask in (Mask.lengths(torch.tensor([0])), Mask.hide(torch.ones(3, 3, dtype=torch.bool))):
        out = attention(q, k, k, mask=mask, sink=sink, backend=backend)
        assert torch.equal(out, torch.zeros_like(out))
        (grad,) = torch.autograd.grad(out, sink, torch.full_like(out, torch.nan))
        assert torch.equal(grad, torch.zeros(2))


def test_a_gate_multiplies_the_outputs_of_heads_and_not_their_weights(backend: str) -> None:
    q, k = torch.randn(2, 4, 3, 2), torch.randn(2, 2, 5, 2)
    plainly = attention(q, k, k, backend=backend)
    per_head, per_sequence = torch.tensor([1.0, 0.0, -2.0, 0.5], requires_grad=True), torch.randn(2, 4)
    gated = attention(q, k, k, gate=per_head, backend=backend)
    torch.testing.assert_close(gated, plainly * per_head[:, None, None])
    assert torch.equal(gated[:, 1], torch.zeros(2, 3, 2))
    (grad,) = torch.autograd.grad(gated.sum(), per_head)
    torch.testing.assert_close(grad, plainly.sum((0, 2, 3)))
    gated = attention(q, k, k, gate=per_sequence, backend=backend)
    torch.testing.assert_close(gated, plainly * per_sequence[:, :, None, None])
    weights = attention(q, k, k, gate=per_head, return_weights=True)[1]
    assert torch.equal(weights, attention(q, k, k, return_weights=True)[1])


def test_sdpa_refuses_what_it_cannot_do_and_auto_does_it() -> None:
    q, k, v = torch.randn(1, 4, 70, 4), torch.randn(1, 2, 70, 4), torch.randn(1, 2, 70, 5)
    with pytest.raises(ValueError, match=r"'sdpa' cannot run.*never forms the weights.*backend='auto'"):
        attention(q, k, k, return_weights=True, backend="sdpa")
    with pytest.raises(ValueError, match="copied 2 times.*d_value = d_head"):
        attention(q, k, v, backend="sdpa")
    for scale in (0.0, -1.0):
        with pytest.raises(ValueError, match="a scale of 0 or below"):
            attention(q, k, k, scale=scale, backend="sdpa")
        assert attention(q, k, k, scale=scale).isfinite().all()
    bias = torch.zeros(70, 70, requires_grad=True)
    with pytest.raises(ValueError, match="copied 2 times.*no gradient to a bias"):
        attention(q, k, k, bias=bias, backend="sdpa")
    torch.testing.assert_close(attention(q, k, v), attention(q, k, v, backend="reference"))
    (grad,) = torch.autograd.grad(attention(q, k, v, bias=bias).sum(), bias)
    assert grad.abs().sum() > 0
    assert attention(q, k, k, bias=bias.detach(), backend="sdpa").shape == (1, 4, 70, 4)


@pytest.mark.parametrize("T", [1, 3])
@pytest.mark.parametrize("G", [1, 2])
@pytest.mark.parametrize("S", [40, 1024, 1531])
def test_decoding_with_keys_split_over_threads(
    T: int, G: int, S: int, monkeypatch: pytest.MonkeyPatch, operations: Watch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    q, buffer = torch.randn(2, 6, T, 8), torch.randn(2, G, S + 9, 8)
    k, v = buffer[:, :, :S], buffer[:, :, 9:]
    with operations() as seen, torch.no_grad():
        out = attention(q, k, v, backend="sdpa")
    parts = {40: 1, 1024: 2, 1531: 2}[S]
    assert seen.count("_scaled_dot_product_flash_attention_for_cpu") == 1 + (S % parts > 0)
    assert seen.largest() <= k.numel()
    torch.testing.assert_close(out, attention(q, k, v, backend="reference"))
    # with gradients they are not split, and the answer is the same
    torch.testing.assert_close(attention(q.requires_grad_(), k, v, backend="sdpa"), out)


def test_the_reference_has_second_derivatives_and_runs_under_vmap() -> None:
    q = torch.randn(1, 2, 3, 2, dtype=torch.float64, requires_grad=True)
    mask = Mask.causal() & Mask.hide(torch.tensor([[True, False, False]]))  # the first query sees nothing
    assert torch.autograd.gradgradcheck(lambda q: attention(q, q, q, mask=mask, backend="reference"), (q,))
    many = torch.randn(3, 1, 2, 4, 5)
    mapped = torch.vmap(lambda q: attention(q, q, q, mask=Mask.window(2), backend="reference"))(many)
    torch.testing.assert_close(mapped, torch.stack([attention(q, q, q, mask=Mask.window(2)) for q in many]))
