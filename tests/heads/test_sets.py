"""Pairs and greedy sets against passes with all their heads shut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from headwise.heads import greedy, observe, pairs
from headwise.hub.subject import OwnSubject

Make = Callable[..., OwnSubject]


def loss(subject: OwnSubject, texts: list[str], silent: list[tuple[int, int]]) -> float:
    """Return the mean loss per token with heads shut."""
    gates = torch.ones(3, 4)
    for layer, head in silent:
        gates[layer, head] = 0.0
    total, count = 0.0, 0
    for text in texts:
        ids = torch.tensor([subject.encode(text)])
        with torch.no_grad(), observe(subject.model, gates=gates):
            logits = subject.gpt(ids)[0, :-1]
        total += float(F.cross_entropy(logits, ids[0, 1:], reduction="sum"))
        count += ids.shape[1] - 1
    return total / count


def test_pairs_are_measured_together_and_apart(make_own: Make, texts: list[str]) -> None:
    subject = make_own()
    heads = [(2, 0), (0, 1), (0, 3), (1, 2)]
    told: list[tuple[int, int]] = []
    table = pairs(subject, texts, heads, on_progress=lambda *state: told.append(state))
    assert told[-1] == (10, 10)
    clean = loss(subject, texts, [])
    named = [((r.layer_a, r.head_a), (r.layer_b, r.head_b)) for r in table.itertuples()]
    order = sorted(heads)
    assert named == [(a, b) for i, a in enumerate(order) for b in order[i + 1 :]]
    for (a, b), row in zip(named, table.itertuples(), strict=True):
        one, two = loss(subject, texts, [a]) - clean, loss(subject, texts, [b]) - clean
        both = loss(subject, texts, [a, b]) - clean
        assert (row.delta_a, row.delta_b, row.joint) == pytest.approx((one, two, both), abs=1e-5)
        assert row.interaction == pytest.approx(both - one - two, abs=2e-5)
        assert row.low <= row.interaction <= row.high
    assert table["interaction"].abs().max() > 1e-3


def test_greedy_takes_the_cheapest_each_time(make_own: Make, texts: list[str]) -> None:
    subject = make_own()
    told: list[tuple[int, int]] = []
    table = greedy(subject, texts, budget=3, on_progress=lambda *state: told.append(state))
    assert told == [(12, 33), (23, 33), (33, 33)]
    silent: list[tuple[int, int]] = []
    clean = before = loss(subject, texts, [])
    for step, row in enumerate(table.itertuples(), 1):
        left = [(layer, head) for layer in range(3) for head in range(4) if (layer, head) not in silent]
        losses = {head: loss(subject, texts, [*silent, head]) for head in left}
        best = min(losses, key=losses.__getitem__)
        assert (row.step, row.layer, row.head) == (step, *best)
        assert row.delta == pytest.approx(losses[best] - clean, abs=1e-5)
        assert row.cost == pytest.approx(losses[best] - before, abs=2e-5)
        silent.append(best)
        before = losses[best]


def test_greedy_stops_before_the_loss_rises_too_far(trained: OwnSubject, texts: list[str]) -> None:
    subject = trained
    everything = greedy(subject, texts, budget=12)
    assert len(everything) == 12
    limit = float(everything["delta"].iloc[:6].max())
    some = greedy(subject, texts, most=limit)
    assert 0 < len(some) < 12
    assert (some["delta"] <= limit).all()
    assert float(everything["delta"].iloc[len(some)]) > limit
    chosen = greedy(subject, texts, budget=2, heads=[(1, 1), (2, 2), (0, 0)])
    assert {(row.layer, row.head) for row in chosen.itertuples()} < {(1, 1), (2, 2), (0, 0)}
    assert list(greedy(subject, texts, most=-100.0).columns) == list(some.columns)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give budget"),
        ({"budget": 0}, "budget must lie in 1 … 12"),
        ({"budget": 13}, "budget must lie in 1 … 12"),
        ({"budget": 1, "heads": [(9, 0)]}, "names layer 9"),
        ({"most": float("nan")}, "most must be a number of nats"),
        ({"budget": 1, "how": "none"}, "how must be one of"),
    ],
)
def test_greedy_refuses(make_own: Make, texts: list[str], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        greedy(make_own(), texts, **options)


def test_pairs_refuse(make_own: Make, texts: list[str]) -> None:
    with pytest.raises(ValueError, match="a pair needs two heads, got 1"):
        pairs(make_own(), texts, [(0, 0)])
    with pytest.raises(ValueError, match="there are no texts"):
        pairs(make_own(), [], [(0, 0), (0, 1)])
