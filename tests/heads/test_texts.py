"""Texts to look at heads on: evenly spaced, of one length, in one bounded reading."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.heads.texts import _pieces, cut, sample_texts
from headwise.hub import Subject
from headwise.model import GPT, GPTConfig
from headwise.text import Tokenizer
from headwise.text.corpus import Corpus


def subject(text: str, block_size: int = 64) -> Subject:
    tokenizer = Tokenizer.train("char", [text])
    return Subject.of(GPT(GPTConfig(vocab_size=tokenizer.vocab_size, block_size=block_size)), tokenizer)


def test_texts_are_spread_over_the_whole_corpus() -> None:
    words = " ".join(f"w{i:04d}" for i in range(1000))
    model = subject(words)
    found = [model.decode(ids) for ids in sample_texts(model, Corpus.from_text(words), texts=4, length=12)]
    assert found == ["w0000 w0001 ", "w0251 w0252 ", "w0501 w0502 ", "w0751 w0752 "]


def test_no_text_is_longer_than_the_model_reads() -> None:
    words = "ab " * 500
    model = subject(words, block_size=16)
    assert {len(ids) for ids in sample_texts(model, Corpus.from_text(words), texts=5, length=100)} == {16}


def test_a_short_text_is_taken_as_it_is() -> None:
    model = subject("한국")
    assert [model.decode(ids) for ids in sample_texts(model, Corpus.from_text("한국"))] == ["한국"]


def test_no_two_texts_share_a_word_however_long_tokens_are() -> None:
    """Intervals over texts take them for different ones."""
    words = [f"word{i:04d}" for i in range(600)]
    text = " ".join(words)
    tokenizer = Tokenizer.train("bpe", [text] * 2, vocab_size=400)
    model = Subject.of(GPT(GPTConfig(vocab_size=tokenizer.vocab_size, block_size=64)), tokenizer)
    assert len(model.encode(text)) < len(text) / 2
    found = sample_texts(model, Corpus.from_text(text), texts=100, length=64)
    seen = [word for ids in found for word in model.decode(ids).split() if word in words]
    assert len(seen) == len(set(seen)) > 400
    assert min(map(len, found)) > 32  # long ones rather than many


def test_a_text_without_spaces_is_taken_from_where_it_is_opened() -> None:
    text = "가나다라마바사아자차" * 100 + " 끝"
    found = sample_texts(subject(text), Corpus.from_text(text), texts=2, length=60)
    assert [len(ids) for ids in found] == [60] * 2


@pytest.mark.parametrize(
    ("text", "options", "says"),
    [
        ("", {}, "holds no text"),
        ("ab", {"texts": 0}, "texts must be at least 1, got 0"),
        ("ab", {"length": 1}, "length must be at least 2 tokens"),
        ("abc", {}, "'c'"),
    ],
)
def test_what_gives_no_texts_is_refused(text: str, options: dict[str, int], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        sample_texts(subject("ab"), Corpus.from_text(text), **options)


def test_special_tokens_at_the_end_stay_there() -> None:
    model = subject("abc")
    model.special_ids = frozenset({7, 8})
    assert cut(model, [7, 1, 2, 3, 4, 8, 8], 5) == [7, 1, 2, 8, 8]
    assert cut(model, [7, 1, 2, 8], 4) == [7, 1, 2, 8]
    assert cut(model, [1, 2, 3], 2) == [1, 2]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.text("abcdef", min_size=1, max_size=9), min_size=1, max_size=12),
    st.integers(1, 12),
    st.data(),
)
def test_pieces_do_not_depend_on_how_the_text_was_cut(
    chunks: list[str], reach: int, data: st.DataObject
) -> None:
    text = "".join(chunks)
    starts = sorted(data.draw(st.lists(st.integers(0, len(text) - 1), min_size=1, max_size=5, unique=True)))
    assert list(_pieces(chunks, starts, reach)) == [text[start : start + reach] for start in starts]
