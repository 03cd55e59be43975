"""What models lose on a text in bits per byte, which those of different tokenizers have in common.

The text is cut into pieces. Each model reads a piece behind what stands before it, by its own tokenizer, and
what it loses on the piece is counted: so all predict the same bytes, though as different tokens.

Letters: P pieces.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from headwise.compress.rows import ROW, check_finite, losses
from headwise.heads.intervals import per_token
from headwise.heads.sweep import OnProgress
from headwise.hub.subject import Subject
from headwise.hub.writing import open_ended

_MOST, _LEAST = 1024, 4
"""Characters of a piece."""


@dataclass(frozen=True)
class ByteLoss:
    """Losses of a model on a text, in bits per byte of UTF-8."""

    bits_per_byte: float
    more: float
    """How much more than the parent's; 0 for the parent."""
    low: float
    high: float
    """The 95 % interval of `more`, from the differences piece by piece."""


@dataclass(frozen=True)
class ByteLosses:
    """What a parent and other models lose on the same bytes. Lists have the parent first."""

    names: list[str]
    text_bytes: int
    """Bytes predicted."""
    pieces: int
    losses: list[ByteLoss]


def byte_losses(subjects: Sequence[Subject], text: str, on_progress: OnProgress | None = None) -> ByteLosses:
    """Return what models lose on a text in bits per byte; their tokenizers may differ.

    Raises:
        ValueError: no model, or one that does not predict the next token; a text too short for two pieces;
            weights that give numbers that are not finite; characters that a tokenizer does not know.
    """
    if not subjects:
        raise ValueError("there is no model to judge; give the parent first, then its children")
    pieces = _fitting(subjects, text)
    sizes = torch.tensor([len(piece.encode()) for _, piece in pieces])
    sums: list[torch.Tensor] = []
    for done, subject in enumerate(subjects, 1):
        found = []
        for context, piece in pieces:
            before, ids = _ids(subject, context, piece)
            row = torch.tensor([before + ids], device=subject.device)
            found.append(losses(subject.model, [row])[-len(ids) :].sum() / math.log(2))
        sums.append(torch.stack(found))  # (P,)
        check_finite(subject.name, float(sums[-1].sum()))
        if on_progress is not None:
            on_progress(done, len(subjects))
    told = []
    for each in sums:
        more = per_token(each - sums[0], sizes)
        told.append(ByteLoss(float(each.sum() / sizes.sum()), more.mean, more.low, more.high))
    return ByteLosses([s.name for s in subjects], int(sizes.sum()), len(pieces), told)


def _fitting(subjects: Sequence[Subject], text: str) -> list[tuple[str, str]]:
    """Return pieces, each with what stands before it, as long as all models can read."""
    size = _MOST
    while size >= _LEAST:
        pieces = list(_pieces(text, size))
        if len(pieces) > 1 and all(_fits(subject, pieces) for subject in subjects):
            return pieces
        size //= 2
    raise ValueError(
        f"the text has {len(text)} characters, of which no two pieces can be made that all models can read; "
        "give more text"
    )


def _fits(subject: Subject, pieces: Sequence[tuple[str, str]]) -> bool:
    limit = min(ROW, subject.max_tokens or ROW)
    return all(len(before) + len(ids) <= limit for before, ids in (_ids(subject, *piece) for piece in pieces))


def _pieces(text: str, size: int) -> Iterator[tuple[str, str]]:
    """Cut a text before white space, where there is some, into pieces of at most `size` characters."""
    start = size
    while start < len(text):
        end = start + size
        if end < len(text):
            end = max((i for i in range(start + size // 2, end + 1) if text[i].isspace()), default=end)
        yield text[start - size : start], text[start:end]
        start = end


def _ids(subject: Subject, context: str, piece: str) -> tuple[list[int], list[int]]:
    return open_ended(subject, subject.encode(context)), subject.plain_ids(piece)
