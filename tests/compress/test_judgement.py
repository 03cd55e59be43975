"""A judgement says of known models what is known of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from headwise.compress import PassKeys, check_probe, group, judge, judged_rows, recall_rows, recall_tasks
from headwise.compress.footprint import footprint, speeds
from headwise.compress.judging import Judgement
from headwise.compress.recall_tokens import recall_tokens
from headwise.compress.retrieval import retrieval_heads, retrieval_scores
from headwise.compress.verdicts import GATE, recall_verdicts
from headwise.cost.timing import turns
from headwise.hub.subject import OwnSubject
from headwise.text import Tokenizer
from headwise.text.corpus import Corpus

Make = Callable[..., OwnSubject]
TEXT = "the quick brown fox 12 jumps over.\n the lazy dog sits there. " * 20


def judged(subjects: list[OwnSubject], **changes: object) -> Judgement:
    rows = judged_rows(subjects, Corpus.from_text(TEXT), most=240)
    given = {"recall": recall_tasks(subjects[0], longest=80, rows=4), "length": 20, "seconds": None}
    return judge(subjects, rows, **(given | changes))  # type: ignore[arg-type]


def test_a_planted_recaller_recalls_everything_at_every_gap(make_recaller: Make) -> None:
    subject = make_recaller()
    for length, answered in ((None, True), (80, True), (80, False)):
        for task in recall_tasks(subject, longest=80, rows=4, length=length, answered=answered):
            for verdict in recall_verdicts([subject.model], task, [8, 16, 32]):
                assert verdict.shares == [1.0]
                assert verdict.can_judge


def test_what_a_child_has_forgotten_is_lost_in_recall_exactly(make_recaller: Make) -> None:
    parent, child = make_recaller(), make_recaller(knows=24)  # of the vocabulary it forgets l … z
    (task,) = recall_tasks(parent, pairs=[4], powers=[1.0], rows=16)
    forgotten = [v for v in task.values if v >= 24]
    lost = float(torch.isin(task.wanted, torch.tensor(forgotten)).sum() / (task.wanted != -100).sum())
    (verdict,) = recall_verdicts([parent.model, child.model], task)
    assert verdict.shares == [1.0, 1.0 - lost]
    assert verdict.chance == 1 / len(task.values)
    more = verdict.more[1]
    assert more.mean == pytest.approx(-lost)
    assert more.low < more.mean < more.high < 0
    assert (verdict.more[0].low, verdict.more[0].high) == (0.0, 0.0)


def test_the_gate_is_the_parents_and_holds_in_each_range_of_gaps(make_recaller: Make) -> None:
    good, bad = make_recaller(), make_recaller(knows=20)
    found = judged([bad, good], gaps=[8, 16])
    for verdict in found.recall:
        assert verdict.shares[0] < GATE
        assert verdict.shares[1] == 1.0
        assert not verdict.can_judge
    assert {*found.table[found.table["measure"] == "recall"]["verdict"]} == {"cannot judge"}
    assert {*found.table[found.table["measure"] == "loss"]["verdict"]} == {""}


def test_the_table_and_json_say_the_same(make_recaller: Make) -> None:
    parent, child = make_recaller(), make_recaller(knows=24)
    found = judged([parent, child, parent], gaps=[8, 16])
    assert len(found.names) == 3
    table, plain = found.table, found.to_json()
    losses = table[table["measure"] == "loss"]
    assert losses["value"].tolist() == [m["text"]["loss"] for m in plain["models"]]
    assert losses["low"].tolist() == [m["text"]["low"] for m in plain["models"]]
    assert found.text[2].more == found.text[2].low == found.text[2].high == 0.0
    recall = table[table["measure"] == "recall"]
    assert recall[recall["model"] == child.name]["value"].tolist()
    for verdict, row in zip(plain["recall"], recall.head(len(plain["recall"])).itertuples(), strict=True):
        assert (verdict["shares"][0], verdict["pairs"], verdict["chance"]) == (
            row.value,
            row.pairs,
            row.chance,
        )
    assert found.text_bytes == found.tokens  # characters of one byte
    assert found.bits_per_byte[0] == pytest.approx(found.text[0].loss / torch.log(torch.tensor(2.0)).item())


def test_bytes_of_text_are_counted_as_utf8(make_recaller: Make) -> None:
    tokenizer = Tokenizer.train("char", ["나는 abc"])
    subject = make_recaller()
    hangul = OwnSubject(resized(subject, tokenizer.vocab_size), tokenizer)
    row = torch.tensor([tokenizer.encode("a나는 나는")])
    found = judge([hangul], [row, row], length=4, seconds=None)
    assert (found.tokens, found.text_bytes) == (10, 2 * (3 * 4 + 1))


def resized(subject: OwnSubject, vocab_size: int) -> torch.nn.Module:
    from headwise.model import GPT

    return GPT(subject.gpt.config.model_copy(update={"vocab_size": vocab_size}))


@pytest.mark.parametrize("kv_heads", [2, 1])
def test_a_grouped_models_cache_is_smaller_by_exactly_the_ratio(make_recaller: Make, kv_heads: int) -> None:
    parent = make_recaller()
    child = OwnSubject(group(parent.model, kv_heads, "mean").model, parent.tokenizer)  # type: ignore[arg-type]
    sizes = [footprint(subject, 70) for subject in (parent, child)]
    assert sizes[0].cache_bytes * kv_heads == sizes[1].cache_bytes * 4
    assert [s.cache_bytes for s in sizes] == [s.predicted for s in sizes]
    assert sizes[0].cache_bytes == 2 * 2 * 4 * 70 * 80 * 4  # K and V, layers, heads, tokens, width, bytes
    assert sizes[1].parameters == child.gpt.num_parameters() < parent.gpt.num_parameters()


def test_a_model_without_a_cache_is_refused() -> None:
    class Plain(torch.nn.Module):
        def forward(self, input_ids: Tensor) -> Tensor:
            return input_ids

    subject: Any = SimpleNamespace(model=Plain(), max_tokens=None, vocab_size=5, device="cpu")
    with pytest.raises(ValueError, match="Plain keeps no keys and values"):
        footprint(subject, 4)


def test_models_are_timed_in_turn(make_recaller: Make) -> None:
    found = speeds([make_recaller(1), make_recaller(2)], 40, seconds=0.0, least=3)
    assert [(s.read, s.written, s.prefill.runs, s.decode.runs) for s in found] == [(24, 16, 3, 3)] * 2
    assert all(0 < s.prefill.best <= s.prefill.median and s.decode.median > 0 for s in found)
    assert list(turns(3, seconds=0.0, least=4)) == [0, 1, 2, 1, 2, 0, 2, 0, 1, 0, 1, 2]


def test_keys_and_values_are_drawn_in_a_fixed_way(make_recaller: Make) -> None:
    subject = make_recaller()
    keys, values = recall_tokens(subject)
    assert subject.decode(keys) == "02468acegikmoqsuwy"
    assert subject.decode(values) == "13579bdfhjlnprtvxz"
    keys, values = recall_tokens(subject, "xyz", "0 1")
    assert (subject.decode(keys), subject.decode(values)) == ("xyz", "0 1")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"keys": "ab"}, "give keys and values both, or neither"),
        ({"keys": "ab", "values": "bc"}, "must be different characters, got 'ab' and 'bc'"),
        ({"keys": "가나", "values": "ab"}, "outside the vocabulary"),
        ({"keys": "ab", "values": "cd"}, "4 pairs do not fit: there are 2 keys and 2 values"),
        ({"pairs": [20]}, "20 pairs need as many different keys and values, got 18 and 18"),
        ({"pairs": [4, 8], "length": 20}, "length=20 is too short for 8 pairs"),
        ({"length": 200}, "rows of 200 tokens are more than the 80"),
        ({"length": 20, "blank": "?"}, "outside the vocabulary"),
        ({"length": 20, "blank": ".."}, "'..' is 2 tokens to"),
        ({"length": 20, "blank": "a"}, "must be different tokens"),
    ],
)
def test_tasks_that_cannot_be_made_are_refused(
    given: dict[str, object], message: str, make_recaller: Make
) -> None:
    with pytest.raises(ValueError, match=message):
        recall_tasks(make_recaller(), longest=80, **given)  # type: ignore[arg-type]


def test_rows_begin_as_the_tokenizer_begins_a_text(make_recaller: Make) -> None:
    task = recall_rows(3, 16, 4, keys=range(9), values=range(9, 20), answered=True)
    later = task.after([30, 31])
    assert later.ids[:, :2].tolist() == [[30, 31]] * 3
    assert torch.equal(later.ids[:, 2:], task.ids)
    assert torch.equal(later.gap[:, 2:], task.gap)
    assert (later.wanted[:, :2] == -100).all()
    (found,) = recall_verdicts([make_recaller().model], later)
    assert found.shares == [1.0]


def test_models_that_read_other_tokens_are_refused(make_recaller: Make) -> None:
    parent = make_recaller()
    renamed = "".join(chr(ord(c) + 1) for c in parent.tokenizer.decode(range(parent.vocab_size)))
    other = OwnSubject(parent.gpt, Tokenizer.from_alphabet(renamed), "other")
    rows: list[Tensor] = list(torch.randint(30, (2, 1, 20)))
    with pytest.raises(ValueError, match=r"token \d+ is '.*' to recalls.* and '.*' to other.*share a tok"):
        judge([parent, other], rows, length=10, seconds=None)
    few = OwnSubject(resized(parent, 5), Tokenizer.from_alphabet("abcde"), "few")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="has 39 tokens and few 5"):
        judge([parent, few], rows, length=10, seconds=None)
    with pytest.raises(ValueError, match="there is no model to judge"):
        judge([], rows, length=10)
    with pytest.raises(ValueError, match="rows of 20 tokens are more than the 16"):
        judge([parent, make_recaller(length=16)], rows, length=10, seconds=None)
    with pytest.raises(ValueError, match=r"length must lie in 1 … 80 tokens, got 200"):
        judge([parent], rows, length=200, seconds=None)
    with pytest.raises(ValueError, match="at least 2 rounds and 0 or more seconds"):
        judge([parent], rows, length=20, seconds=-1.0)


def test_text_that_others_were_fitted_to_is_left_out(make_recaller: Make) -> None:
    subjects = [make_recaller(), make_recaller(length=64)]
    whole = subjects[0].encode(TEXT)
    rows = judged_rows(subjects, Corpus.from_text(TEXT), skip=100, most=150)
    assert [row.shape[1] for row in rows] == [64, 64, 22]
    assert torch.cat(rows, dim=1)[0].tolist() == whole[100:250]
    with pytest.raises(
        ValueError, match=r"the text has 1,220 tokens, and the first 2,000 are to be left out"
    ):
        judged_rows(subjects, Corpus.from_text(TEXT), skip=2000)


def test_pass_keys_are_judged_by_depth_or_the_reason_is_told(make_recaller: Make) -> None:
    from headwise.compress import why_no_passkeys

    subject = make_recaller()
    assert "has no tokens for the words and digits" in (why_no_passkeys(subject, 80) or "")
    tokenizer = Tokenizer.from_alphabet("\nThe pass key is . Remember it.0123456789")
    other = OwnSubject(resized(subject, tokenizer.vocab_size), tokenizer)  # type: ignore[arg-type]
    assert why_no_passkeys(other, 80) is None
    assert why_no_passkeys(other, 40) == "they take 59 tokens, and there are 40"
    rows = list(torch.randint(20, (2, 1, 20)))
    found = judge([other], rows, passkeys=PassKeys(" it is", 80, tries=2), length=9, seconds=None)
    assert [v.depth for v in found.passkey] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert all(v.asked == 2 and v.chance == 1e-5 and not v.can_judge for v in found.passkey)


def test_a_number_whose_digits_are_unknown_is_no_pass_key(make_recaller: Make) -> None:
    from headwise.compress import passkey_scores

    tokenizer = Tokenizer.from_alphabet("\nThe pass key is . Remember it.")
    subject = OwnSubject(resized(make_recaller(), tokenizer.vocab_size), tokenizer)  # type: ignore[arg-type]
    subject.unknown = "skip"
    with pytest.raises(ValueError, match="has no tokens for the digits of a pass key such as"):
        passkey_scores(subject, "it is", length=80)


def test_recall_fails_without_the_heads_that_look_at_the_answer(make_recaller: Make) -> None:
    subject = make_recaller(8)
    (task,) = recall_tasks(subject, pairs=[4], powers=[1.0], rows=8)
    scores = retrieval_scores(subject, task)
    assert scores[1, 0] == pytest.approx(1.0)
    assert max(score for head, score in scores.items() if head != (1, 0)) < 0.2
    assert retrieval_heads(subject, task) == [(1, 0)]
    found = check_probe(subject, task)
    assert found.order[0] == (1, 0)
    assert found.valid
    (step,) = found.steps
    assert (found.full, step.heads, step.top, step.median) == (1.0, 1, 0.0, 1.0)
    assert found.table["random"].tolist() == [1.0]


def test_a_probe_that_any_heads_can_ruin_is_not_valid(make_recaller: Make) -> None:
    subject = make_recaller(1)  # two heads, and both are needed
    (task,) = recall_tasks(subject, pairs=[4], powers=[1.0], rows=8)
    found = check_probe(subject, task)
    assert found.steps[0].top < 0.5
    assert not found.valid
    assert not replace(found, full=0.5).can_judge
    forgetful = check_probe(make_recaller(8, knows=20), task)
    assert not forgetful.can_judge
    assert not forgetful.valid
    with pytest.raises(ValueError, match="at least 2 heads to tell apart and 1 draw"):
        check_probe(subject, task, draws=0)
