"""What a model writes after a text, so that the page can show what it looked at while writing."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from headwise.hub import Subject


@torch.no_grad()
def continued(subject: Subject, ids: Sequence[int], tokens: int) -> tuple[list[int], int]:
    """Return the ids with so many more, each the likeliest one, and how many of them were given.

    Special tokens at the end of the text are left out first, since a text ends there. There are fewer more
    where the model can read no more.

    Raises ValueError for a model that does not predict the next token, and for a text without tokens or with
    as many as the model reads.
    """
    if not subject.causal:
        raise ValueError(f"{subject.name} does not predict the next token, so it cannot go on with a text")
    found = list(ids)
    while found and found[-1] in subject.special_ids:
        found.pop()
    if not found:
        raise ValueError("the text to go on with holds no tokens; give at least one")
    given = len(found)
    if subject.max_tokens is not None and given >= subject.max_tokens:
        raise ValueError(
            f"the text has {given} tokens and {subject.name} reads at most {subject.max_tokens} tokens, so "
            "there is no room to go on; shorten the text"
        )
    for _ in range(tokens):
        if subject.max_tokens is not None and len(found) >= subject.max_tokens:
            break
        found.append(int(subject.run(subject.batch([found]))[0, -1].argmax()))
    return found, given
