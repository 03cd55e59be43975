"""A model with some of its heads switched off, as `heads.ablate` switches them off.

Letters: H heads of a layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from headwise.heads.documents import Document, make_batch, make_documents
from headwise.heads.head_ids import HeadId
from headwise.heads.seam import observe
from headwise.heads.silencing import Silencing
from headwise.heads.sweep import by_layer, checked_heads, tokens_at_once
from headwise.hub import Subject
from headwise.report.server.requests import HowSilent


class Switched:
    """Heads of a model that are switched off on one text."""

    def __init__(self, subject: Subject, document: Document, off: Sequence[HeadId], how: HowSilent) -> None:
        """document: over whose tokens means are taken.

        Raises ValueError for heads that are not there, or named twice.
        """
        self.subject = subject
        self.off = checked_heads(subject, off) if off else []
        self.gates: dict[int, Tensor] = {}
        self.fills: dict[int, Tensor] = {}
        for index, heads in by_layer(self.off).items():
            gate = torch.ones(subject.layers[index].n_head, device=subject.device)
            gate[heads] = 0
            self.gates[index] = gate
        if self.off and how == "mean":
            tokens = tokens_at_once(subject, None)
            silencing = Silencing.make(subject, [[document]], how, reference=[document], tokens=tokens)
            self.fills = silencing.fills(make_batch(subject, [document], [0]))

    @contextmanager
    def on(self) -> Iterator[None]:
        """Keep them off for a while; where none are, the model stays untouched."""
        if not self.off:
            yield
            return
        with observe(self.subject.model, gates=self.gates, fills=self.fills):
            yield


def document_of(subject: Subject, ids: Sequence[int]) -> Document:
    """Return a text as an ablation measures it, without predictions where it has none to make."""
    predicts = subject.predicts != "nothing" and not (subject.causal and len(ids) < 2)
    return make_documents(subject, [list(ids)], measure="loss" if predicts else "output")[0]
