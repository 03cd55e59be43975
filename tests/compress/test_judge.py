"""The probes ask what they say they ask, and right answers are counted exactly."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headwise.compress.passkeys import passkey_scores
from headwise.compress.recall import (
    recall_lines,
    recall_rows,
    recall_scores,
)
from headwise.compress.text_loss import completes_bigram, text_losses
from headwise.compress.verdicts import recall_verdict
from headwise.hub.subject import OwnSubject
from headwise.model import GPT, GPTConfig
from headwise.text import Tokenizer

KEYS, VALUES, BLANK = range(1, 40), range(40, 80), 0


class Recalls(GPT):
    """A model that looks up what followed a token where it stood first, up to a distance."""

    def __init__(self, reach: int = 10**6, vocab: int = 80) -> None:
        super().__init__(GPTConfig(n_layer=1, d_model=4, n_head=1, vocab_size=vocab, block_size=512))
        self.reach = reach

    def forward(self, ids: Tensor, **_: Any) -> Tensor:  # type: ignore[override]
        said = torch.zeros_like(ids)
        for row, tokens in enumerate(ids.tolist()):
            for here, token in enumerate(tokens):
                found = [p for p in range(here) if tokens[p] == token and here - p <= self.reach]
                said[row, here] = tokens[found[0] + 1] if found else 0
        return 10.0 * F.one_hot(said, self.config.vocab_size).float()


def rows_of_recall(**changes: Any) -> Any:
    given = {"keys": KEYS, "values": VALUES, "blank": BLANK, "seed": 3}
    return recall_rows(20, 96, 8, **(given | changes))


def test_rows_hold_pairs_and_then_each_key_once_more() -> None:
    task = rows_of_recall()
    assert task.ids.shape == (20, 96)
    for ids, wanted, gap in zip(task.ids.tolist(), task.wanted.tolist(), task.gap.tolist(), strict=True):
        keys, values = ids[:16:2], ids[1:16:2]
        assert len(set(keys)) == len(set(values)) == 8
        assert set(keys) <= set(KEYS)
        assert set(values) <= set(VALUES)
        asked = [p for p in range(96) if wanted[p] != -100]
        assert all(p >= 16 and p % 2 == 0 for p in asked)
        assert sorted(ids[p] for p in asked) == sorted(keys)
        for p in asked:
            assert wanted[p] == values[keys.index(ids[p])]
            assert gap[p] == p - 2 * keys.index(ids[p])
        assert all(ids[p] == BLANK for p in range(16, 96) if p not in asked)


def test_the_same_seed_gives_the_same_rows_and_another_does_not() -> None:
    assert torch.equal(rows_of_recall().ids, rows_of_recall().ids)
    assert not torch.equal(rows_of_recall().ids, rows_of_recall(seed=4).ids)


def test_a_small_power_pulls_questions_to_the_front() -> None:
    def in_first_quarter(power: float) -> float:
        task = recall_rows(200, 160, 8, keys=KEYS, values=VALUES, blank=BLANK, power=power)
        return float((task.wanted[:, 16:52] != -100).sum() / (task.wanted != -100).sum())

    assert in_first_quarter(0.01) > 0.5
    assert 0.2 < in_first_quarter(1.0) < 0.3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"values": range(30, 80)}, "keys, values and blank must be different tokens"),
        ({"blank": 40}, "must be different tokens"),
        ({"keys": range(1, 5)}, "8 pairs need as many different keys and values, got 4 and 40"),
        ({"power": 0.0}, "must be numbers above 0"),
        ({"blank": None}, r"only rows of 4 · pairs = 32 tokens with answered=True are filled, got length=96"),
    ],
)
def test_tasks_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rows_of_recall(**changes)
    with pytest.raises(ValueError, match="length=31 is too short for 8 pairs, which take 32 tok"):
        recall_rows(1, 31, 8, keys=KEYS, values=VALUES, blank=BLANK)


def test_answers_stand_after_the_questions() -> None:
    plain, answered = rows_of_recall(), rows_of_recall(answered=True)
    asked = plain.wanted != -100
    assert torch.equal(plain.wanted, answered.wanted)
    assert torch.equal(answered.ids[:, 1:][asked[:, :-1]], plain.wanted[asked])
    rest = ~asked.roll(1, dims=1)
    assert torch.equal(plain.ids[rest], answered.ids[rest])
    filled = recall_rows(20, 32, 8, keys=KEYS, values=VALUES, answered=True)
    assert not (filled.ids == BLANK).any()
    assert sorted(filled.ids[0, 16::2].tolist()) == sorted(filled.ids[0, :16:2].tolist())


def test_lines_to_learn_recall_from() -> None:
    lines = recall_lines(50, 3, keys="가나다라", values="0123", seed=2)
    assert lines == recall_lines(50, 3, keys="가나다라", values="0123", seed=2)
    assert lines != recall_lines(50, 3, keys="가나다라", values="0123", seed=3)
    for line in lines:
        assert len(line) == 12
        told = dict(zip(line[:6:2], line[1:6:2], strict=True))
        assert set(told) < {*"가나다라"}
        assert len({*told.values()} & {*"0123"}) == 3
        assert told == dict(zip(line[6::2], line[7::2], strict=True))
    assert {line[6] == line[0] for line in lines} == {True, False}  # in no fixed order


@pytest.mark.parametrize(
    ("keys", "values", "message"),
    [
        ("aab", "xyz", "must be different characters, got 'aab' and 'xyz'"),
        ("abc", "cde", "must be different characters"),
        ("a\nb", "xyz", "must stand for themselves"),
        ("ae", "\u0301z", "must stand for themselves"),
        ("ab", "xyz", "3 pairs need as many different keys and values, got 2 and 3"),
    ],
)
def test_lines_that_cannot_be_are_refused(keys: str, values: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        recall_lines(1, 3, keys=keys, values=values)


def test_scores_are_by_the_distance() -> None:
    task = rows_of_recall(power=1.0)
    scores = recall_scores(Recalls(reach=30), task, buckets=[31, 60])
    assert scores[0, 31].right == scores[0, 31].asked > 0
    assert scores[31, 60].right == scores[60, 97].right == 0
    assert sum(s.asked for s in scores.values()) == 20 * 8


def test_a_parent_that_cannot_recall_cannot_judge() -> None:
    task = rows_of_recall(power=1.0)
    good, bad = Recalls(), Recalls(reach=30)
    assert recall_verdict([good, bad], task).can_judge
    assert recall_verdict([good, bad], task).shares[0] == 1.0
    assert not recall_verdict([bad, good], task).can_judge


class Text(OwnSubject):
    special_ids = frozenset()
    vocab_size = 64


ALPHABET = "".join(sorted({*"\nThe pass key is . Remember it.0123456789abcdefghijklmnopqrstuvwxyz"}))


def test_a_pass_key_is_right_only_as_a_whole() -> None:
    tokenizer = Tokenizer.from_alphabet(ALPHABET)

    class Copies(Recalls):
        """Says what followed the last eight characters where they stood first; knows one digit too few."""

        def __init__(self, wrong_after: int) -> None:
            super().__init__(vocab=tokenizer.vocab_size)
            self.wrong_after = wrong_after

        def forward(self, ids: Tensor, **_: Any) -> Tensor:  # type: ignore[override]
            text = tokenizer.decode(ids[0].tolist())
            key = text.split("The pass key is ")[1][:5]
            said = torch.zeros_like(ids)
            answer = tokenizer.encode(key)[: self.wrong_after]
            said[0, -6 : -6 + len(answer)] = torch.tensor(answer)
            return F.one_hot(said, self.config.vocab_size).float()

    for known, share in ((5, 1.0), (4, 0.0)):
        subject = Text(Copies(known), tokenizer)
        scores = passkey_scores(subject, "abc xyz ", length=200, depths=[0.0, 0.5, 1.0], tries=3)
        assert [s.share for s in scores.values()] == [share] * 3


def test_pass_keys_that_do_not_fit_are_refused() -> None:
    subject = Text(Recalls(vocab=len(ALPHABET)), Tokenizer.from_alphabet(ALPHABET))
    with pytest.raises(ValueError, match="length=40 is too short: telling the number and asking"):
        passkey_scores(subject, "abc", length=40)
    with pytest.raises(ValueError, match="length=600 is more than the 512 tokens"):
        passkey_scores(subject, "abc", length=600)
    with pytest.raises(ValueError, match="filler is empty"):
        passkey_scores(subject, "", length=100)


def test_a_bigram_recurs_only_after_it_was_there() -> None:
    found = completes_bigram(torch.tensor([[1, 2, 3, 1, 2, 1, 2, 4]]))
    assert found.tolist() == [[False, False, False, True, False, True, False]]


def test_losses_are_compared_row_by_row(make_gpt: Callable[..., nn.Module]) -> None:
    torch.manual_seed(0)
    parent, child = make_gpt(n_head=4, d_head=6), make_gpt(n_head=4, d_head=6, seed=1)
    rows = list(torch.randint(31, (12, 1, 24)))
    own, other, same = text_losses([parent, child, parent], rows)
    assert own.perplexity == math.exp(own.loss)
    assert (own.more, own.low, own.high) == (0.0, 0.0, 0.0)
    assert (same.more, same.low, same.high) == (0.0, 0.0, 0.0)
    assert other.low < other.more < other.high
    assert other.more == pytest.approx(other.loss - own.loss)
    share = float(torch.cat([completes_bigram(row) for row in rows]).double().mean())
    assert share * own.recurring + (1 - share) * own.other == pytest.approx(own.loss)
    assert own.bits_per_byte(276, 552) == pytest.approx(own.loss / 2 / math.log(2))
    with pytest.raises(ValueError, match="at least 2 rows"):
        text_losses([parent], rows[:1])
