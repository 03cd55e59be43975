"""Texts as rows of tokens of one length, and what a model loses on them.

Letters: B rows of a batch, T tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headwise.hub.modes import evaluating
from headwise.hub.subject import Subject
from headwise.hub.surgery import next_token_logits

ROW = 512
"""Tokens of a row, where the model can read so many."""


def rows_of(
    subject: Subject,
    texts: Iterable[str],
    *,
    length: int | None = None,
    skip: int = 0,
    most: int | None = None,
) -> list[Tensor]:
    """Return the tokens of texts, one behind the other, in rows (1, T) of one length.

    length: default 512, or the most that the model can read. skip: leave out so many tokens first.
    most: stop after so many more. What is left at the end becomes a shorter row, if it has at least 2 tokens.

    Raises:
        ValueError: a length below 2 or beyond what the model can read; no text.
    """
    limit = subject.max_tokens
    length = min(ROW, limit or ROW) if length is None else length
    if length < 2 or (limit is not None and length > limit):
        raise ValueError(f"length of a row must lie in 2 … {limit or 'any'}, got {length}")
    ids: list[int] = []
    for text in texts:
        ids += subject.encode(text) if text else []
        if most is not None and len(ids) >= skip + most:
            del ids[skip + most :]
            break
    if skip and len(ids) < skip + 2:
        raise ValueError(
            f"the text has {len(ids):,} tokens, and the first {skip:,} are to be left out; give more "
            "text, or leave out only what models were fitted to (--skip 0 if none was to any of it, else "
            "--tokens and --held-out of group or prune together)"
        )
    del ids[:skip]
    if len(ids) < 2:
        raise ValueError(
            f"the text has {len(ids)} tokens; give some 10,000 tokens of text like what the model is for"
        )
    rows = [ids[start : start + length] for start in range(0, len(ids), length)]
    return [torch.tensor([row], device=subject.device) for row in rows if len(row) > 1]


def given_rows(source: Subject | nn.Module, texts: Iterable[str] | Sequence[Tensor]) -> list[Tensor]:
    """Return rows of tokens (B, T): those given, or made of the texts given, which takes a subject.

    Raises:
        TypeError: texts for a bare model.
        ValueError: as `rows_of`; nothing given is no error.
    """
    given = list(texts)
    if all(isinstance(row, Tensor) for row in given):
        return [row for row in given if isinstance(row, Tensor)]
    if not isinstance(source, Subject):
        raise TypeError("a bare model has no tokenizer for texts; give a subject, or rows of token ids")
    return rows_of(source, [text for text in given if isinstance(text, str)])


def check_finite(name: str, loss: float) -> None:
    """Raise ValueError for a loss that says that the weights of the model of this name are damaged."""
    if not math.isfinite(loss):
        raise ValueError(
            f"{name} gives numbers that are not finite (NaN or infinite): its weights are damaged, "
            "or too large for their dtype"
        )


@torch.no_grad()
def losses(model: nn.Module, rows: Sequence[Tensor]) -> Tensor:
    """Return the loss of every predicted token in nats, float64, of rows of tokens (B, T)."""
    with evaluating(model):
        return torch.cat([_row_losses(model, row) for row in rows])


def _row_losses(model: nn.Module, row: Tensor) -> Tensor:
    logits = next_token_logits(model, row)[:, :-1].float()
    return F.cross_entropy(logits.flatten(0, 1), row[:, 1:].flatten(), reduction="none").double().cpu()


def perplexity(model: nn.Module, rows: Sequence[Tensor]) -> float:
    """Return exp of the mean loss on rows of tokens (B, T)."""
    return math.exp(float(losses(model, rows).mean()))
