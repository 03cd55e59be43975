"""What silencing each head costs, document by document: the measurement under ablations and sets.

Letters: M documents, C classes of tokens, B documents of a batch, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
import torch.nn.functional as F
from torch import Tensor

from headwise.heads.documents import CLASSES, NOTHING, Batch, Document, Measure, batches_of, make_batch
from headwise.heads.head_ids import HeadId, check_heads
from headwise.heads.intervals import Estimate, per_token
from headwise.heads.progress import Progress
from headwise.heads.replay import Replayer
from headwise.heads.sharding import gathered, this_shard
from headwise.heads.silencing import Silencing
from headwise.hub import Subject
from headwise.hub.subject import require_subject

OnProgress = Callable[[int, int], None]
"""Told how much is done, of how much."""

TOKENS, TOKENS_ON_A_GPU = 256, 4096
"""How many tokens are read at once, if nothing else is asked for."""


@dataclass(frozen=True, eq=False)
class Costs:
    """Sums over the tokens of each document and class, in float64."""

    heads: list[HeadId]
    sums: Tensor
    """(heads, M, C), with each head silent."""
    base: Tensor
    """(M, C), without any of them silent."""
    counts: Tensor
    """(M, C) tokens."""

    def delta(self, head: int, name: str = "all") -> Estimate:
        """Estimate how much more a token of a class costs with a head silent, paired by document."""
        column = CLASSES.index(name)
        return per_token(self.sums[head, :, column] - self.base[:, column], self.counts[:, column])

    def level(self, name: str = "all") -> float:
        """Return what a token of a class costs without any of them silent, NaN for a class without tokens."""
        column = CLASSES.index(name)
        return per_token(self.base[:, column], self.counts[:, column]).mean


@dataclass(frozen=True, eq=False)
class Sweep:
    """Silences heads in documents and adds up what that costs."""

    subject: Subject
    documents: Sequence[Document]
    silencing: Silencing
    tokens: int
    measure: Measure = "loss"
    memory: int | None = None
    """Bytes, see `Replayer`."""

    def run(
        self,
        heads: Sequence[HeadId],
        *,
        silenced: Collection[HeadId] = (),
        progress: Progress | None = None,
        on_progress: OnProgress | None = None,
    ) -> Costs:
        """Silence each of the heads alone, beside those that are silent throughout.

        progress: results so far, which are kept and not computed again.
        on_progress: told after each layer of each batch, in silenced heads times batches of this process.
        """
        progress = Progress(None, {}) if progress is None else progress
        shard = this_shard()
        shares = batches_of(self.documents, self.tokens)
        mine = [number for number in range(len(shares)) if shard.takes(number)]
        layers = by_layer(heads)
        total, done = len(heads) * len(mine), 0
        try:
            for number in mine:
                missing = {i: some for i, some in layers.items() if f"{number}/{i}" not in progress.results}
                done += len(heads) - sum(map(len, missing.values()))
                if not missing and f"{number}/base" in progress.results:
                    continue
                for name, result in self._costs_of(shares[number], missing, silenced):
                    progress.add(f"{number}/{name}", result)
                    done += 0 if name == "base" else len(result)
                    if on_progress is not None:
                        on_progress(done, total)
        finally:
            progress.write()
        return self._collected(heads, shares, mine, progress)

    def _costs_of(
        self, numbers: list[int], layers: dict[int, list[int]], silenced: Collection[HeadId]
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield what a batch costs: (B, C) as it is, then (n, B, C) for heads of each layer."""
        batch = make_batch(self.subject, self.documents, numbers)
        replayer = Replayer(self.subject, self.memory)
        recording = replayer.record(
            batch.tokens, silenced=by_layer(silenced), fills=self.silencing.fills(batch)
        )
        clean = recording.output
        if silenced and self.measure == "output":
            with torch.no_grad():
                clean = self.subject.run(batch.tokens)
        base = self._cost(recording.output, clean, batch)
        if not bool(torch.isfinite(base).all()):
            raise ValueError(
                f"{self.subject.name} gives numbers that are not finite (NaN or infinite) with all its "
                "heads at work, so nothing can be lost: its weights are damaged, or too large for their dtype"
            )
        yield "base", base
        for index, heads in layers.items():
            outputs = recording.silence(self.subject.layers[index], heads)
            yield str(index), torch.stack([self._cost(output, clean, batch) for _, output in outputs])

    def _cost(self, output: Tensor, clean: Tensor, batch: Batch) -> Tensor:
        """Return what a batch costs by document and class, (B, C), for outputs (B, T, ·)."""
        there = batch.targets != NOTHING
        chosen = output[there].float()
        if self.measure == "loss":
            each = F.cross_entropy(chosen, batch.targets[there], reduction="none")
        else:
            each = 1 - F.cosine_similarity(chosen, clean[there].float(), dim=-1)
        costs = each.new_zeros(there.shape)
        costs[there] = each
        by_class = costs.cpu().double().unsqueeze(1) * batch.classes.cpu()  # (B, C, T)
        return by_class.sum(2)

    def _collected(
        self, heads: Sequence[HeadId], shares: list[list[int]], mine: list[int], progress: Progress
    ) -> Costs:
        texts = len(self.documents)
        sums = torch.zeros(len(heads), texts, len(CLASSES), dtype=torch.float64)
        base = torch.zeros(texts, len(CLASSES), dtype=torch.float64)
        place = {head: i for i, head in enumerate(heads)}
        for number in mine:
            base[shares[number]] = progress.results[f"{number}/base"]
            for index, some in by_layer(heads).items():
                rows = [place[index, head] for head in some]
                sums[torch.tensor(rows)[:, None], torch.tensor(shares[number])] = progress.results[
                    f"{number}/{index}"
                ]
        counts = torch.tensor(
            [[sum(flags) for flags in document.classes] for document in self.documents], dtype=torch.float64
        )
        return Costs(list(heads), gathered(sums), gathered(base), counts)


def by_layer(heads: Collection[HeadId]) -> dict[int, list[int]]:
    """Return heads by their layer, both in order."""
    return {
        layer: [head for _, head in group]
        for layer, group in groupby(sorted(heads), key=lambda each: each[0])
    }


def tokens_at_once(subject: Subject, tokens: int | None) -> int:
    """Return how many tokens to read at once: as many as asked for, or what suits the device.

    On a CPU few texts with many heads at once are best: what is the same for all heads need not be copied.
    Raises ValueError for fewer than 1.
    """
    require_subject(subject)
    if tokens is None:
        return TOKENS if subject.device.type == "cpu" else TOKENS_ON_A_GPU
    if tokens < 1:
        raise ValueError(f"tokens must be at least 1, got {tokens}")
    return tokens


def all_heads(subject: Subject) -> list[HeadId]:
    """Return every head of a model."""
    return [(layer.index, head) for layer in subject.layers for head in range(layer.n_head)]


def checked_heads(subject: Subject, heads: Collection[HeadId] | None) -> list[HeadId]:
    """Return the heads in order, all for None; raise ValueError for one that is not there, or twice."""
    require_subject(subject)
    if heads is None:
        return all_heads(subject)
    if isinstance(heads, Collection) and not heads:
        raise ValueError("heads is empty; name at least one (layer, head), or leave it out for all")
    chosen = check_heads([layer.n_head for layer in subject.layers], heads, "heads")
    if len(set(chosen)) < len(chosen):
        raise ValueError("a head is named twice; name each once")
    return sorted(chosen)
