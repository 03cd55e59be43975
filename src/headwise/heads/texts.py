"""Pieces of a text, evenly spaced, as token ids: what the heads of a model are looked at on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headwise.hub.subject import Subject
from headwise.text.corpus import Corpus

_CHARACTERS = 12
"""More characters than any usual tokenizer puts into a token on average."""
_WORD = 100
"""More characters than a word has; where none begins within so many, words are not told apart by spaces."""


def sample_texts(subject: Subject, corpus: Corpus, *, texts: int = 16, length: int = 256) -> list[list[int]]:
    """Cut texts of the same number of tokens from a corpus, evenly spaced over it.

    length: tokens of each, special ones included; less where the model reads less at once.

    Returns fewer texts, and shorter ones, if the corpus has no more: no two share a character, as texts that
    overlap would make intervals over them too narrow. Each begins with a word, where spaces part words.

    Raises ValueError for an empty corpus, for numbers below 1 (of texts) or 2 (of tokens), and for characters
    that the model's tokenizer does not know.
    """
    if texts < 1:
        raise ValueError(f"texts must be at least 1, got {texts}")
    if length < 2:
        raise ValueError(
            f"length must be at least 2 tokens, so that there is something to look at, got {length}"
        )
    if subject.max_tokens is not None:
        length = min(length, subject.max_tokens)
    size = sum(map(len, corpus.chunks()))
    if not size:
        raise ValueError(f"{corpus.name} holds no text; give a text of at least one character")
    found = _spread(subject, corpus, size, max(1, min(texts, size // length)), length)
    tokens = sum(len(ids) for ids, _ in found)
    characters = sum(read for _, read in found)
    fitting = max(1, tokens * size // (length * max(1, characters)))
    if fitting < len(found):
        found = _spread(subject, corpus, size, fitting, length)
    least = min(2, max((len(ids) for ids, _ in found), default=0))  # one token beside others says nothing
    kept = [cut(subject, ids, length) for ids, _ in found if len(ids) >= max(1, least)]
    if not kept:
        raise ValueError(f"{corpus.name} gives the tokenizer of {subject.name} no tokens; give another text")
    return kept


def _spread(
    subject: Subject, corpus: Corpus, size: int, number: int, length: int
) -> list[tuple[list[int], int]]:
    """Return so many texts, none reaching the next: their ids, and how many characters those are of."""
    starts = [round(i * size / number) for i in range(number)]
    pieces = _pieces(corpus.chunks(), starts, length * _CHARACTERS)
    found = []
    for start, end, piece in zip(starts, [*starts[1:], size], pieces, strict=True):
        text = piece[: end - start]
        text = _from_a_word(text) if start else text
        found.append((subject.encode(text), len(text)))
    return found


def cut(subject: Subject, ids: list[int], length: int) -> list[int]:
    """Shorten token ids to a length; special tokens at the end stay there."""
    if len(ids) <= length:
        return ids
    tail = 0
    while tail < len(ids) and ids[-1 - tail] in subject.special_ids:
        tail += 1
    return ids[: max(0, length - tail)] + ids[len(ids) - tail :]


def _pieces(chunks: Iterable[str], starts: list[int], reach: int) -> Iterator[str]:
    """Return what stands from each start on, as far as it reaches, in one reading."""
    waiting = list(starts)
    held, first = "", 0  # the text from `first` on
    for chunk in chunks:
        held += chunk
        while waiting and first + len(held) >= waiting[0] + reach:
            start = waiting.pop(0) - first
            yield held[start : start + reach]
        keep = max(0, (waiting[0] if waiting else first + len(held)) - first)
        held, first = held[keep:], first + min(keep, len(held))
    for start in waiting:
        yield held[max(0, start - first) :][:reach]


def _from_a_word(piece: str) -> str:
    """Leave out what stands before the first space of a piece, as it may be the rest of a word."""
    words = piece.split(maxsplit=1)
    begin = piece.index(words[1], len(words[0])) if len(words) == 2 else 0
    return piece[begin:] if begin < _WORD else piece
