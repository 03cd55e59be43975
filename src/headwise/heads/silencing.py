"""What takes the place of a silenced head's output z_h, before the output projection.

Its bias stays in each case: silencing removes z_h W_O^h and nothing else.

Letters: B texts, T tokens, H query heads, V width of a value.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from headwise.heads.documents import Batch, Document, batches_of, make_batch
from headwise.heads.seam import AttentionCall, observe
from headwise.hub import Subject

How = Literal["zero", "mean", "resample"]
"""zero: nothing. mean: the mean of z_h over the real tokens of reference texts, the same at each position.
resample: z_h of another text at the same position, from its start again where that text is shorter."""

HOWS = ("zero", "mean", "resample")


def check_how(how: str) -> None:
    """Raise ValueError unless heads can be silenced like that."""
    if how not in HOWS:
        raise ValueError(f"how must be one of {', '.join(HOWS)}, got {how!r}")


@dataclass(frozen=True, eq=False)
class Silencing:
    """What stands in for heads in each batch of documents."""

    subject: Subject
    documents: Sequence[Document]
    how: How
    means: dict[int, Tensor]
    """(1, H, 1, V) by layer, for how="mean"."""
    partners: list[int]
    """For how="resample": by document, the one whose outputs are taken."""

    @classmethod
    def make(
        cls,
        subject: Subject,
        kinds: Sequence[Sequence[Document]],
        how: How,
        *,
        reference: Sequence[Document],
        tokens: int,
        seed: int = 0,
    ) -> Silencing:
        """Prepare for documents of several kinds, one kind after the other.

        reference: where means are taken over.
        tokens: how many to run at once.

        Raises ValueError for an unknown `how`, and where no other text can be taken.
        """
        check_how(how)
        documents = [document for kind in kinds for document in kind]
        means = _means(subject, reference, tokens) if how == "mean" else {}
        partners: list[int] = []
        if how == "resample":
            draw = random.Random(f"{seed}/partners")
            for kind in kinds:
                partners += [len(partners) + other for other in _others(len(kind), draw)]
        return cls(subject, documents, how, means, partners)

    def fills(self, batch: Batch) -> dict[int, Tensor]:
        """Return by layer what takes the place of heads, broadcastable to (B, H, T, V); {} for zeros."""
        if self.how != "resample":
            return self.means
        others = make_batch(self.subject, self.documents, [self.partners[n] for n in batch.numbers])
        place = _places(batch.tokens.real, others.tokens.real)  # (B, T)
        taken: dict[int, Tensor] = {}

        def take(call: AttentionCall) -> None:
            where = place[:, None, :, None].expand(-1, call.out.shape[1], -1, call.out.shape[3])
            taken[call.layer.index] = call.out.gather(2, where)  # (B, H, T, V)

        with torch.no_grad(), observe(self.subject.model, take):
            self.subject.run(others.tokens)
        return taken


def _others(count: int, draw: random.Random) -> list[int]:
    """Return for each of so many another one, each taken once: a cycle through all in a random order."""
    if count == 1:
        raise ValueError(
            'how="resample" takes outputs from another text, so it needs at least two texts, and two '
            "retrieval sequences if there are any"
        )
    order = draw.sample(range(count), count)
    after = dict(zip(order, [*order[1:], *order[:1]], strict=True))
    return [after[i] for i in range(count)]


def _places(real: Tensor, other: Tensor) -> Tensor:
    """Return where in the other batch (B, S) each token of a batch (B, T) finds its stand-in, (B, T)."""
    position = (real.cumsum(1) - 1).clamp(min=0)  # from the first real token
    start = other.int().argmax(1, keepdim=True)
    return start + position % other.sum(1, keepdim=True)


def _means(subject: Subject, documents: Sequence[Document], tokens: int) -> dict[int, Tensor]:
    """Return each head's mean output over the real tokens of documents, (1, H, 1, V) by layer."""
    sums: dict[int, Tensor] = {}
    count = 0
    dtypes: dict[int, torch.dtype] = {}
    for numbers in batches_of(documents, tokens):
        batch = make_batch(subject, documents, numbers)
        real = batch.tokens.real

        def add(call: AttentionCall, real: Tensor = real) -> None:
            out = call.out.transpose(1, 2)[real].to(_widest(call.out))  # (real tokens, H, V)
            sums[call.layer.index] = sums.get(call.layer.index, 0) + out.sum(0)
            dtypes[call.layer.index] = call.out.dtype

        with torch.no_grad(), observe(subject.model, add):
            subject.run(batch.tokens)
        count += int(real.sum())
    return {i: (total / count).to(dtypes[i])[None, :, None] for i, total in sums.items()}


def _widest(t: Tensor) -> torch.dtype:
    return torch.float32 if t.device.type == "mps" else torch.float64
