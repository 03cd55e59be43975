"""The page's data for a text that was typed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import torch

from headwise.heads import induction_scores
from headwise.heads.head_ids import HeadId
from headwise.hub import Subject
from headwise.report.server.requests import HowSilent
from headwise.report.server.switched import Switched, document_of
from headwise.report.viewer.data import view_data
from headwise.report.viewer.pack import packed


class Looker:
    """Looks at the heads of one model on any text; what no text changes is measured once."""

    def __init__(self, subject: Subject, heads: Mapping[int, Sequence[int]] | None = None) -> None:
        """heads: by layer, the numbers that they go by; off names them by their places all the same."""
        self.subject = subject
        self.heads = heads
        self._repeats: pd.DataFrame | None = None

    @torch.no_grad()
    def look(self, ids: Sequence[int], off: Sequence[HeadId] = (), how: HowSilent = "zero") -> dict[str, Any]:
        """Return what the page shows of a text, and beside it the same with heads switched off, if any are.

        With heads off, nothing is measured on repeated tokens, so roles that need it are not given.
        """
        if self._repeats is None:
            self._repeats = induction_scores(self.subject)
        switched = Switched(self.subject, document_of(self.subject, ids), off, how)
        room = sum(layer.n_head for layer in self.subject.layers) * (2 if switched.off else 1)
        plain = view_data(self.subject, ids, repeats=self._repeats, planned_heads=room, heads=self.heads)
        if not switched.off:
            return packed(plain)
        with switched.on():
            silent = view_data(self.subject, ids, repeats=False, planned_heads=room, heads=self.heads)
        return packed(plain, silent)
