"""Arguments of a wrong kind are named in one sentence, whatever they are."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from headwise import heads
from headwise.compress.pruning import prune
from headwise.hub.subject import OwnSubject

CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "statistics": (heads.statistics, (["a dog"],)),
    "ablate": (heads.ablate, (["a dog"],)),
    "importance": (heads.importance, (["a dog"],)),
    "pairs": (heads.pairs, (["a dog"], [(0, 1), (0, 2)])),
    "greedy": (partial(heads.greedy, budget=1), (["a dog"],)),
    "similarity": (heads.similarity, (["a dog"],)),
}


@pytest.mark.parametrize("name", [*CALLS, "induction_scores"])
@pytest.mark.parametrize("given", [None, "runs/book", 3])
def test_a_subject_is_asked_for(name: str, given: object) -> None:
    call, others = CALLS.get(name, (heads.induction_scores, ()))
    with pytest.raises(TypeError, match=rf"^subject must be a hub.Subject, got {type(given).__name__};"):
        call(given, *others)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (None, "^texts must be a sequence of texts, got NoneType"),
        ("a dog", "^texts must be a sequence of texts, got one string"),
        ([None], "^text 0 must be a text or a list of ids, got NoneType"),
        ([b"a dog"], "^text 0 must be a text or a list of ids, got bytes"),
        ([["a", "dog"]], "^text 0 holds 'a'; ids of tokens are whole numbers"),
        ([[1, 2.0]], "^text 0 holds 2.0; ids of tokens are whole numbers"),
        ((text for text in ["a dog"]), "^texts must be a sequence of texts, got generator; give a list"),
    ],
)
def test_texts_are_asked_for(name: str, texts: Any, says: str, make_own: Callable[..., OwnSubject]) -> None:
    call, others = CALLS[name]
    with pytest.raises(TypeError, match=says):
        call(make_own(), texts, *others[1:])


@pytest.mark.parametrize("given", [3, "all", [3], [(0,)], [(0, 1.5)], [(0, True)]])
def test_heads_are_pairs_of_numbers(given: Any, make_own: Callable[..., OwnSubject]) -> None:
    for call, name in ((heads.ablate, "heads"), (heads.statistics, "maps"), (heads.statistics, "curves")):
        with pytest.raises(TypeError, match=f"^{name} must "):
            call(make_own(), ["a dog"], **{name: given})


def test_heads_may_be_those_of_json_and_of_tables(make_own: Callable[..., OwnSubject]) -> None:
    subject = make_own()
    wanted = heads.statistics(subject, ["a dog"], maps=[(1, 2)], curves=[(1, 2)])
    for given in ([[1, 2]], [(np.int64(1), np.int64(2))]):
        found = heads.statistics(subject, ["a dog"], maps=given, curves=given)  # type: ignore[arg-type]
        assert found.maps.keys() == wanted.maps.keys()
        assert torch.equal(found.received[1, 2][0], wanted.received[1, 2][0])
        assert [
            (r.layer, r.head) for r in heads.ablate(subject, ["a dog"], heads=given).table.itertuples()
        ] == [(1, 2)]  # type: ignore[arg-type]
        assert prune(subject.model, given).removed == [(1, 2)]  # type: ignore[arg-type]


def test_the_others_say_what_they_want(make_own: Callable[..., OwnSubject]) -> None:
    with pytest.raises(TypeError, match="^b must be a hub.Subject, got NoneType"):
        heads.compare(make_own(), None, ["a dog"])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="^table must be the table of statistics"):
        heads.roles(None)  # type: ignore[arg-type]
    with (
        pytest.raises(TypeError, match="^model must be a module of PyTorch, got NoneType"),
        heads.observe(None),
    ):  # type: ignore[arg-type]
        pass
    with pytest.raises(TypeError, match="^observer must be a function"), heads.observe(make_own().model, 3):  # type: ignore[arg-type]
        pass
