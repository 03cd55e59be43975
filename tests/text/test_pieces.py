from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.text import Tokenizer
from headwise.text.pieces import pieces

WORDS = st.text(st.sampled_from("ab1'. \n\t가나🙂\u3000\u00a0"), max_size=200)


@settings(deadline=None, max_examples=150)
@given(text=WORDS, sizes=st.lists(st.integers(1, 60), min_size=1, max_size=5), size=st.integers(1, 20))
def test_the_cuts_depend_on_the_text_alone(
    cut: Callable[[str, Sequence[int]], list[str]], text: str, sizes: list[int], size: int
) -> None:
    found = list(pieces(cut(text, sizes), size))
    assert found == list(pieces([text], size))
    assert "".join(found) == text
    assert all(found)


@settings(deadline=None, max_examples=150)
@given(text=WORDS)
def test_cutting_between_words_keeps_the_tokens(bpe: Tokenizer, text: str) -> None:
    whole = bpe.encode(text)
    size = 10
    found = list(pieces([text], size))
    if max(map(len, found), default=0) < 4 * size:  # no hard cut
        assert [index for piece in found for index in bpe.encode(piece)] == whole


@pytest.mark.parametrize("text", ["a" * 1000, " " * 1000, "가나" * 500])
def test_text_without_word_ends_is_cut_anyway(text: str) -> None:
    found = list(pieces([text], 10))
    assert max(map(len, found)) == 40
    assert "".join(found) == text
