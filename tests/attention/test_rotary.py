"""Rotary positions: the formula, what it keeps, and that nothing in the module can go stale."""

from __future__ import annotations

import pytest
import torch

from headwise.attention import Rotary


def test_pairs_are_half_a_head_apart_and_turn_as_complex_numbers() -> None:
    x = torch.randn(2, 3, 5, 8, dtype=torch.float64)
    positions = torch.tensor([0, 1, 2, 7, 100])
    pairs = torch.complex(x[..., :4], x[..., 4:])
    angles = positions[:, None] * 500.0 ** (-2 * torch.arange(4, dtype=torch.float64) / 8)
    turned = pairs * torch.polar(torch.ones_like(angles), angles)
    wanted = torch.cat((turned.real, turned.imag), dim=-1)
    torch.testing.assert_close(Rotary(8, base=500.0)(x, positions), wanted, atol=1e-4, rtol=1e-4)


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


@pytest.mark.parametrize("d_head", [0, 1, 7])
def test_an_odd_head_is_refused(d_head: int) -> None:
    with pytest.raises(ValueError, match=f"even and at least 2, got {d_head}"):
        Rotary(d_head)


def test_bad_bases_and_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="base must be above 0"):
        Rotary(8, base=0.0)
    with pytest.raises(ValueError, match=r"x must be \(B, H, T, 8\), got shape \(1, 2, 3, 6\)"):
        Rotary(8)(torch.zeros(1, 2, 3, 6), torch.arange(3))
    with pytest.raises(ValueError, match=r"\(3,\) or \(2, 3\), one per vector of x, got \(4,\)"):
        Rotary(8)(torch.zeros(2, 2, 3, 8), torch.arange(4))
