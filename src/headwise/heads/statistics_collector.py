"""Statistics of every head over any number of texts, without a matrix of weights.

Letters: B texts, H query heads, T queries, S keys.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from headwise.attention.request import WeightsOf
from headwise.heads.documents import encode_all
from headwise.heads.head_ids import HeadId, check_heads
from headwise.heads.sampled_queries import Sample
from headwise.heads.seam import AttentionCall, observe
from headwise.heads.sharding import gathered, this_shard
from headwise.heads.statistics_reduction import columns, length_factors, reduce_call
from headwise.heads.statistics_result import HeadMap, HeadStatistics
from headwise.heads.weights import weights_of
from headwise.hub import AttentionLayer, Subject, TokenBatch


class StatisticsCollector:
    """Gathers the statistics of heads from calls of attention.

    layers: the layers whose calls will come. received: whether to add up what each key receives as well,
    which takes somewhat longer. curves: heads, as (layer, head), for which what each key of each text
    receives is kept; needs received. every: look at every n-th query only, which takes about that much less
    time. What is said of queries that are looked at is exact, and averages over queries have no bias; what
    keys receive, and sinks, are those of the queries that are looked at.

    Raises ValueError for a head that does not exist, for curves without received, and for every below 1.
    """

    def __init__(
        self,
        layers: Sequence[AttentionLayer],
        *,
        received: bool = True,
        curves: Collection[HeadId] = (),
        every: int = 1,
    ) -> None:
        check_every(every)
        self.curves = frozenset(check_heads([layer.n_head for layer in layers], curves, "curves"))
        if self.curves and not received:
            raise ValueError("curves are of what keys receive; give received=True with them")
        self.columns = columns(received)
        self.wants_received = received
        self.every = every
        self._sums = {
            layer.index: torch.zeros(3, len(self.columns), layer.n_head, dtype=torch.float64)
            for layer in layers
        }
        self._factors: dict[int, Tensor | None] = {}
        self._received: dict[HeadId, list[Tensor]] = {head: [] for head in sorted(self.curves)}

    @torch.no_grad()
    def update(self, call: AttentionCall, batch: TokenBatch, keys: TokenBatch | None = None) -> None:
        """Add a call on these tokens.

        batch: the tokens of the queries; padding does not count. keys: those of the keys where they are of
        another sequence; without them nothing is said about first, special and punctuation tokens there.
        Masses on the query's own position and its neighbours are NaN in such layers.

        Raises ValueError if the tokens do not fit the call, or the layer was not announced.
        """
        index = call.layer.index
        if index not in self._sums:
            raise ValueError(f"layer {index} ({call.layer.name}) is not among the layers of this collector")
        if index not in self._factors:
            self._factors[index] = length_factors(call.layer, call.v.shape[3])
        sums = reduce_call(
            call,
            batch,
            keys,
            self._factors[index],
            received=self.wants_received,
            sample=Sample.of(batch, self.every),
        )
        self._sums[index] += sums.values.cpu()
        if sums.received is not None:
            real = (batch if keys is None else keys).real
            for layer, head in self.curves:
                if layer == index:
                    self._received[layer, head] += [
                        shares[head, there].cpu() for shares, there in zip(sums.received, real, strict=True)
                    ]

    def state(self) -> dict[str, Tensor]:
        """Return what was gathered as tensors that add up: those of several processes may be summed.

        Curves are not among them.
        """
        return {f"layer.{index}": sums.clone() for index, sums in self._sums.items()}

    def add_state(self, state: Mapping[str, Tensor]) -> None:
        """Add what another collector of the same model and options gathered.

        Raises ValueError if it is of other layers, heads or columns.
        """
        here = {name: tuple(t.shape) for name, t in self.state().items()}
        there = {name: tuple(t.shape) for name, t in state.items()}
        if here != there:
            raise ValueError(f"the state is of {there}, but this collector has {here}")
        for index, sums in self._sums.items():
            sums += state[f"layer.{index}"].to(sums)

    def result(self) -> HeadStatistics:
        """Return the statistics of everything so far."""
        return HeadStatistics(
            {index: sums.clone() for index, sums in self._sums.items()},
            self.columns,
            received={head: list(curves) for head, curves in self._received.items()},
            every=self.every,
        )


def result_of_all(collector: StatisticsCollector) -> HeadStatistics:
    """Return the statistics of what the collectors of all processes of torch.distributed gathered."""
    result = collector.result()
    result.sums = {layer: gathered(sums) for layer, sums in result.sums.items()}
    return result


def check_every(every: int) -> None:
    """Raise TypeError or ValueError unless every n-th query can be taken."""
    if isinstance(every, bool) or not isinstance(every, int):
        raise TypeError(f"every must be a whole number, got {every!r}; every=8 looks at every 8th query")
    if every < 1:
        raise ValueError(f"every must be at least 1, which looks at all queries, got {every}")


def check_batch_tokens(batch_tokens: int) -> None:
    """Raise ValueError unless texts can be read side by side up to so many tokens."""
    if batch_tokens < 1:
        raise ValueError(f"batch_tokens must be at least 1, got {batch_tokens}")


def check_no_nan(output: Tensor, batch: TokenBatch, name: str) -> None:
    """Raise ValueError if what a model gives on a batch (B, T, ·) holds NaN at a real token."""
    if bool(output.amax(dim=-1)[batch.real].isnan().any()):
        raise ValueError(
            f"{name} gives NaN on the texts, so nothing can be said of its heads: its weights are damaged, "
            "or too large for their dtype"
        )


def statistics(
    subject: Subject,
    texts: Sequence[str | Sequence[int]],
    *,
    received: bool = True,
    curves: Collection[HeadId] = (),
    maps: Collection[HeadId] = (),
    map_tokens: int = 1024,
    repeated: bool = False,
    every: int = 1,
    batch_tokens: int = 4096,
    progress: Callable[[int, int], None] | None = None,
) -> HeadStatistics:
    """Say what every head of a model does, over any number of texts of any length.

    texts: as text or as token ids. received, curves, every: as for `StatisticsCollector`. maps: heads, as
    (layer, head), whose weights are kept, a matrix per text; other heads' weights are never formed. A text
    longer than map_tokens is then an error. repeated: add the scores on repeated random tokens, see
    `induction_scores`. batch_tokens: texts are read side by side up to so many tokens. progress: called with
    the number of texts read and of all.

    Under torch.distributed each process reads its share of the texts, and all get the statistics of all of
    them; maps and curves are then refused.

    Raises ValueError for no texts, an empty text, one that is longer than the model can read or than
    map_tokens, for a head that does not exist, and for a model that gives NaN.
    """
    ids = encode_all(subject, texts)
    mapped = check_heads([layer.n_head for layer in subject.layers], maps, "maps")
    check_batch_tokens(batch_tokens)
    shard = this_shard()
    if shard.world > 1 and (mapped or curves):
        raise ValueError("maps and curves are kept in one process; ask for them without torch.distributed")
    collector = StatisticsCollector(subject.layers, received=received, curves=curves, every=every)
    kept: dict[HeadId, list[HeadMap]] = {head: [] for head in sorted(mapped)}
    if mapped:
        for number, text in enumerate(ids):
            if len(text) > map_tokens:
                raise ValueError(
                    f"text {number} has {len(text)} tokens, but maps are kept of at most {map_tokens}; "
                    "shorten it or raise map_tokens"
                )
    for unit, (start, group) in enumerate(batches(ids, batch_tokens)):
        if not shard.takes(unit):
            continue
        batch = subject.batch(group)

        def look(call: AttentionCall, batch: TokenBatch = batch, start: int = start) -> None:
            collector.update(call, batch)
            for head, weights in _maps(call, kept):
                for n, (each, real) in enumerate(zip(weights, batch.real, strict=True)):
                    labels = tuple(subject.labels(batch.ids[n, real].tolist()))
                    kept[head].append(HeadMap(start + n, each[real][:, real].float().cpu(), labels))

        with torch.no_grad(), observe(subject.model, look):
            output = subject.run(batch)
        check_no_nan(output, batch, subject.name)
        if progress is not None:
            progress(start + len(group), len(ids))
    result = result_of_all(collector)
    result.maps = kept
    if repeated:
        from headwise.heads.repeated import induction_scores

        result.repeated = induction_scores(subject)
    return result


def batches(ids: Sequence[Sequence[int]], tokens: int) -> Iterator[tuple[int, list[Sequence[int]]]]:
    """Cut texts, in their order, into groups of at most so many tokens, padding among them.

    Yields the number of each group's first text, and its texts; a longer text is a group of its own.
    """
    start, group, longest = 0, list[Sequence[int]](), 0
    for number, text in enumerate(ids):
        longest = max(longest, len(text))
        if group and longest * (len(group) + 1) > tokens:
            yield start, group
            start, group, longest = number, [], len(text)
        group.append(text)
    if group:
        yield start, group


def _maps(call: AttentionCall, wanted: Collection[HeadId]) -> Iterator[tuple[HeadId, Tensor]]:
    """Return the weights (B, T, S) of those heads of this layer that are wanted."""
    heads = [head for layer, head in wanted if layer == call.layer.index]
    if heads:
        weights = weights_of(call, WeightsOf(heads=heads))
        for n, head in enumerate(heads):
            yield (call.layer.index, head), weights[:, n]
