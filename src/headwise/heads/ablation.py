"""What each head is worth: how much more a token costs when the head is silent.

Letters: M documents, C classes of tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from headwise.heads.documents import CLASSES, Document, Measure, Text, make_documents
from headwise.heads.head_ids import HeadId
from headwise.heads.intervals import rank_correlation
from headwise.heads.progress import Progress, fingerprint, model_fingerprint
from headwise.heads.retrieval import Task, retrieval_documents
from headwise.heads.sharding import this_shard
from headwise.heads.silencing import How, Silencing, check_how
from headwise.heads.sweep import Costs, OnProgress, Sweep, checked_heads, tokens_at_once
from headwise.hub import Subject

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class Agreement:
    """How gradients and measured ablation rank the heads: Spearman's ρ, NaN for fewer than two heads."""

    importance: float
    """Of `importance` and the size of the measured change, |delta|."""
    predicted: float
    """Of `predicted`, the signed first-order change, and delta."""


@dataclass(frozen=True, eq=False)
class Ablation:
    """The cost of silencing each head of a model."""

    name: str
    """Of the model."""
    how: How
    measure: Measure
    costs: Costs
    notes: tuple[str, ...]
    """What a reader of the numbers has to know."""

    @property
    def baseline(self) -> dict[str, float]:
        """The loss of each class of tokens with every head at work, in nats per token; NaN without tokens."""
        return {name: self.costs.level(name) for name in CLASSES}

    @property
    def tokens(self) -> dict[str, int]:
        """How many tokens of each class were predicted."""
        return {name: int(self.costs.counts[:, i].sum()) for i, name in enumerate(CLASSES)}

    @cached_property
    def table(self) -> DataFrame:
        """One row per head.

        layer, head: counted from 0.
        delta, low, high: how much more a token of the texts costs without it, with the 95 % interval over
            texts (paired, Student's t); below 0 where the model is better off without the head.
        delta_first, delta_copied, delta_punctuation, delta_other, delta_retrieval: the same of each class of
            tokens, NaN where there are none; retrieval_low and retrieval_high over its sequences.
        """
        from pandas import DataFrame

        rows = []
        for i, (layer, head) in enumerate(self.costs.heads):
            whole, looked_up = self.costs.delta(i), self.costs.delta(i, "retrieval")
            row: dict[str, float] = {"layer": layer, "head": head}
            row |= {"delta": whole.mean, "low": whole.low, "high": whole.high}
            row |= {f"delta_{name}": self.costs.delta(i, name).mean for name in CLASSES[1:]}
            row |= {"retrieval_low": looked_up.low, "retrieval_high": looked_up.high}
            rows.append(row)
        return DataFrame(rows)

    def agreement(self, importance: DataFrame) -> Agreement:
        """Compare with what gradients say of the same heads (`heads.importance`), by rank.

        Raises ValueError if a head is missing there.
        """
        both = self.table.merge(importance, on=["layer", "head"], how="left", validate="one_to_one")
        if bool(both["importance"].isna().any()):
            raise ValueError("importance lacks heads that were silenced; compute it for the same model")

        def column(name: str) -> torch.Tensor:
            return torch.tensor(both[name].to_numpy(float, copy=True))

        delta = column("delta")
        return Agreement(
            importance=rank_correlation(column("importance"), delta.abs()),
            predicted=rank_correlation(column("predicted"), delta),
        )


def ablate(
    subject: Subject,
    texts: Sequence[Text],
    *,
    how: How = "zero",
    measure: Measure = "loss",
    heads: Collection[HeadId] | None = None,
    reference: Sequence[Text] | None = None,
    retrieval: Task | None = "repeat",
    seed: int = 0,
    tokens: int | None = None,
    memory: int | None = None,
    folder: Path | str | None = None,
    on_progress: OnProgress | None = None,
) -> Ablation:
    """Measure what silencing each head alone costs, exactly: by running what follows it.

    Silencing head h takes z_h W_O^h out of the layer's output and keeps the projection's bias.

    texts: texts or ids of tokens. A causal model predicts each token but the first; an encoder with a
        language-model head fills in 15 % of the tokens, drawn by the seed and replaced by its mask token.
    how: "zero" puts nothing in the place of z_h; "mean" its mean over the tokens of reference texts, pooled
        over positions; "resample" that of another text, drawn by the seed, at the same position.
    measure: "loss" in nats per token; "output" for 1 - cosine between what the model gives at each token
        with and without the head, for encoders that predict nothing.
    heads: (layer, head) of those to silence; default all.
    reference: texts to take means over; default the texts themselves.
    retrieval: random sequences in whose second half tokens can only be looked up, "repeat" or "pairs"; None
        for none.
    tokens: how many are read at once. memory: bytes for activations, which bound how many heads are silenced
        at once. Both default to what suits the device.
    folder: where progress is kept; a sweep that was broken off goes on from there.
    on_progress: called as (done, total) now and then.

    Under `torchrun` the texts are shared out among the processes; each gets the same whole result.

    Raises ValueError for texts, heads, names or numbers that do not fit, before anything runs; for "mean"
    or "resample" where there is nothing to take; and for a folder with other settings.
    """
    check_how(how)
    chosen = checked_heads(subject, heads)
    tokens = tokens_at_once(subject, tokens)
    if memory is not None and memory < 1:
        raise ValueError(f"memory must be at least 1 byte, got {memory}")
    if reference is not None and how != "mean":
        raise ValueError(f'reference texts are for how="mean" only, got how={how!r}')
    kinds = [make_documents(subject, texts, measure=measure, seed=seed)]
    if retrieval is not None:
        kinds.append(retrieval_documents(subject, retrieval, measure=measure, seed=seed))
    means_over = (
        kinds[0] if reference is None else make_documents(subject, reference, measure="output", seed=seed)
    )
    documents = [document for kind in kinds for document in kind]
    settings: dict[str, object] = {}
    if folder is not None:
        settings = {
            "how": how,
            "measure": measure,
            "heads": [list(head) for head in chosen],
            "seed": seed,
            "tokens": tokens,
            "retrieval": retrieval,
            "texts": _fingerprint(kinds[0]),
            "reference": _fingerprint(means_over) if how == "mean" else None,
            "model": model_fingerprint(subject.model),
        }
    progress = Progress.open(folder, settings, this_shard().rank)
    silencing = Silencing.make(subject, kinds, how, reference=means_over, tokens=tokens, seed=seed)
    sweep = Sweep(subject, documents, silencing, tokens, measure, memory)
    costs = sweep.run(chosen, progress=progress, on_progress=on_progress)
    return Ablation(subject.name, how, measure, costs, _notes(how, len(texts)))


def _notes(how: How, texts: int) -> tuple[str, ...]:
    notes = {
        "zero": "the head's output is set to zero; the bias of the output projection stays",
        "mean": "the head's output is replaced by its mean over all real tokens of the reference texts, "
        "pooled over positions; the bias of the output projection stays",
        "resample": "the head's output is replaced by that of another text at the same position; the bias of "
        "the output projection stays",
    }[how]
    if texts == 1:
        return notes, "one text makes no interval: it takes at least two to see how much they differ"
    return (notes,)


def _fingerprint(documents: Sequence[Document]) -> str:
    return fingerprint([[document.ids, document.targets] for document in documents])
