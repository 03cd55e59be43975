"""A model's continuation of a text beside what it writes with heads switched off, token by token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headwise.heads.head_ids import HeadId
from headwise.hub import Subject
from headwise.hub.writing import Spelling, open_ended, write_ids
from headwise.model.sampling import Sampling
from headwise.report.server.requests import HowSilent
from headwise.report.server.switched import Switched, document_of


class Writing:
    """Two texts that grow by a token at a time; the second is missing where no heads are off.

    Both draw with the same seed, so that they differ where the models do.
    """

    def __init__(
        self,
        subject: Subject,
        ids: Sequence[int],
        off: Sequence[HeadId],
        how: HowSilent,
        *,
        tokens: int,
        sampling: Sampling,
        seed: int,
    ) -> None:
        """Raises ValueError as `write_ids` does, and for heads that are not there."""
        start = open_ended(subject, ids)
        self.switched = Switched(subject, document_of(subject, ids), off, how)
        names = ["plain", "silent"] if self.switched.off else ["plain"]
        self._subject = subject
        self._ids: dict[str, Iterator[int]] = {
            name: write_ids(subject, start, tokens, sampling, seed) for name in names
        }
        self._spelling = {name: Spelling(subject, start) for name in names}

    @property
    def done(self) -> bool:
        return not self._ids

    def step(self) -> dict[str, str]:
        """Return what one token more adds to each text, perhaps nothing yet."""
        return {name: self._next(name) for name in list(self._ids)}

    def _next(self, name: str) -> str:
        if name == "plain":
            index = next(self._ids[name], None)
        else:
            with self.switched.on():
                index = next(self._ids[name], None)
        if index is None or index in self._subject.special_ids:
            del self._ids[name]
            return self._spelling[name].flush()
        return self._spelling[name].push(index)
