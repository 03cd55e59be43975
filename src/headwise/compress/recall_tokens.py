"""Tasks of recall for a model: which of its tokens serve as keys and values, and how rows begin."""

from __future__ import annotations

from collections.abc import Sequence

from headwise.compress.recall import Recall, recall_rows
from headwise.hub.subject import Subject

MOST = 64
"""Keys and values that are drawn from a vocabulary, at most, of each."""

PAIRS = (4, 8, 16)
"""How many pairs a row has, where that is not said."""


def recall_tasks(
    subject: Subject,
    *,
    keys: str | None = None,
    values: str | None = None,
    pairs: Sequence[int] | None = None,
    powers: Sequence[float] = (1.0, 0.01),
    rows: int = 64,
    length: int | None = None,
    blank: str | None = None,
    answered: bool = True,
    longest: int | None = None,
    seed: int = 0,
) -> list[Recall]:
    """Return tasks of recall in the tokens of a model, for each power and each number of pairs.

    keys, values: see `recall_tokens`. pairs: default those of 4, 8 and 16 that fit.
    length: tokens of a row; default 4 · pairs, which leaves no blank if answered. blank: one character,
        default a space.
    longest: the most tokens that all models can read.
    Rows begin with the special tokens that the tokenizer puts in front of a text. For all else see
    `recall_rows`.

    Raises:
        ValueError: as `recall_tokens` and `recall_rows`; rows that are too long; no number of pairs fits; a
            blank for rows that have no place for one.
    """
    key_ids, value_ids = recall_tokens(subject, keys, values)
    start = subject.opening_ids()
    room = None if longest is None else longest - len(start)

    def fits(number: int) -> bool:
        least = 4 * number
        few = number <= min(len(key_ids), len(value_ids))
        return few and least <= (length or least) and least <= (room or least)

    chosen = [number for number in PAIRS if fits(number)] if pairs is None else list(pairs)
    if not chosen:
        raise ValueError(
            f"{PAIRS[0]} pairs do not fit: there are {len(key_ids)} keys and {len(value_ids)} values, and "
            f"{4 * PAIRS[0]} tokens are needed; name more keys and values, or fewer pairs"
        )
    most = max(length or 4 * number for number in chosen)
    if room is not None and most > room:
        raise ValueError(f"rows of {most} tokens are more than the {room} that the models read")
    filled = answered and all(4 * number == (length or 4 * number) for number in chosen)
    if filled and blank is not None:
        raise ValueError(
            f"blank {blank!r} has no effect: rows as long as their pairs, with answers, have no room for it; "
            "leave it out, or give a length above 4 · pairs"
        )
    blank_id = None if filled else single_token(subject, " " if blank is None else blank)
    return [
        recall_rows(
            rows,
            length or 4 * number,
            number,
            keys=key_ids,
            values=value_ids,
            blank=blank_id,
            answered=answered,
            power=power,
            seed=seed,
        ).after(start)
        for power in powers
        for number in chosen
    ]


def why_no_recall(subject: Subject, *, longest: int | None = None) -> str | None:
    """Return why `recall_tasks` has none for a model unless more is said, None if it has."""
    try:
        recall_tasks(subject, rows=1, longest=longest)
    except ValueError as error:
        return str(error)
    return None


def recall_tokens(
    subject: Subject, keys: str | None = None, values: str | None = None
) -> tuple[list[int], list[int]]:
    """Return the tokens that serve as keys and those that serve as values.

    keys, values: characters, each a token of the model. Without them the tokens are drawn from those of the
    vocabulary that are letters and digits only (where there are enough: that begin a word, with the space
    before it): evenly spaced, at most 64 for each, in turn a key and a value.

    Raises:
        ValueError: only one of the two; a character twice, in both, or that is no single token; a vocabulary
            without two such tokens.
    """
    if (keys is None) != (values is None):
        raise ValueError("give keys and values both, or neither")
    if keys is None or values is None:
        drawn = _drawn(subject)
        return drawn[::2], drawn[1::2]
    if not keys or not values:
        raise ValueError(f"keys and values need at least one character each, got {keys!r} and {values!r}")
    if len({*keys, *values}) < len(keys) + len(values):
        raise ValueError(f"keys and values must be different characters, got {keys!r} and {values!r}")
    return [single_token(subject, c) for c in keys], [single_token(subject, c) for c in values]


def single_token(subject: Subject, character: str) -> int:
    """Return the token that a character is.

    Raises:
        ValueError: it is none, or several.
    """
    ids = subject.plain_ids(character)
    if len(ids) != 1:
        raise ValueError(
            f"{character!r} is {len(ids)} tokens to {subject.name}; a key, a value or a blank must be one"
        )
    return ids[0]


def _drawn(subject: Subject) -> list[int]:
    texts = {
        token: subject.token_text(token)
        for token in range(subject.vocab_size)
        if token not in subject.special_ids
    }
    plain = [token for token, text in texts.items() if text.strip().isalnum()]
    words = [token for token in plain if texts[token][0] == " " and len(texts[token]) > 3]
    found = words if len(words) > 2 * MOST else [token for token in plain if texts[token].isalnum()]
    if len(found) < 2:
        raise ValueError(
            f"{subject.name} has {len(found)} tokens of letters and digits, which makes no pair of key and "
            "value; name others"
        )
    count = min(2 * MOST, len(found) // 2 * 2)
    return [found[place * len(found) // count] for place in range(count)]
