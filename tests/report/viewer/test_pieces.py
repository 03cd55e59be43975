"""Tokens as a reader sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from headwise.hub import Subject
from headwise.report.viewer.pieces import plain_tokens, tokens_of


class Pieces:
    """Stands for a subject whose tokens are these byte strings; <s> is special."""

    def __init__(self, *pieces: bytes, between: str = "") -> None:
        self.pieces = pieces
        self.between = between
        self.special_ids = frozenset(i for i, piece in enumerate(pieces) if piece == b"<s>")

    def decode(self, ids: Sequence[int]) -> str:
        if self.between:
            text = self.between.join(self.pieces[i].decode() for i in ids)
            return text.replace(self.between + "##", "")
        return b"".join(self.pieces[i] for i in ids).decode("utf-8", "replace")

    def labels(self, ids: Sequence[int]) -> list[str]:
        return [self.pieces[i].decode("utf-8", "replace").replace(" ", "␣").replace("\n", "⏎") for i in ids]


def tokens(*pieces: bytes, between: str = ""):  # type: ignore[no-untyped-def]
    return tokens_of(cast(Subject, Pieces(*pieces, between=between)), range(len(pieces)))


def test_pieces_of_a_syllable_are_named_by_it_and_marked() -> None:
    found = tokens(b"\xec", b"\x95\x88", "녕".encode(), b" x")
    assert found.labels == ("안 1/2", "안 2/2", "녕", "␣x")
    assert found.partial == (True, True, False, False)
    assert found.words == (0, 0, 0, 1)
    assert found.word_labels == ("안녕", "␣x")


def test_bytes_of_which_no_character_comes_stay_what_they_are() -> None:
    found = tokens(b"a", b"\xec", b"\x95")
    assert found.partial == (False, True, True)
    assert "1/" not in "".join(found.labels)


def test_words_end_at_white_space_punctuation_and_special_tokens() -> None:
    found = tokens(b"<s>", b"th", b"e", b" ", b"cat", b"'s", b".", b"\n", b"End", b"<s>")
    assert found.words == (0, 1, 1, 2, 3, 3, 4, 5, 6, 7)
    assert found.word_labels[1] == "the"
    assert found.word_labels[3] == "cat's"
    assert found.special == (True, *[False] * 8, True)
    assert found.breaks[7]


def test_words_of_a_tokenizer_that_puts_spaces_between_them_itself() -> None:
    found = tokens(b"play", b"##ing", b"well", between=" ")
    assert found.words == (0, 0, 1)
    assert found.word_labels == ("playing", "well")


def test_an_emoji_of_several_code_points_is_one_word() -> None:
    family = "👩‍👧".encode()
    found = tokens(*[family[i : i + 2] for i in range(0, len(family), 2)])
    assert set(found.words) == {0}


def test_plain_labels_show_what_cannot_be_seen() -> None:
    found = plain_tokens(["a b", "", "\u200b", "\n", "<s>"])
    assert found.labels == ("a␣b", "‹›", "‹U+200B›", "⏎", "<s>")
