"""Sequences in which tokens can be known only by looking them up earlier: what heads do, without grammar.

The first halves are random, so that nothing helps but attention to the right place.
"""

from __future__ import annotations

import random
from typing import Literal

from headwise.heads.documents import CLASSES, Document, Measure, masked, place
from headwise.hub import Subject

Task = Literal["repeat", "pairs"]
"""repeat: random tokens, then the same again. pairs: keys with a value each, then in another order."""

TASKS = ("repeat", "pairs")


def retrieval_documents(
    subject: Subject,
    task: Task = "repeat",
    *,
    count: int = 8,
    length: int = 64,
    measure: Measure = "loss",
    seed: int = 0,
) -> list[Document]:
    """Return random sequences with the tokens to be predicted in their second half.

    repeat: r_0 … r_{s-1} r_0 … r_{s-1}; predicted are the second r_1 … r_{s-1}: the second r_0 comes after a
    token that was last, so nothing tells it.
    pairs: k_0 v_0 k_1 v_1 …, then the keys in another order, each with its value; predicted are the second
    values.

    An encoder has to fill them in instead. Tokens are not special and differ within a half, as far as the
    vocabulary reaches.
    count, length: how many sequences, of how many tokens, cut to an even number that the model reads.

    Raises ValueError for an unknown task, and a vocabulary or a model that is too small.
    """
    if task not in TASKS:
        raise ValueError(f"the retrieval task must be one of {', '.join(TASKS)}, got {task!r}")
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    plain = [i for i in range(subject.vocab_size) if i not in subject.special_ids]
    longest = length if subject.max_tokens is None else min(length, subject.max_tokens)
    half = longest // 4 * 2 if task == "pairs" else longest // 2
    if half < 2 or len(plain) < 2:
        raise ValueError(
            f"a retrieval sequence needs 4 tokens of at least 2 different kinds, but {subject.name} has "
            f"{len(plain)} and sequences are to have {longest}; do without (retrieval=None)"
        )
    drawn = [_draw(task, plain, half, random.Random(f"{seed}/{i}/{task}")) for i in range(count)]
    flags = [[name == "retrieval" for name in CLASSES]] * (2 * half)
    documents = []
    for ids, predicted in drawn:
        fills_in = measure == "loss" and not subject.causal
        read = masked(subject, ids, predicted) if fills_in else ids
        documents.append(place(subject, read, ids, predicted, flags, measure))
    return documents


def _draw(task: Task, plain: list[int], half: int, draw: random.Random) -> tuple[list[int], set[int]]:
    """Return ids, and which of them are to be predicted."""
    first = draw.sample(plain, half) if half <= len(plain) else draw.choices(plain, k=half)
    if task == "repeat":
        return first * 2, set(range(half + 1, 2 * half))
    keys = first[::2]
    if len(set(keys)) < len(keys):  # a key must have one value
        raise ValueError(
            f"{len(keys)} keys must differ, but the vocabulary has {len(plain)} tokens; "
            "ask for shorter sequences"
        )
    order = draw.sample(range(len(keys)), len(keys))
    ids = first + [token for i in order for token in first[2 * i : 2 * i + 2]]
    return ids, set(range(half + 1, 2 * half, 2))
