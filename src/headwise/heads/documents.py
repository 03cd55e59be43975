"""Texts as a model reads them, what it has to predict in them, and which kind each prediction is.

Letters: B texts, T tokens, C classes of tokens.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from headwise.hub import Subject, TokenBatch
from headwise.hub.subject import require_subject, whole_numbers

Text = str | Sequence[int]
"""A text, or the ids of its tokens."""

Measure = Literal["loss", "output"]
"""What silencing a head changes: the loss, or 1 - cosine of what the model gives at each token."""

CLASSES = ("all", "first", "copied", "punctuation", "other", "retrieval")
"""Classes of predicted tokens.

all: every predicted token of the texts.
copied: tokens that end a bigram which the text already had; first: all others.
punctuation: tokens that are punctuation only; other: those that are neither that nor special.
retrieval: tokens that can be known only by looking them up earlier in the sequence (see `retrieval`).
"""

NOTHING = -100
"""The target where nothing is predicted."""

MASKED = 0.15
"""The share of tokens that an encoder has to fill in (Devlin et al. 2019)."""


@dataclass(frozen=True)
class Document:
    """One text: what the model reads, and what it has to predict at each token."""

    ids: tuple[int, ...]
    targets: tuple[int, ...]
    """The id to be predicted at each token, NOTHING where none is."""
    classes: tuple[tuple[bool, ...], ...]
    """(C, T), of which class each prediction is; one may be of several."""

    @property
    def predicted(self) -> int:
        """How many tokens are predicted."""
        return sum(target != NOTHING for target in self.targets)


def encode_all(subject: Subject, texts: Sequence[Text], *, least: int = 1) -> list[list[int]]:
    """Return the ids of texts.

    Raises ValueError for no texts, an empty one, one of fewer than `least` tokens or more than the model
    reads, and ids outside its vocabulary; TypeError for one string instead of several, and for what is no
    text.
    """
    require_subject(subject)
    if isinstance(texts, str):
        raise TypeError("texts must be a sequence of texts, got one string; give [text]")
    if not isinstance(texts, Sequence):
        raise TypeError(f"texts must be a sequence of texts, got {type(texts).__name__}; give a list of them")
    if not texts:
        raise ValueError("there are no texts; give at least one")
    encoded = []
    for number, text in enumerate(texts):
        if not isinstance(text, Sequence) or isinstance(text, bytes):
            raise TypeError(f"text {number} must be a text or a list of ids, got {type(text).__name__}")
        if not len(text):
            raise ValueError(f"text {number} is empty; leave it out")
        ids = subject.encode(text) if isinstance(text, str) else whole_numbers(number, text)
        if len(ids) < least:
            raise ValueError(
                f"text {number} has {len(ids)} token{'s' * (len(ids) != 1)} and at least {least} are needed: "
                "the first is not predicted by anything; leave it out or join it to another"
            )
        if subject.max_tokens is not None and len(ids) > subject.max_tokens:
            raise ValueError(
                f"text {number} has {len(ids)} tokens, but {subject.name} reads at most "
                f"{subject.max_tokens}; cut it into shorter texts"
            )
        if min(ids) < 0 or max(ids) >= subject.vocab_size:
            raise ValueError(
                f"text {number} has ids {min(ids)} … {max(ids)}, but those of {subject.name} are "
                f"0 … {subject.vocab_size - 1}"
            )
        encoded.append(ids)
    return encoded


def mask_id_of(subject: Subject) -> int | None:
    """Return the id that stands for a token to be filled in, None for a tokenizer without one."""
    mask_id: int | None = getattr(getattr(subject, "tokenizer", None), "mask_token_id", None)
    return mask_id


def check_measure(subject: Subject, measure: Measure) -> None:
    """Raise ValueError unless the model can be measured like that."""
    if measure not in ("loss", "output"):
        raise ValueError(f'measure must be "loss" or "output", got {measure!r}')
    if measure == "output" or subject.causal:
        return
    if subject.predicts == "nothing":
        raise ValueError(
            f"{subject.name} predicts no tokens (it has no language-model head), so it has no loss; "
            'measure="output" (--measure output) measures how far its output turns instead'
        )
    if mask_id_of(subject) is None:
        raise ValueError(
            f"the tokenizer of {subject.name} has no mask token, so no token can be filled in; "
            'measure="output" (--measure output) measures how far its output turns instead'
        )


def make_documents(
    subject: Subject, texts: Sequence[Text], *, measure: Measure = "loss", seed: int = 0
) -> list[Document]:
    """Return texts with what is predicted in them.

    A causal model predicts every token but the first. An encoder fills in 15 % of the tokens that are not
    special, at least one, drawn by the seed and replaced by its mask token. For measure "output" every token
    counts.
    """
    check_measure(subject, measure)
    needs_two = measure == "loss" and subject.causal
    encoded = encode_all(subject, texts, least=2 if needs_two else 1)
    return [
        _document(subject, ids, measure, random.Random(f"{seed}/{number}"))
        for number, ids in enumerate(encoded)
    ]


def _document(subject: Subject, ids: list[int], measure: Measure, draw: random.Random) -> Document:
    read = ids
    if measure == "output":
        predicted = set(range(len(ids)))
    elif subject.causal:
        predicted = set(range(1, len(ids)))
    else:
        plain = [i for i, index in enumerate(ids) if index not in subject.special_ids]
        if not plain:
            raise ValueError("a text has only special tokens, of which none can be filled in; leave it out")
        predicted = set(draw.sample(plain, max(1, round(MASKED * len(plain)))))
        read = masked(subject, ids, predicted)
    known = bigrams_seen(ids)
    flags = [
        [
            True,
            not known[i],
            known[i],
            index in subject.punctuation_ids,
            index not in subject.punctuation_ids and index not in subject.special_ids,
            False,
        ]
        for i, index in enumerate(ids)
    ]
    return place(subject, read, ids, predicted, flags, measure)


def masked(subject: Subject, ids: Sequence[int], where: set[int]) -> list[int]:
    """Return ids with the mask token at some places."""
    mask_id = mask_id_of(subject)
    if mask_id is None:
        raise ValueError(f"{subject.name} has no mask token")
    return [mask_id if i in where else index for i, index in enumerate(ids)]


def place(
    subject: Subject,
    read: Sequence[int],
    ids: Sequence[int],
    predicted: set[int],
    flags: Sequence[Sequence[bool]],
    measure: Measure,
) -> Document:
    """Put each prediction at the token whose output makes it: the one before, in a causal model's loss."""
    shift = 1 if subject.causal and measure == "loss" else 0
    targets, rows = [NOTHING] * len(ids), [[False] * len(CLASSES) for _ in ids]
    for i in predicted:
        targets[i - shift] = ids[i]
        rows[i - shift] = list(flags[i])
    columns = tuple(zip(*rows, strict=True))
    return Document(tuple(read), tuple(targets), columns)


