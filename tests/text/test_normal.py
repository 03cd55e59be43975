from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.text import normal
from headwise.text.normal import normalise, normalised

# Letters that join, split and reorder: jamo of one syllable, syllables that take a final, accents of several
# classes, a vowel sign that joins without being an accent, carriage returns.
TRICKY = st.text(st.sampled_from("각가갸각e\u0301\u0323\u0327o\u09c7\u09be\r\nab 漢🙂\u3099か"), max_size=40)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\r\nb\rc\nd\r\r\n", "a\nb\nc\nd\n\n"),
        ("\u1112\u1161\u11ab", "한"),
        ("cafe\u0301", "café"),
        ("\u2028\x0b\x85", "\u2028\x0b\x85"),
    ],
)
def test_text_is_nfc_with_one_kind_of_newline(text: str, expected: str) -> None:
    assert normalise(text) == expected
    assert "".join(normalised(text)) == expected


@settings(deadline=None, max_examples=150)
@given(text=TRICKY | st.text(max_size=40), sizes=st.lists(st.integers(1, 5), min_size=1, max_size=8))
def test_a_stream_is_normalised_as_the_whole_however_it_is_cut(
    cut: Callable[[str, Sequence[int]], list[str]], text: str, sizes: list[int]
) -> None:
    assert "".join(normalised(cut(text, sizes))) == normalise(text)


def test_what_may_be_cut_before_never_joins_backwards() -> None:
    characters = [chr(code) for code in range(sys.maxunicode + 1)]
    fresh = set(re.findall(normal._STARTS_AFRESH, "".join(characters[:0xD800] + characters[0xE000:])))
    joins = {chr(code) for code in [*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)]}
    for character in characters:
        parts = unicodedata.decomposition(character).split()
        if len(parts) == 2 and not parts[0].startswith("<"):
            joins.add(chr(int(parts[1], 16)))
    assert "\n" in fresh
    assert "각" in fresh
    for character in fresh:
        first = unicodedata.normalize("NFD", character)[0]
        assert unicodedata.combining(first) == 0
        assert first not in joins


def test_the_stream_lets_go_of_text_without_any_white_space() -> None:
    produced = list(normalised(["가나다라" * 100] * 5))
    assert len(produced) >= 5
