"""What a model writes after a text, so that the page can show what it looked at while writing."""

from __future__ import annotations

from collections.abc import Sequence

from headwise.hub import Subject
from headwise.hub.writing import open_ended, write_ids
from headwise.model.sampling import Sampling


def continued(subject: Subject, ids: Sequence[int], tokens: int) -> tuple[list[int], int]:
    """Return the ids with so many more, each the likeliest one, and how many of them were given.

    Special tokens at the end of the text are left out first, since a text ends there. There are fewer more
    where the model can read no more.

    Raises ValueError for a model that does not predict the next token, and for a text without tokens or with
    as many as the model reads.
    """
    found = open_ended(subject, ids)
    given = len(found)
    if subject.max_tokens is not None and given >= subject.max_tokens:
        raise ValueError(
            f"the text has {given} tokens and {subject.name} reads at most {subject.max_tokens} tokens, so "
            "there is no room to go on; shorten the text"
        )
    room = tokens if subject.max_tokens is None else min(tokens, subject.max_tokens - given)
    if room > 0:
        found += write_ids(subject, found, room, Sampling(temperature=0))
    return found, given
