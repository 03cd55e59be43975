from __future__ import annotations

import random
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.text import TextStream, Tokenizer, normalise


def _streamed(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    stream = TextStream(tokenizer)
    return [*(stream.push(index) for index in ids), stream.flush()]


def test_half_a_character_is_never_shown() -> None:
    tokenizer = Tokenizer.train("bpe", ["x"], vocab_size=256)
    assert _streamed(tokenizer, tokenizer.encode("🙂你a")) == ["", "", "", "🙂", "", "", "你", "a", ""]


@settings(deadline=None, max_examples=200)
@given(text=st.text(max_size=40) | st.text(st.sampled_from("안녕🙂👩‍👧값각é a"), max_size=30))
def test_the_parts_joined_are_the_text(bpe: Tokenizer, text: str) -> None:
    parts = _streamed(bpe, bpe.encode(text))
    assert "".join(parts) == normalise(text)
    assert parts[-1] == ""


@settings(deadline=None, max_examples=200)
@given(ids=st.lists(st.integers(0, 299), max_size=30))
def test_any_ids_stream_as_they_decode_at_once(bpe: Tokenizer, ids: list[int]) -> None:
    assert "".join(_streamed(bpe, ids)) == bpe.decode(ids)


def test_what_was_never_completed_comes_out_at_the_end() -> None:
    tokenizer = Tokenizer.train("bpe", ["x"], vocab_size=256)
    stream = TextStream(tokenizer)
    first, second, *_ = tokenizer.encode("한")
    assert stream.push(first) + stream.push(second) == ""
    assert stream.flush() == "\ufffd" == tokenizer.decode([first, second])
    assert [stream.push(index) for index in tokenizer.encode("한")] == ["", "", "한"]


def test_decoding_agrees_with_the_library_on_random_ids(bpe: Tokenizer, tmp_path: Path) -> None:
    bpe.save(tmp_path / "t.json")
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "t.json"))
    draw = random.Random(0)
    for _ in range(300):
        ids = [draw.randrange(bpe.vocab_size) for _ in range(draw.randrange(1, 20))]
        assert library.decode(ids) == bpe.decode(ids)


def test_an_id_outside_the_vocabulary_is_an_error(tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match="outside the vocabulary"):
        TextStream(tokenizer).push(tokenizer.vocab_size)
