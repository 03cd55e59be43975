"""Rotary positions: the formula, what it keeps, and that nothing in the module can go stale."""

from __future__ import annotations

import pytest
import torch

from headwise.attention import Mask, MultiHeadAttention, Rotary, to_half_split, to_interleaved


def test_pairs_are_half_a_head_apart_and_turn_as_complex_numbers() -> None:
    x = torch.randn(2, 3, 5, 8, dtype=torch.float64)
    positions = torch.tensor([0, 1, 2, 7, 100])
    pairs = torch.complex(x[..., :4], x[..., 4:])
    angles = positions[:, None] * 500.0 ** (-2 * torch.arange(4, dtype=torch.float64) / 8)
    turned = pairs * torch.polar(torch.ones_like(angles), angles)
    wanted = torch.cat((turned.real, turned.imag), dim=-1)
    torch.testing.assert_close(Rotary(8, base=500.0)(x, positions), wanted, atol=1e-4, rtol=1e-4)


def test_interleaved_pairs_are_neighbours() -> None:
    x = torch.randn(2, 3, 5, 8, dtype=torch.float64)
    positions = torch.tensor([0, 1, 2, 7, 100])
    angles = positions[:, None] * 500.0 ** (-2 * torch.arange(4, dtype=torch.float64) / 8)
    turned = torch.view_as_complex(x.unflatten(-1, (4, 2))) * torch.polar(torch.ones_like(angles), angles)
    out = Rotary(8, base=500.0, interleaved=True)(x, positions)
    torch.testing.assert_close(out, torch.view_as_real(turned).flatten(-2), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_fraction_turns_the_front_of_each_head_as_a_narrower_one_would(interleaved: bool) -> None:
    x, positions = torch.randn(2, 3, 5, 16), torch.tensor([0, 1, 2, 7, 100])
    rotary = Rotary(16, interleaved=interleaved, fraction=0.25)
    out = rotary(x, positions)
    assert rotary.width == 4
    assert torch.equal(out[..., 4:], x[..., 4:])
    assert torch.equal(out[..., :4], Rotary(4, interleaved=interleaved)(x[..., :4], positions))


@pytest.mark.parametrize("width", [8, 4])
@pytest.mark.parametrize("n_kv_head", [6, 3])
def test_weights_converted_between_the_conventions_compute_the_same(n_kv_head: int, width: int) -> None:
    def made(interleaved: bool) -> MultiHeadAttention:
        rotary = Rotary(8, interleaved=interleaved, fraction=width / 8)
        return MultiHeadAttention(
            24, 6, n_kv_head=n_kv_head, d_head=8, bias=True, qk_norm=True, rotary=rotary
        ).double()

    half, inter = made(False), made(True)
    for norm in (half.q_norm, half.k_norm):
        torch.nn.init.normal_(norm.weight)
    changed = {"q_proj.weight": 6, "q_proj.bias": 6, "k_proj.weight": n_kv_head, "k_proj.bias": n_kv_head}
    changed |= {"q_norm.weight": 1, "k_norm.weight": 1}
    state = half.state_dict()
    with torch.no_grad():
        for name, parameter in inter.named_parameters():
            given = state[name]
            if name in changed:
                converted = to_interleaved(given, changed[name], width)
                assert not torch.equal(converted, given)
                assert torch.equal(to_half_split(converted, changed[name], width), given)
                given = converted
            parameter.copy_(given)
    x = torch.randn(2, 7, 24, dtype=torch.float64)
    (out, weights), (wanted, wanted_weights) = (
        mha(x, mask=Mask.causal(), return_weights=True) for mha in (inter, half)
    )
    torch.testing.assert_close(out, wanted, atol=1e-12, rtol=0)
    torch.testing.assert_close(weights, wanted_weights, atol=1e-12, rtol=0)
    out.square().sum().backward()
    wanted.square().sum().backward()
    for name, parameter in inter.named_parameters():
        grad = half.get_parameter(name).grad
        if name in changed:
            grad = to_interleaved(grad, changed[name], width)
        torch.testing.assert_close(parameter.grad, grad, atol=1e-11, rtol=1e-9)


def test_the_order_of_converted_rows() -> None:
    rows = torch.arange(8)
    assert to_interleaved(rows, 1).tolist() == [0, 4, 1, 5, 2, 6, 3, 7]
    assert to_interleaved(rows, 2).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert to_interleaved(rows, 1, width=4).tolist() == [0, 2, 1, 3, 4, 5, 6, 7]
    with pytest.raises(ValueError, match=r"t of shape \(8,\) does not hold the rows of n_head=3 heads"):
        to_interleaved(rows, 3)
    with pytest.raises(ValueError, match="width must be even, at least 2 and at most 4, the head's, got 3"):
        to_half_split(rows, 2, width=3)


def test_the_first_position_is_left_alone_and_lengths_are_kept() -> None:
    x = torch.randn(1, 2, 6, 4)
    out = Rotary(4)(x, torch.arange(6))
    assert torch.equal(out[:, :, 0], x[:, :, 0])
    assert not torch.allclose(out[:, :, 1:], x[:, :, 1:])
    torch.testing.assert_close(out.norm(dim=-1), x.norm(dim=-1))


def test_scores_depend_on_the_distance_only() -> None:
    rotary, q, k = Rotary(16), torch.randn(1, 1, 1, 16), torch.randn(1, 1, 1, 16)

    def score(p: int, j: int) -> torch.Tensor:
        return (rotary(q, torch.tensor([p])) * rotary(k, torch.tensor([j]))).sum()

    torch.testing.assert_close(score(9, 4), score(105, 100), atol=1e-4, rtol=1e-4)
    assert not torch.allclose(score(9, 4), score(9, 5))


def test_positions_may_differ_between_sequences() -> None:
    rotary, x = Rotary(4), torch.randn(2, 3, 5, 4)
    positions = torch.stack([torch.arange(5), torch.arange(5) + 7])
    out = rotary(x, positions)
    for b in range(2):
        assert torch.equal(out[b], rotary(x[b : b + 1], positions[b])[0])


def test_converting_the_module_does_not_round_its_angles() -> None:
    x, positions = torch.randn(1, 1, 2, 64), torch.tensor([4095, 4096])
    wanted = Rotary(64)(x, positions)
    assert torch.equal(Rotary(64).to(torch.bfloat16)(x, positions), wanted)
    low = Rotary(64).to(torch.bfloat16)(x.bfloat16(), positions)
    assert low.dtype == torch.bfloat16
    torch.testing.assert_close(low.float(), wanted, atol=0.05, rtol=0.05)


def test_nothing_is_saved() -> None:
    assert Rotary(8).state_dict() == {}
    assert repr(Rotary(8, base=500000.0)) == "Rotary(d_head=8, base=500000, half-split)"
    partly = Rotary(8, interleaved=True, fraction=0.5)
    assert repr(partly) == "Rotary(d_head=8, base=10000, interleaved, first 4 turned)"


@pytest.mark.parametrize("d_head", [0, 1, 7])
def test_an_odd_head_is_refused(d_head: int) -> None:
    with pytest.raises(ValueError, match=f"even and at least 2, got {d_head}"):
        Rotary(d_head)


def test_bad_bases_and_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="base must be above 0"):
        Rotary(8, base=0.0)
    for fraction in (0.0, 1.5, 0.1, 0.375):  # 3 of 8 are no pairs
        with pytest.raises(ValueError, match=f"even number of elements to turn, got {fraction} of d_head=8"):
            Rotary(8, fraction=fraction)
    with pytest.raises(ValueError, match=r"x must be \(B, H, T, 8\), got shape \(1, 2, 3, 6\)"):
        Rotary(8)(torch.zeros(1, 2, 3, 6), torch.arange(3))
    with pytest.raises(ValueError, match=r"\(3,\) or \(2, 3\), one per vector of x, got \(4,\)"):
        Rotary(8)(torch.zeros(2, 2, 3, 8), torch.arange(4))
