"""Which heads go: measured one by one, one after the other, by lot; at once or in rounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headwise.compress import prune, prune_gradually, rank, select
from headwise.compress.rows import losses
from headwise.heads import observe
from headwise.hub.subject import OwnSubject
from headwise.hub.surgery import head_counts
from headwise.text import Tokenizer

Heads = list[tuple[int, int]]
TEXTS = torch.randint(31, (3, 20), generator=torch.Generator().manual_seed(1)).tolist()
ROWS = [torch.tensor([text]) for text in TEXTS]


@pytest.fixture
def make_subject(make_gpt: Callable[..., Any]) -> Callable[..., OwnSubject]:
    tokenizer = Tokenizer.from_alphabet("abcdefghijklmnopqrstuvwxyz01234")
    return lambda **changes: OwnSubject(make_gpt(**({"n_head": 4, "d_head": 6} | changes)), tokenizer)


def loss(subject: OwnSubject, silent: Heads) -> float:
    gates = torch.ones(2, subject.gpt.config.n_head)
    for layer, head in silent:
        gates[layer, head] = 0.0
    with observe(subject.model, gates=gates):
        return float(losses(subject.model, ROWS).mean())


def by_hand(subject: OwnSubject, parts: list[Heads], count: int, stays: int) -> Heads:
    """Take away the cheapest part again and again; so many parts of each layer stay."""
    gone: Heads = []
    while len(gone) < count:
        left = [
            part
            for part in parts
            if not {*part} & {*gone}
            and sum(other[0][0] == part[0][0] and not {*other} & {*gone} for other in parts) > stays
        ]
        gone += min(left, key=lambda part: loss(subject, gone + part))
    return sorted(gone)


def test_greedy_takes_the_cheapest_given_those_that_are_gone(make_subject: Callable[..., OwnSubject]) -> None:
    subject = make_subject()
    parts = [[(layer, head)] for layer in range(2) for head in range(4)]
    for count in (3, 6):
        assert select(subject, TEXTS, count, "greedy") == by_hand(subject, parts, count, stays=1)
    without = [part for part in parts if part[0] not in [(0, 0), (1, 2)]]
    protected = select(subject, TEXTS, 3, "greedy", protect=[(0, 0), (1, 2)])
    assert protected == by_hand(subject, without, 3, stays=0)
    even = select(subject, TEXTS, 4, "greedy", uniform=True)
    assert [layer for layer, _ in even] == [0, 0, 1, 1]


def test_greedy_takes_whole_groups(make_subject: Callable[..., OwnSubject]) -> None:
    subject = make_subject(n_kv_head=2)
    groups = [[(layer, 2 * group), (layer, 2 * group + 1)] for layer in range(2) for group in range(2)]
    told: list[tuple[int, int]] = []
    found = select(subject, TEXTS, 4, "greedy", on_progress=lambda *state: told.append(state))
    assert found == by_hand(subject, groups, 4, stays=1)
    assert told == [(2, 4), (4, 4)]
    within = select(subject, TEXTS, 2, "greedy", rule="within")
    assert {head // 2 for _, head in within} == {0, 1}
    assert head_counts(prune(subject.model, within).model) in ([(2, 2), (4, 2)], [(4, 2), (2, 2)])
    with pytest.raises(ValueError, match=r"3 heads cannot be removed exactly.*parts of 2 heads, and 2 is"):
        select(subject, TEXTS, 3, "greedy")
    with pytest.raises(ValueError, match="3 heads cannot be taken evenly from 2 layers"):
        select(subject, TEXTS, 3, "greedy", uniform=True)
    with pytest.raises(ValueError, match="2 heads cannot be taken evenly, 1 from each of 2 layers"):
        select(subject, TEXTS, 2, "greedy", uniform=True)
    with pytest.raises(ValueError, match="protect names layer 5"):
        select(subject, TEXTS, 2, "greedy", protect=[(5, 0)])


def test_greedy_leaves_what_adds_up_in_every_round(make_subject: Callable[..., OwnSubject]) -> None:
    subject = make_subject(n_kv_head=2)

    def choose(now: Any, count: int, stay: Any) -> Heads:
        return select(now, TEXTS, count, "greedy", protect=stay, rule="within")

    made, stages = prune_gradually(subject, 4, steps=2, select=choose, rule="within")
    assert [len(stage.removed) for stage in stages] == [2, 2]
    assert sum(h for h, _ in made.after) == 4


def test_orders_name_every_head_once(make_subject: Callable[..., OwnSubject]) -> None:
    subject = make_subject()
    every = [(layer, head) for layer in range(2) for head in range(4)]
    alone = {head: loss(subject, [head]) for head in every}
    assert rank(subject, TEXTS, "ablation") == sorted(every, key=alone.__getitem__)
    lots = [rank(subject, TEXTS, "random", seed=seed) for seed in range(3)]
    assert all(sorted(order) == every for order in (*lots, rank(subject, TEXTS)))
    assert lots[0] != lots[1]
    assert lots[0] == rank(subject, TEXTS, "random", seed=0)
    with pytest.raises(ValueError, match="by importance, ablation or random, got 'greedy'"):
        rank(subject, TEXTS, "greedy")


def test_rounds_name_heads_as_they_were_at_first(
    make_subject: Callable[..., OwnSubject], gap: Callable[[nn.Module, nn.Module], float]
) -> None:
    subject = make_subject()
    seen: list[tuple[int, Heads]] = []

    def first_free(now: OwnSubject, count: int, stay: Heads) -> Heads:  # type: ignore[type-arg]
        seen.append((count, sorted(stay)))
        heads = [(1, h) for h in range(head_counts(now.model)[1][0])]
        return [head for head in heads if head not in stay][:count]

    made, stages = prune_gradually(
        subject, 3, steps=3, select=first_free, protect=[(1, 1)], on_stage=lambda _, gone: gone
    )  # type: ignore[arg-type]
    assert [stage.removed for stage in stages] == [[(1, 0)], [(1, 2)], [(1, 3)]]
    assert [stage.note for stage in stages] == [1, 2, 3]
    assert seen == [(1, [(1, 1)]), (1, [(1, 0)]), (1, [(1, 0)])]  # the protected head moved up
    assert made.removed == [(1, 0), (1, 2), (1, 3)]
    assert (made.before, made.after) == ([(4, 4), (4, 4)], [(4, 4), (1, 1)])
    assert gap(made.model, prune(subject.model, made.removed).model) < 1e-6


def test_the_model_learns_on_after_each_round(make_subject: Callable[..., OwnSubject]) -> None:
    subject = make_subject(n_kv_head=2)
    learned: list[list[tuple[int, int]]] = []

    def recover(model: nn.Module) -> nn.Module:
        learned.append(head_counts(model))
        with torch.no_grad():
            model.token_embedding.weight.mul_(0.5)  # type: ignore[union-attr, operator]
        return model

    def choose(now: Any, count: int, stay: Any) -> Heads:
        return select(now, TEXTS, count, "ablation", protect=stay)

    made, _ = prune_gradually(subject, 4, steps=2, select=choose, recover=recover)
    assert [sum(h for h, _ in counts) for counts in learned] == [6, 4]
    weight: Tensor = made.model.token_embedding.weight  # type: ignore[assignment]
    assert torch.equal(weight, 0.25 * subject.gpt.token_embedding.weight)


def test_rounds_that_cannot_be_are_refused(make_subject: Callable[..., OwnSubject]) -> None:
    subject = make_subject(n_kv_head=2)

    def choose(now: Any, count: int, stay: Any) -> Heads:
        raise AssertionError

    for steps, kind in ((3, {}), (0, {}), (2, {"uniform": True})):
        with pytest.raises(ValueError, match=rf"steps must lie in 1 … \d, got {steps}: heads go in parts of"):
            prune_gradually(subject, 4, steps=steps, select=choose, **kind)  # type: ignore[arg-type]
