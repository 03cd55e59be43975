"""Options of the module that change the computation: each does what it says, each is alive and learns."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from headwise.attention import Mask, MultiHeadAttention, Rotary, WeightsOf


def by_hand(mha: MultiHeadAttention, x: Tensor, gate: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Causal attention of one sequence and its weights, head by head from the formulas."""
    T, (H, G, K) = x.shape[1], (mha.n_head, mha.n_kv_head, mha.d_head)
    outs, weights = [], []
    for h in range(H):
        g = h // (H // G)
        q = mha.q_proj(x)[0, :, h * K : (h + 1) * K]
        k = mha.k_proj(x)[0, :, g * K : (g + 1) * K]
        v = mha.v_proj(x)[0, :, g * mha.d_value : (g + 1) * mha.d_value]
        if mha.q_norm is not None and mha.k_norm is not None:
            q, k = (
                t / (t.square().mean(-1, keepdim=True) + 1e-6).sqrt() * norm.weight
                for t, norm in ((q, mha.q_norm), (k, mha.k_norm))
            )
        if mha.rotary is not None:
            q, k = (mha.rotary(t[None, None], torch.arange(T))[0, 0] for t in (q, k))
        score = q @ k.T / K**0.5
        if mha.softcap is not None:
            score = mha.softcap * torch.tanh(score / mha.softcap)
        power = score.exp().tril()
        extra = 0.0 if mha.sink is None else mha.sink[h].exp()
        weight = power / (power.sum(-1, keepdim=True) + extra)
        weights.append(weight)
        outs.append(weight @ v * (1.0 if gate is None else gate[h]))
    return mha.o_proj(torch.cat(outs, dim=-1))[None], torch.stack(weights)[None]


OPTIONS: dict[str, dict[str, object]] = {
    "d_out": {"d_out": 5},
    "qk_norm": {"qk_norm": True},
    "qk_norm, then rotary": {"qk_norm": True, "rotary": Rotary(8, interleaved=True)},
    "softcap": {"softcap": 0.5},
    "sink": {"sink": True},
    "all": {"d_out": 5, "d_value": 3, "qk_norm": True, "rotary": Rotary(8), "softcap": 2.0, "sink": True},
}


def made(name: str, backend: str = "auto") -> MultiHeadAttention:
    torch.manual_seed(11)
    settings = {"n_kv_head": 2, "d_head": 8, "bias": True, "backend": backend, **OPTIONS[name]}
    mha = MultiHeadAttention(24, 6, **settings).double()  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in mha.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return mha


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("name", OPTIONS)
def test_each_option_is_its_formula_with_its_gradients(
    name: str, gated: bool, any_backend: str, refused: Callable[[str, Callable[[], object]], bool]
) -> None:
    mha, x = made(name, any_backend), torch.randn(1, 5, 24, dtype=torch.float64, requires_grad=True)
    gate = torch.randn(6, dtype=torch.float64, requires_grad=True) if gated else None
    if refused(any_backend, lambda: mha(x, mask=Mask.causal(), gate=gate)):
        return
    out = mha(x, mask=Mask.causal(), gate=gate)
    wanted, weights = by_hand(mha, x, gate)
    torch.testing.assert_close(out, wanted)
    leaves = [x, *mha.parameters(), *([] if gate is None else [gate])]
    into = torch.randn_like(out)
    grads = torch.autograd.grad(out, leaves, into)
    for grad, want in zip(grads, torch.autograd.grad(wanted, leaves, into), strict=True):
        torch.testing.assert_close(grad, want)
    if any_backend == "auto":
        got, some = mha(x, mask=Mask.causal(), gate=gate, return_weights=True)
        torch.testing.assert_close(got, out)
        torch.testing.assert_close(some, weights)


@pytest.mark.parametrize("name", OPTIONS)
def test_each_option_is_alive(name: str) -> None:
    mha, x = made(name), torch.randn(1, 5, 24, dtype=torch.float64)
    out = mha(x, mask=Mask.causal())
    for option in OPTIONS[name]:
        bare = made(name)
        if option == "qk_norm":
            bare.q_norm = bare.k_norm = None
        elif option in ("rotary", "softcap", "sink"):
            setattr(bare, option, None)
        else:
            continue  # widths speak for themselves
        assert not torch.allclose(bare(x, mask=Mask.causal()), out), option
    if name == "d_out":
        assert out.shape == (1, 5, 5)


def test_a_gate_per_sequence_and_head_cuts_heads_out() -> None:
    mha, x = made("qk_norm"), torch.randn(3, 5, 24, dtype=torch.float64)
    gate = torch.ones(3, 6, dtype=torch.float64)
    gate[0, 2] = gate[1, :] = 0
    out = mha(x, mask=Mask.causal(), gate=gate)
    without = made("qk_norm")
    with torch.no_grad():
        without.o_proj.weight.view(24, 6, 8)[:, 2] = 0
    torch.testing.assert_close(out[:1], without(x[:1], mask=Mask.causal()))
    torch.testing.assert_close(out[1], mha.o_proj.bias.expand(5, 24))
    assert torch.equal(out[2], mha(x, mask=Mask.causal())[2])
    _, weights = mha(x, mask=Mask.causal(), gate=gate, return_weights=True)
    torch.testing.assert_close(weights, mha(x, mask=Mask.causal(), return_weights=True)[1])


