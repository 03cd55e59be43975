"""What a model writes after a text."""

from __future__ import annotations

from typing import cast

import pytest
import torch

from headwise.hub import Subject
from headwise.report.viewer import view_data
from headwise.report.viewer.continuation import continued


def test_each_token_is_the_likeliest_after_those_before(subject: Subject) -> None:
    start = subject.encode("abc")
    found, given = continued(subject, start, 5)
    assert given == len(start)
    assert found[: len(start)] == start
    assert len(found) == len(start) + 5
    with torch.no_grad():
        logits = subject.run(subject.batch([found]))[0]
    assert found[len(start) :] == logits[len(start) - 1 : -1].argmax(-1).tolist()


def test_no_more_than_the_model_reads(subject: Subject) -> None:
    assert len(continued(subject, subject.encode("a" * 126), 50)[0]) == 128
    with pytest.raises(ValueError, match="no room to go on"):
        continued(subject, subject.encode("a" * 128), 1)


def test_what_cannot_be_continued_is_refused(subject: Subject) -> None:
    with pytest.raises(ValueError, match="holds no tokens"):
        continued(subject, [], 3)

    class Encoder:
        causal, name, special_ids = False, "encoder", frozenset[int]()

    with pytest.raises(ValueError, match="does not predict the next token"):
        continued(cast(Subject, Encoder()), [1], 3)


def test_the_page_knows_what_was_given(subject: Subject) -> None:
    ids, given = continued(subject, subject.encode("abc"), 4)
    assert view_data(subject, ids, prompt=given).prompt == given
    with pytest.raises(ValueError, match="prompt must lie within the text"):
        view_data(subject, ids, prompt=len(ids))
