"""Gradients of head gates: per text, whatever the batches, and in line with what ablation measures."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pandas as pd
import pytest
import torch
import torch.nn.functional as F

from headwise.heads import ablate, importance, observe
from headwise.hub.subject import OwnSubject

Make = Callable[..., OwnSubject]


def by_hand(subject: OwnSubject, texts: list[str]) -> torch.Tensor:
    """Return |∂L/∂ξ| of each text alone, then the mean over texts, (n_layer, n_head)."""
    each = []
    for text in texts:
        ids = torch.tensor([subject.encode(text)])
        gates = torch.ones(3, 4, requires_grad=True)
        with observe(subject.model, gates=gates):
            loss = F.cross_entropy(subject.gpt(ids)[0, :-1], ids[0, 1:])
        each.append(torch.autograd.grad(loss, gates)[0].abs())
    return torch.stack(each).mean(0)


@pytest.mark.parametrize("tokens", [1, 120, 10_000])
def test_vectorised_equals_a_loop_over_texts(make_own: Make, texts: list[str], tokens: int) -> None:
    subject = make_own()
    table = importance(subject, texts, tokens=tokens)
    expected = by_hand(subject, texts)
    got = torch.tensor(table["gradient"].to_numpy()).view(3, 4).float()
    assert torch.allclose(got, expected, atol=1e-6, rtol=1e-5)
    normalised = expected / expected.norm(dim=1, keepdim=True)
    assert torch.allclose(
        torch.tensor(table["importance"].to_numpy()).view(3, 4).float(), normalised, atol=1e-6, rtol=1e-5
    )
    assert table[["layer", "head"]].to_numpy().tolist() == [[i, h] for i in range(3) for h in range(4)]


def test_the_same_texts_twice_give_the_same(make_own: Make, texts: list[str]) -> None:
    """Neither does a gradient stay from the call before, nor does the sum grow with the texts."""
    subject = make_own()
    first, second = importance(subject, texts), importance(subject, texts)
    doubled = importance(subject, [*texts, *texts], tokens=90)
    for other in (second, doubled):
        for column in ("importance", "gradient", "predicted"):
            assert other[column].tolist() == pytest.approx(first[column].tolist(), abs=1e-6)
    assert all(parameter.grad is None for parameter in subject.model.parameters())


def test_absolute_values_are_taken_per_text(make_own: Make, texts: list[str]) -> None:
    """The mean of absolutes is larger than the absolute of the mean, where signs differ between texts."""
    table = importance(make_own(), texts)
    assert (table["gradient"] + 1e-6 >= 0).all()
    assert (table["gradient"] > table["predicted"].abs() * 1.2).any()


@pytest.mark.parametrize("how", ["zero", "mean", "resample"])
def test_prediction_is_the_slope_of_the_loss(make_own: Make, texts: list[str], how: Any) -> None:
    """Where a head changes little, the first order is nearly all of it."""
    subject = make_own()
    with torch.no_grad():
        for layer in subject.layers:
            layer.module.o_proj.weight.mul_(1e-2)
    predicted = importance(subject, texts, how=how)
    measured = ablate(subject, texts, how=how, retrieval=None)
    size = measured.table["delta"].abs().max()
    difference = (predicted["predicted"] - measured.table["delta"]).abs().max()
    assert size > 1e-4
    assert difference < 0.05 * size
    assert measured.agreement(predicted).predicted > 0.95


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_callers_mode_does_not_matter(
    make_own: Make, texts: list[str], mode: Callable[[], AbstractContextManager[None]]
) -> None:
    subject = make_own()
    wanted = importance(subject, texts, how="mean")
    with mode():
        pd.testing.assert_frame_equal(importance(subject, texts, how="mean"), wanted)


def test_agreement_needs_the_same_heads(make_own: Make, texts: list[str]) -> None:
    subject = make_own()
    measured, gradients = ablate(subject, texts, retrieval=None), importance(subject, texts)
    agreement = measured.agreement(gradients)
    assert -1 <= agreement.importance <= 1
    with pytest.raises(ValueError, match="lacks heads"):
        measured.agreement(gradients.iloc[:-1])


def test_a_head_without_effect_has_no_importance(make_own: Make, texts: list[str]) -> None:
    subject = make_own()
    with torch.no_grad():
        subject.layers[1].module.o_proj.weight.zero_()
    table = importance(subject, texts)
    of_layer = table[table["layer"] == 1]
    assert of_layer["importance"].tolist() == [0.0] * 4
    assert of_layer["gradient"].tolist() == [0.0] * 4
