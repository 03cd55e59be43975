"""Tokens as a reader sees them: the characters that pieces build, and the words that those build."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headwise.hub import Subject
from headwise.text.labels import label as visible

_MOST_PIECES = 12
"""Of one character; a family emoji has 7 code points of up to 4 bytes, joined in two or three merges each."""

_JOINER = "\u200d"


@dataclass(frozen=True)
class Tokens:
    """The tokens of a text. Every list has one entry per token."""

    labels: tuple[str, ...]
    special: tuple[bool, ...]
    partial: tuple[bool, ...]
    """Whether the token is only a part of a character."""
    breaks: tuple[bool, ...]
    """Whether a line ends with the token."""
    words: tuple[int, ...]
    """The number of the word that the token belongs to."""
    word_labels: tuple[str, ...]
    """One per word."""

    def __len__(self) -> int:
        return len(self.labels)


def plain_tokens(labels: Sequence[str], special: Sequence[bool] | None = None) -> Tokens:
    """Return tokens of which nothing but labels is known: each is a word."""
    shown = tuple(visible(text.encode("utf-8", "surrogatepass")) or "‹›" for text in labels)
    number = len(shown)
    return Tokens(
        labels=shown,
        special=tuple(special) if special is not None else (False,) * number,
        partial=(False,) * number,
        breaks=tuple("⏎" in text for text in shown),
        words=tuple(range(number)),
        word_labels=shown,
    )


def tokens_of(subject: Subject, ids: Sequence[int]) -> Tokens:
    """Group the tokens of a text into characters and words.

    A word begins after white space, with white space, and where letters change to punctuation or back, as the
    tokenizer's own decoding shows it; special tokens and white space stand alone.
    """
    ids = list(ids)
    labels = [text or "‹›" for text in subject.labels(ids)]
    special = [index in subject.special_ids for index in ids]
    partial = [False] * len(ids)
    units = _units(ids, special, subject.decode)
    for start, end, text in units:
        if end - start > 1:
            whole = visible(text.strip().encode("utf-8", "surrogatepass"))
            for at in range(start, end):
                partial[at] = True
                if len(text.strip()) == 1:
                    labels[at] = f"{whole} {at - start + 1}/{end - start}"
        elif "\ufffd" in text:
            partial[start] = True
    words: list[int] = []
    starts: list[int] = []
    before: tuple[int, int, str] | None = None
    for unit in units:
        if before is None or _begins_word(before, unit, ids, special, subject.decode):
            starts.append(unit[0])
        words += [len(starts) - 1] * (unit[1] - unit[0])
        before = unit
    word_labels = []
    for start, end in zip(starts, [*starts[1:], len(ids)], strict=True):
        text = subject.decode(ids[start:end])
        broken = "\ufffd" in text or special[start]
        word_labels.append(
            "".join(labels[start:end]) if broken else visible(text.encode("utf-8", "surrogatepass"))
        )
    return Tokens(
        labels=tuple(labels),
        special=tuple(special),
        partial=tuple(partial),
        breaks=tuple("⏎" in text for text in labels),
        words=tuple(words),
        word_labels=tuple(text or "‹›" for text in word_labels),
    )


def _units(
    ids: list[int], special: list[bool], decode: Callable[[Sequence[int]], str]
) -> list[tuple[int, int, str]]:
    """Return (start, end, text) of the fewest tokens that together are whole characters."""
    found = []
    start = 0
    while start < len(ids):
        end, text = start + 1, decode(ids[start : start + 1])
        while "\ufffd" in text and not special[start]:
            if end == len(ids) or end - start == _MOST_PIECES or special[end]:
                end, text = start + 1, decode(ids[start : start + 1])  # no character comes of it
                break
            end += 1
            text = decode(ids[start:end])
        found.append((start, end, text))
        start = end
    return found


def _begins_word(
    before: tuple[int, int, str],
    unit: tuple[int, int, str],
    ids: list[int],
    special: list[bool],
    decode: Callable[[Sequence[int]], str],
) -> bool:
    if special[before[0]] or special[unit[0]]:
        return True
    both = decode(
        ids[before[0] : unit[1]]
    )  # a tokenizer may put a space between two that it does not give one
    first = before[2]
    rest = both[len(first) :] if both.startswith(first) else unit[2]
    if not first or not rest:
        return False
    if first[-1] == _JOINER or rest[0] == _JOINER or unicodedata.category(rest[0])[0] == "M":
        return False
    return first[-1].isspace() or rest[0].isspace() or _kind(first[-1]) != _kind(rest[0])


def _kind(character: str) -> str:
    kind = unicodedata.category(character)[0]
    return "L" if kind in "LMN" or character in "'’" else kind