def test_a_gate_of_ones_changes_nothing_and_its_gradient_is_what_a_head_is_worth() -> None:
    mha, x = made("all"), torch.randn(2, 5, 24, dtype=torch.float64)
    gate = torch.ones(6, dtype=torch.float64, requires_grad=True)
    out = mha(x, mask=Mask.causal(), gate=gate)
    assert torch.equal(out, mha(x, mask=Mask.causal()))
    (grad,) = torch.autograd.grad(out.sum(), gate)
    for h in range(6):
        cut = gate.detach().clone()
        cut[h] = 0
        loss = (out - mha(x, mask=Mask.causal(), gate=cut)).sum()  # linear in the gate
        torch.testing.assert_close(grad[h], loss)


def test_gates_can_be_trained_with_frozen_heads() -> None:
    torch.manual_seed(12)
    mha, x = MultiHeadAttention(8, 4).requires_grad_(False), torch.randn(4, 6, 8)
    wanted = mha(x, gate=torch.tensor([0.0, 1.0, 1.0, 0.0]))
    gate = torch.full((4,), 0.5, requires_grad=True)
    optimizer = torch.optim.Adam([gate], lr=0.05)
    for _ in range(200):
        optimizer.zero_grad()
        (mha(x, gate=gate) - wanted).square().mean().backward()
        optimizer.step()
    torch.testing.assert_close(gate.detach(), torch.tensor([0.0, 1.0, 1.0, 0.0]), atol=0.02, rtol=0)


def test_a_sink_takes_weight_and_gives_nothing() -> None:
    mha = MultiHeadAttention(4, 2, sink=True)
    with torch.no_grad():
        mha.q_proj.weight.zero_()
    x = torch.randn(1, 2, 4)
    _, weights = mha(x, return_weights=True)  # two equal keys and a sink of logit 0
    torch.testing.assert_close(weights, torch.full((1, 2, 2, 2), 1 / 3))
    blind = Mask.lengths(torch.tensor([0]))
    out = mha(x, mask=blind)
    assert torch.equal(out, torch.zeros(1, 2, 4))
    out.sum().backward()
    assert torch.equal(mha.sink.grad, torch.zeros(2))


def test_a_cap_bounds_how_sharp_a_head_can_be() -> None:
    mha = MultiHeadAttention(1, 1, softcap=5.0)
    with torch.no_grad():
        for parameter in mha.parameters():
            parameter.fill_(1.0)
    context = torch.tensor([[[0.0], [10.0]]])
    _, weights = mha(torch.ones(1, 1, 1), context, return_weights=True)  # scores 0 and 10
    torch.testing.assert_close(weights.flatten(), torch.tensor([0.00800, 0.99200]), atol=1e-5, rtol=0)


@pytest.mark.parametrize("rotary", [None, Rotary(8)])
def test_normed_queries_and_keys_do_not_feel_the_length_of_x(rotary: Rotary | None) -> None:
    mha = MultiHeadAttention(24, 3, qk_norm=True, rotary=rotary).double()
    x = torch.randn(1, 5, 24, dtype=torch.float64)
    _, weights = mha(x, return_weights=True)
    for factor in (3.0, 100.0):
        _, scaled = mha(x * factor, return_weights=True)
        torch.testing.assert_close(scaled, weights, atol=1e-4, rtol=0)


def test_chosen_weights_are_those_heads_and_queries() -> None:
    mha, x = made("all"), torch.randn(2, 7, 24, dtype=torch.float64)
    mask = Mask.causal() & Mask.lengths(torch.tensor([7, 4]))
    out, whole = mha(x, mask=mask, return_weights=True)
    for heads, rows in (([3], None), (None, [6, 0]), ([5, 0], slice(2, 5)), ([], [1]), ([-1], [-1])):
        got, some = mha(x, mask=mask, return_weights=WeightsOf(heads=heads, rows=rows))
        wanted = whole if heads is None else whole[:, heads]
        wanted = wanted if rows is None else wanted[:, :, rows]
        torch.testing.assert_close(some, wanted)
        torch.testing.assert_close(got, out)


def test_dropout_on_the_weights_and_on_the_output_are_apart() -> None:
    torch.manual_seed(13)
    x = torch.randn(1, 8, 64)
    only_output = MultiHeadAttention(64, 2, dropout=0.0, output_dropout=0.5)
    out, whole = only_output(x), only_output.eval()(x)
    kept = out != 0
    assert 0.4 < kept.float().mean() < 0.6
    torch.testing.assert_close(out[kept], 2 * whole[kept])
    only_weights = MultiHeadAttention(64, 2, dropout=0.5, output_dropout=0.0)
    out = only_weights(x)
    assert (out != 0).all()
    assert not torch.equal(out, only_weights(x))


def test_the_output_width_is_free() -> None:
    mha = MultiHeadAttention(10, 2, d_value=4, d_out=8, output_projection=False)
    x = torch.randn(1, 3, 10)
    out, weights = mha(x, return_weights=True)
    v = mha.v_proj(x).unflatten(-1, (2, 4))
    for h in range(2):
        torch.testing.assert_close(out[..., 4 * h : 4 * h + 4], weights[:, h] @ v[:, :, h])
    assert MultiHeadAttention(10, 2, d_out=3)(x).shape == (1, 3, 3)
