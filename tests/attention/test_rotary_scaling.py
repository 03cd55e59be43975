"""Slower angles: each formula at its marked points, alone or written out again; unknown settings refused.

That the numbers are those of transformers is tested in test_peers.py.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from headwise.attention import LinearScaling, Llama3Scaling, NTKScaling, Rotary, YarnScaling
from headwise.attention.rotary_scaling import Scaling, frequencies


def plain(base: float, width: int) -> Tensor:
    return frequencies(base, width, torch.device("cpu"))


def test_linear_positions_are_those_of_a_shorter_text() -> None:
    x, positions = torch.randn(1, 1, 4, 16), torch.tensor([0, 4, 8, 400])
    slow = Rotary(16, scaling=LinearScaling(4.0))(x, positions)
    torch.testing.assert_close(slow, Rotary(16)(x, positions // 4), atol=1e-5, rtol=1e-5)


def test_ntk_keeps_the_fastest_pair_and_slows_the_slowest_by_the_factor() -> None:
    usual = plain(10000.0, 64)
    slowed = NTKScaling(8.0).apply(usual, 10000.0)
    torch.testing.assert_close(slowed[0], usual[0])
    torch.testing.assert_close(slowed[-1], usual[-1] / 8)
    share = usual / slowed
    torch.testing.assert_close(share, 8.0 ** (torch.arange(32) / 31), rtol=1e-4, atol=0)


def test_llama3_in_words() -> None:
    scaling = Llama3Scaling(factor=8.0, original_length=8192, low=1.0, high=4.0)
    usual = plain(500000.0, 128)
    wanted = []
    for f in usual.double().tolist():
        wavelength = 2 * math.pi / f
        if wavelength < 8192 / 4.0:
            wanted.append(f)
        elif wavelength > 8192 / 1.0:
            wanted.append(f / 8.0)
        else:
            smooth = (8192 / wavelength - 1.0) / (4.0 - 1.0)
            wanted.append((1 - smooth) * f / 8.0 + smooth * f)
    slowed = scaling.apply(usual, 500000.0)
    torch.testing.assert_close(slowed, torch.tensor(wanted), rtol=1e-5, atol=0)
    kept, divided = (slowed == usual).sum(), torch.isclose(slowed, usual / 8, rtol=1e-6, atol=0).sum()
    assert kept > 5
    assert divided > 5
    assert kept + divided < 64  # some lie between


@pytest.mark.parametrize("truncate", [False, True])
def test_yarn_in_words(truncate: bool) -> None:
    base, width, length = 10000.0, 64, 4096
    scaling = YarnScaling(4.0, length, fast=32.0, slow=1.0, truncate=truncate)
    usual = plain(base, width)
    slowed = scaling.apply(usual, base)
    turns = length * usual.double() / (2 * math.pi)
    # the pair that makes n turns, found by inverting turns(i) = L · base^(-2i/W) / 2π
    first, last = (width / 2 * math.log(length / (2 * math.pi * n)) / math.log(base) for n in (32.0, 1.0))
    assert turns[math.floor(first)] >= 32 > turns[math.floor(first) + 1]
    if truncate:
        first, last = math.floor(first), math.ceil(last)
    for i in range(width // 2):
        share = min(max((i - first) / (last - first), 0.0), 1.0)  # of the divided frequency
        wanted = share * usual[i] / 4.0 + (1 - share) * usual[i]
        torch.testing.assert_close(slowed[i], wanted, rtol=1e-5, atol=0)
    assert torch.equal(slowed[turns >= 33], usual[turns >= 33])
    assert torch.equal(slowed[turns < 0.7], usual[turns < 0.7] / 4.0)


def test_yarn_makes_vectors_longer_so_that_scores_grow_by_the_square() -> None:
    x = torch.randn(1, 1, 3, 8)
    scaled = Rotary(8, scaling=YarnScaling(4.0, 64))(x, torch.tensor([0, 5, 9]))
    torch.testing.assert_close(scaled.norm(dim=-1), x.norm(dim=-1) * (0.1 * math.log(4.0) + 1.0))
    own = Rotary(8, scaling=YarnScaling(4.0, 64, attention=1.5))(x, torch.tensor([0, 5, 9]))
    torch.testing.assert_close(own.norm(dim=-1), x.norm(dim=-1) * 1.5)


def test_the_parts_of_a_head_that_are_not_turned_are_not_scaled() -> None:
    x = torch.randn(1, 1, 3, 8)
    out = Rotary(8, fraction=0.5, scaling=YarnScaling(4.0, 64))(x, torch.tensor([0, 5, 9]))
    assert torch.equal(out[..., 4:], x[..., 4:])


@pytest.mark.parametrize(
    "scaling",
    [LinearScaling(1.0), NTKScaling(1.0), Llama3Scaling(1.0, 64), YarnScaling(1.0, 64)],
    ids=lambda scaling: type(scaling).__name__,
)
def test_a_factor_of_one_changes_nothing(scaling: Scaling) -> None:
    positions = torch.tensor([0, 1, 50, 3000])
    for got, wanted in zip(
        Rotary(16, scaling=scaling).tables(positions), Rotary(16).tables(positions), strict=True
    ):
        torch.testing.assert_close(got, wanted, atol=1e-3, rtol=0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LinearScaling(0.5), "factor must be a finite number of at least 1, got 0.5"),
        (lambda: NTKScaling(math.inf), "factor must be a finite number"),
        (lambda: Llama3Scaling(8.0, 0), "original_length must be at least 1, got 0"),
        (lambda: Llama3Scaling(8.0, 64, low=4.0, high=1.0), "0 < low < high, got 4.0 and 1.0"),
        (lambda: YarnScaling(8.0, 64, fast=1.0, slow=2.0), "0 < slow < fast, got 2.0 and 1.0"),
        (lambda: YarnScaling(8.0, 64, attention=0.0), "attention must be a finite number above 0, got 0.0"),
        (lambda: Rotary(2, scaling=NTKScaling(2.0)), "at least two pairs, a width of 4, got 2"),
        (lambda: Rotary(8, base=0.5, scaling=YarnScaling(2.0, 64)), "YarnScaling needs a base above 1"),
    ],
)
def test_numbers_out_of_range_are_refused(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]


def test_a_scaling_that_is_no_scaling_is_refused() -> None:
    with pytest.raises(TypeError, match=r"must be a LinearScaling.* got dict; Rotary\.from_parameters reads"):
        Rotary(8, scaling={"rope_type": "linear"})  # type: ignore[arg-type]


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
PARAMETERS: list[tuple[dict[str, object], Rotary]] = [
    ({}, Rotary(16)),
    ({"rope_type": "default", "rope_theta": 5e5}, Rotary(16, 5e5)),
    ({"rope_type": "default", "partial_rotary_factor": 0.5}, Rotary(16, fraction=0.5)),
    ({"rope_type": "linear", "factor": 2}, Rotary(16, scaling=LinearScaling(2.0))),
    ({"rope_type": "ntk", "factor": 2.0}, Rotary(16, scaling=NTKScaling(2.0))),
    (
        {"rope_type": "llama3", "original_max_position_embeddings": 64, **LLAMA3},
        Rotary(16, scaling=Llama3Scaling(8.0, 64)),
    ),
    (
        {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "beta_fast": None},
        Rotary(16, scaling=YarnScaling(8.0, 64)),
    ),
]


@pytest.mark.parametrize(("parameters", "wanted"), PARAMETERS)
def test_parameters_of_a_config_are_read(parameters: dict[str, object], wanted: Rotary) -> None:
    assert repr(Rotary.from_parameters(16, parameters)) == repr(wanted)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"rope_type": "dynamic", "factor": 2.0}, "'yarn', got 'dynamic'; .* cached keys go stale"),
        ({"rope_type": "longrope"}, "'default', 'linear', 'ntk', 'llama3', 'yarn', got 'longrope'"),
        ({"rope_type": "linear", "factor": 2.0, "beta_fast": 1}, r"rope_theta, rope_type, got beta_fast"),
        ({"type": "linear", "factor": 2.0}, "got factor, type"),
        ({"rope_type": "linear"}, "kind 'linear' need a number as 'factor', got None"),
        ({"rope_type": "llama3", **LLAMA3}, "a number as 'original_max_position_embeddings', got None"),
        ({"rope_type": "linear", "factor": "2"}, "need a number as 'factor', got '2'"),
        (
            {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64, "truncate": 1},
            "true or false as 'truncate', got 1",
        ),
    ],
)
def test_unknown_parameters_are_refused(parameters: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Rotary.from_parameters(16, parameters)
