from __future__ import annotations

import pytest

from headwise.text import Tokenizer
from headwise.text.labels import label


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", "a"),
        ("한", "한"),
        ("🙂", "🙂"),
        ("\n", "⏎"),
        (" ", "␣"),
        ("\t", "⇥"),
        (" the\n", "␣the⏎"),
        ("\u200b", "‹U+200B›"),
        ("\u3000", "‹U+3000›"),
        ("\x00", "‹U+0000›"),
        ("\u0301", "◌\u0301"),
    ],
)
def test_every_character_can_be_seen(text: str, expected: str) -> None:
    assert label(text.encode("utf-8")) == expected


@pytest.mark.parametrize(
    ("piece", "expected"),
    [(b"\xec\x95", "‹EC 95›"), (b"\x88", "‹88›"), (b" \xec", "␣‹EC›"), (b"\x88a\xf0\x9f", "‹88›a‹F0 9F›")],
)
def test_parts_of_characters_are_marked(piece: bytes, expected: str) -> None:
    assert label(piece) == expected


def test_a_tokenizer_labels_each_token() -> None:
    tokenizer = Tokenizer.train("char", ["나 는\n"])
    assert tokenizer.labels(tokenizer.encode("나는 \n")) == ["나", "는", "␣", "⏎"]
    raw = Tokenizer.train("bpe", ["x"], vocab_size=256)
    assert raw.labels(raw.encode("안a")) == ["‹EC›", "‹95›", "‹88›", "a"]
