"""Drawing a token: exact rules, checked by counting."""

from __future__ import annotations

import pytest
import torch

from headwise.model import Sampling

LOGITS = torch.log(torch.tensor([0.1, 0.4, 0.2, 0.3]))


def share(sampling: Sampling, logits: torch.Tensor = LOGITS, draws: int = 2000) -> list[float]:
    generator = torch.Generator().manual_seed(0)
    ids = [sampling.draw(logits, generator) for _ in range(draws)]
    return [ids.count(i) / draws for i in range(len(logits))]


def test_plain_draws_follow_the_probabilities() -> None:
    assert share(Sampling()) == pytest.approx([0.1, 0.4, 0.2, 0.3], abs=0.04)


def test_zero_temperature_is_argmax_and_the_lowest_id_among_equals() -> None:
    assert share(Sampling(0.0), draws=20) == [0, 1, 0, 0]
    assert Sampling(0.0).draw(torch.tensor([1.0, 3.0, 3.0]), torch.Generator()) == 1


def test_temperature_sharpens() -> None:
    assert share(Sampling(0.5)) == pytest.approx([1 / 30, 16 / 30, 4 / 30, 9 / 30], abs=0.04)


@pytest.mark.parametrize("temperature", [1e-30, 1e-6])
def test_tiny_temperatures_do_not_overflow(temperature: float) -> None:
    assert share(Sampling(temperature), draws=10) == [0, 1, 0, 0]


def test_top_k_keeps_exactly_k_also_among_ties() -> None:
    assert share(Sampling(top_k=2)) == pytest.approx([0, 4 / 7, 0, 3 / 7], abs=0.04)
    ties = share(Sampling(top_k=2), torch.zeros(5))
    assert sum(s > 0 for s in ties) == 2


@pytest.mark.parametrize(
    "off", [{"top_k": None}, {"top_k": 0}, {"top_p": 1.0}, {"top_p": None}, {"top_k": 4}]
)
def test_limits_that_are_off_change_nothing(off: dict) -> None:
    assert share(Sampling(**off)) == share(Sampling())


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.39, [1]), (0.41, [1, 3]), (0.69, [1, 3]), (0.71, [1, 2, 3]), (0.95, [0, 1, 2, 3])]
)
def test_top_p_keeps_the_fewest_that_reach_p(top_p: float, kept: list[int]) -> None:
    assert [i for i, s in enumerate(share(Sampling(top_p=top_p))) if s > 0] == kept


def test_top_p_always_keeps_one() -> None:
    assert share(Sampling(top_p=1e-9), draws=10) == [0, 1, 0, 0]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": -0.1}, "temperature .* got -0.1"),
        ({"temperature": float("nan")}, "temperature .* got nan"),
        ({"temperature": float("inf")}, "temperature .* got inf"),
        ({"top_k": -1}, "top_k .* got -1"),
        ({"top_p": 0.0}, "top_p .* got 0.0"),
        ({"top_p": 1.5}, "top_p .* got 1.5"),
    ],
)
def test_values_out_of_range_are_refused(fields: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sampling(**fields)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("score", [float("nan"), float("inf")])
def test_scores_that_are_not_finite_are_refused_not_drawn_from(temperature: float, score: float) -> None:
    with pytest.raises(ValueError, match="scores are not finite"):
        Sampling(temperature).draw(torch.tensor([0.0, score]), torch.Generator())