def bigrams_seen(ids: Sequence[int]) -> list[bool]:
    """Return for each token whether it and the one before it already followed each other earlier."""
    seen: set[tuple[int, int]] = set()
    known = [False]
    for pair in pairwise(ids):
        known.append(pair in seen)
        seen.add(pair)
    return known


@dataclass(frozen=True, eq=False)
class Batch:
    """Documents side by side."""

    numbers: list[int]
    """Which of all documents they are."""
    tokens: TokenBatch
    targets: Tensor
    """(B, T) int64."""
    classes: Tensor
    """(B, C, T) bool."""


def make_batch(subject: Subject, documents: Sequence[Document], numbers: list[int]) -> Batch:
    """Put documents side by side, whichever side the model pads on."""
    chosen = [documents[number] for number in numbers]
    tokens = subject.batch([document.ids for document in chosen])
    targets = torch.full_like(tokens.ids, NOTHING)
    targets[tokens.real] = torch.tensor([t for document in chosen for t in document.targets]).to(targets)
    classes = torch.zeros((len(CLASSES), *tokens.ids.shape), dtype=torch.bool, device=targets.device)
    for row, flags in enumerate(classes):
        flat = [flag for document in chosen for flag in document.classes[row]]
        flags[tokens.real] = torch.tensor(flat, device=targets.device)
    return Batch(numbers, tokens, targets, classes.transpose(0, 1))


def batches_of(documents: Sequence[Document], tokens: int) -> list[list[int]]:
    """Share documents out into batches of up to so many tokens, padding included, short ones together.

    The same documents always make the same batches, whoever runs which of them.
    """
    by_length = sorted(range(len(documents)), key=lambda number: len(documents[number].ids))
    batches: list[list[int]] = []
    for number in by_length:
        length = len(documents[number].ids)
        if batches and (len(batches[-1]) + 1) * length <= tokens:
            batches[-1].append(number)
        else:
            batches.append([number])
    return batches
