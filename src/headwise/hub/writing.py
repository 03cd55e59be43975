"""What a model writes after a text, token by token, whatever its make.

Past the most tokens that a model reads, it reads the last of them as if the text began there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from headwise.hub.caches import cache_name
from headwise.hub.modes import evaluating
from headwise.hub.subject import OwnSubject, Subject, require_causal
from headwise.model.generation import generate_ids
from headwise.model.sampling import Sampling

_MOST_PIECES = 12
"""Tokens that may build one character."""


def check_writes(subject: Subject) -> None:
    """Raise ValueError for a model that does not predict the next token."""
    require_causal(subject, "so it cannot go on with a text")


def open_ended(subject: Subject, ids: Sequence[int]) -> list[int]:
    """Return ids without the special tokens at their end, since a text ends there.

    Raises ValueError for a model that does not predict the next token, and if nothing is left.
    """
    check_writes(subject)
    found = list(ids)
    while found and found[-1] in subject.special_ids:
        found.pop()
    if not found:
        raise ValueError("the text to go on with holds no tokens; give at least one")
    return found


def write_ids(
    subject: Subject, ids: Sequence[int], most: int, sampling: Sampling, seed: int | None = None
) -> Iterator[int]:
    """Return an iterator over `most` token ids that go on with a text, special ones among them.

    The model runs when the next id is asked for, with what gates it then has.

    Raises ValueError for a model that does not predict the next token, no ids or no new token, and a `top_k`
    beyond the vocabulary.
    """
    check_writes(subject)
    if isinstance(subject, OwnSubject):
        return generate_ids(subject.gpt, ids, most, sampling, seed)
    if not ids:
        raise ValueError("the prompt is empty; give at least one token to continue from")
    if most < 1:
        raise ValueError(f"most must be at least 1 new token, got {most}")
    if sampling.top_k is not None and sampling.top_k > subject.vocab_size:
        raise ValueError(
            f"top_k={sampling.top_k} is more than the {subject.vocab_size} tokens of the vocabulary"
        )
    return _pretrained_ids(subject, list(ids), most, sampling, seed)


@torch.no_grad()
def _pretrained_ids(
    subject: Subject, ids: list[int], most: int, sampling: Sampling, seed: int | None
) -> Iterator[int]:
    generator = torch.Generator()
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
    model: Any = subject.model
    name = cache_name(model)
    window = ids if subject.max_tokens is None else ids[-subject.max_tokens :]
    cache: Any = None
    unread = window
    for _ in range(most):
        remembers = {} if name is None else {name: cache, "use_cache": True}
        with evaluating(subject.model):
            output = model(input_ids=torch.tensor([unread], device=subject.device), **remembers)
        token = sampling.draw(output["logits"][0, -1, : subject.vocab_size], generator)
        yield token
        window = [*window, token]
        cache, unread = output.get(name) if name else None, [token]
        if subject.max_tokens is not None and len(window) > subject.max_tokens:
            window, cache = window[-subject.max_tokens :], None
        if cache is None:
            unread = window


class Spelling:
    """Turns ids into text as they come, never half a character unless none comes of it."""

    def __init__(self, subject: Subject, before: Sequence[int]) -> None:
        """before: the ids that are gone on from, since a tokenizer may spell the first ones otherwise."""
        self._subject = subject
        self._known = list(before)[-_MOST_PIECES:]
        self._told = subject.decode(self._known).rstrip("\ufffd")
        self._new: list[int] = []

    def push(self, index: int) -> str:
        """Take the next id; return the characters it completes, perhaps none."""
        self._new.append(index)
        text = self._text()
        if text.endswith("\ufffd") and len(self._new) < _MOST_PIECES:
            return ""
        self._known, self._new = self._new, []
        self._told = self._subject.decode(self._known)
        return text

    def flush(self) -> str:
        """Return what is still held back, with U+FFFD for an unfinished character."""
        return self._text() if self._new else ""

    def _text(self) -> str:
        return self._subject.decode([*self._known, *self._new])[len(self._told) :]
