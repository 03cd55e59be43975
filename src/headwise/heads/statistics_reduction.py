"""What one call of attention adds to the statistics of its layer: per head, sums and counts in float64.

Letters: B texts, H query heads, G key/value heads, T queries, S keys, V width of a value, D width of the
layer's output, R = H/G.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from headwise.attention.request import Request, make_request
from headwise.heads.sampled_queries import Sample
from headwise.heads.seam import AttentionCall
from headwise.heads.statistics_columns import (
    BAND,
    RECEIVED_COLUMNS,
    ROW_COLUMNS,
    SINK_SHARE,
    TEXT_COLUMNS,
    Column,
)
from headwise.heads.streaming_rows import LOWEST, Marks, Rows
from headwise.heads.streaming_threads import sweep_heads
from headwise.heads.visibility import Visible, sums_over_visible
from headwise.hub.layers import AttentionLayer
from headwise.hub.tokens import TokenBatch

Weight = Callable[[Tensor], Tensor]
"""From a score (B, H, t) to the weight."""

_BLOCK = 1024  # queries that are reduced at a time
_LENGTHS = 512  # vectors per head whose lengths are taken at a time


@dataclass(frozen=True, eq=False)
class Sums:
    """(3, columns, H) float64: sums, sums of what equal weights score, counts; in the order of columns."""

    values: Tensor
    received: Tensor | None
    """(B, H, S), the share of each text's attention that each key gets, if it was asked for."""


def columns(received: bool) -> tuple[Column, ...]:
    """Return the columns that `reduce_call` sums up, in its order."""
    return ROW_COLUMNS + TEXT_COLUMNS + (RECEIVED_COLUMNS if received else ())


def reduce_call(
    call: AttentionCall,
    batch: TokenBatch,
    keys: TokenBatch | None,
    projection: Tensor | None,
    *,
    received: bool,
    sample: Sample,
) -> Sums:
    """Return what a call adds, by the queries of a sample. projection: as `length_factors` returns it.

    Raises ValueError where the tokens do not fit the call.
    """
    request = make_request(
        sample.rows(call.q.detach()),
        call.k.detach(),
        call.v.detach(),
        mask=sample.mask(call.mask, call.q.shape[2], call.k.shape[2]),
        bias=None if call.bias is None else sample.rows(_of_four_axes(call.bias.detach())),
        scale=call.scale,
        dropout=0.0,
        offset=None,
        softcap=call.softcap,
        sink=None if call.sink is None else call.sink.detach(),
        return_weights=False,
    )
    marks, known = _marks(call, batch, keys, request, sample)
    key_norms = None if projection is None else _lengths(request.v, projection)
    sweep = sweep_heads(request, marks, key_norms, near=BAND, received=received)
    region = request.region
    out = sample.rows(call.out.detach()).narrow(2, region.row, region.rows)
    out_norms = None if projection is None else _lengths(out, projection)
    tally = _Tally(columns(received), request.q.shape[1], request.q.device)
    reducer = _Reducer(request, marks, known, key_norms, out_norms)
    for start in range(0, region.rows, _BLOCK):
        reducer.block(sweep.rows, sweep.seen, slice(start, min(start + _BLOCK, region.rows)), tally)
        tally.settle()
    reducer.texts(tally)
    shares = None
    if sweep.received is not None:
        equal = sweep.equal.expand(sweep.received.shape)
        shares = _received(sweep.received.double(), equal, tally)
        shares = F.pad(shares, (region.key, call.k.shape[2] - region.key - region.keys))
    tally.settle()
    return Sums(tally.values, shares)


def length_factors(layer: AttentionLayer, width: int) -> Tensor | None:
    """Return F (H, V, V) with ‖v F‖ = ‖v W_O‖ for the rows of W_O of each head; None if W_O is not known.

    F F^T = W_O W_O^T is the small Gram matrix; taking F from a QR decomposition never squares W_O.
    """
    weight = layer.output_weight
    if weight is None:
        if isinstance(layer.o_proj, torch.nn.Identity):
            return torch.eye(width, dtype=torch.float64).expand(layer.n_head, -1, -1)
        return None
    if weight.shape[1] != layer.n_head * width:
        raise ValueError(
            f"layer {layer.index}: the output projection takes {weight.shape[1]} numbers, but {layer.n_head} "
            f"heads of width {width} give {layer.n_head * width}"
        )
    factors = []
    for head in range(layer.n_head):  # one at a time, to hold no second copy of the weight in float64
        own = weight.detach()[:, head * width : (head + 1) * width].double()  # (D, V)
        factor: Tensor = torch.linalg.qr(own, mode="r").R
        factors.append(factor.mT)
    return torch.stack(factors)


def _of_four_axes(t: Tensor) -> Tensor:
    return t.reshape((1,) * (4 - t.ndim) + tuple(t.shape))


def _lengths(t: Tensor, factors: Tensor) -> Tensor:
    """Return ‖t F‖ for t (B, H|G, T, V), as (B, H, T)."""
    heads, groups = factors.shape[0], t.shape[1]
    wide = torch.promote_types(t.dtype, torch.float32)
    factors = factors.to(device=t.device, dtype=wide).view(groups, -1, *factors.shape[1:])  # (G, R, V, V)
    found = t.new_empty(t.shape[0], groups, heads // groups, t.shape[2], dtype=wide)
    for b in range(t.shape[0]):
        for r in range(heads // groups):
            for start in range(0, t.shape[2], _LENGTHS):
                part = slice(start, start + _LENGTHS)
                vectors = torch.bmm(t[b, :, part].to(wide), factors[:, r])  # (G, t, V)
                torch.linalg.vector_norm(vectors, dim=-1, out=found[b, :, r, part])
    return found.flatten(1, 2)


def _marks(
    call: AttentionCall, batch: TokenBatch, keys: TokenBatch | None, request: Request, sample: Sample
) -> tuple[Marks, bool]:
    """Return what is known about queries and keys, and whether anything is known about the keys."""
    B, _, T, _ = call.q.shape
    S, region = call.k.shape[2], request.region
    own = T == S and not (call.cross or call.layer.cross) and keys is None
    if keys is None and own:
        keys = batch
    for name, given, size in (("batch", batch, T), ("keys", keys, S)):
        if given is not None and tuple(given.ids.shape) != (B, size):
            raise ValueError(
                f"{name} holds tokens of shape {tuple(given.ids.shape)}, but layer {call.layer.index} was "
                f"called with {B} texts of {size} {'queries' if name == 'batch' else 'keys'}; give the batch "
                "that the model ran on"
            )
    device = call.q.device
    rows, columns = slice(region.row, region.row + region.rows), slice(region.key, region.key + region.keys)
    counted = sample.rows(batch.real.to(device), 1)[:, rows]
    if keys is None:
        nothing = torch.zeros(B, region.keys, dtype=torch.bool, device=device)
        first = torch.full((B,), -1, dtype=torch.int64, device=device)
        return Marks(counted, first, nothing, nothing, None), False
    real = keys.real.to(device)
    first = real.to(torch.int8).argmax(dim=1) - region.key
    first = first.masked_fill(~real.any(dim=1) | (first < 0) | (first >= region.keys), -1)
    special, punctuation = (
        t.to(device)[:, columns] & real[:, columns] for t in (keys.special, keys.punctuation)
    )
    corner = sample.start + sample.step * region.row - region.key if own else None
    return Marks(counted, first, special, punctuation, corner, sample.step), True


class _Tally:
    """Sums by column and head."""

    def __init__(self, columns: tuple[Column, ...], heads: int, device: torch.device) -> None:
        self.index = {column.name: n for n, column in enumerate(columns)}
        self.values = torch.zeros(3, len(columns), heads, dtype=torch.float64, device=device)
        self._waiting: list[tuple[int, Tensor, Tensor]] = []
        self._uniform: list[tuple[int, Tensor, Tensor]] = []

    def add(self, name: str, value: Tensor, counts: Tensor, uniform: Tensor | None = None) -> None:
        """Add values (B, H, T) of those queries, or (B, H) of those texts, that count."""
        counts = counts.expand(value.shape)
        self._waiting.append((self.index[name], value, counts))
        if uniform is not None:
            self._uniform.append((self.index[name], uniform.expand(value.shape), counts))

    def settle(self) -> None:
        """Sum up what was added; all of it has one shape."""
        for row, waiting in enumerate((self._waiting, self._uniform)):
            if not waiting:
                continue
            where = torch.tensor([n for n, _, _ in waiting], device=self.values.device)
            values = torch.stack([_those_that_count(value, counts) for _, value, counts in waiting])
            axes = [axis for axis in range(values.ndim) if axis not in (0, 2)]
            self.values[row, where] += values.sum(dim=axes).double()  # a block is short enough to be exact
            if row == 0:
                counts = torch.stack([counts for _, _, counts in waiting])
                self.values[2, where] += counts.sum(dim=axes, dtype=torch.int32)
            waiting.clear()


def _those_that_count(value: Tensor, counts: Tensor) -> Tensor:
    """Return the values, 0 where they do not count."""
    if value.device.type == "cpu" and bool(counts.all()):
        return value
    return value.masked_fill(~counts, 0.0)


class _Reducer:
    """The statistics of blocks of queries."""

    def __init__(
        self,
        request: Request,
        marks: Marks,
        known: bool,
        key_norms: Tensor | None,
        out_norms: Tensor | None,
    ) -> None:
        self.request = request
        self.marks = marks
        self.known = known
        self.key_norms = key_norms
        self.out_norms = out_norms
        self.first_sums = torch.zeros(3, *request.q.shape[:2], dtype=torch.float64, device=request.q.device)
        """Per text and head, mass on the first real token, that of equal weights, how many queries see it."""
        self.visible_norms: Tensor | None = None
        """(2, B, H, T), the sums of key_norms over the keys seen, and over the special ones among them."""
        if key_norms is not None:
            of_special = key_norms.masked_fill(~marks.special.unsqueeze(1), 0.0)
            self.visible_norms = sums_over_visible(request, torch.stack([key_norms, of_special]))

    def block(self, rows: Rows, seen: Visible, part: slice, tally: _Tally) -> None:
        """Add the statistics of these queries."""
        top, total = rows.top[..., part], rows.total[..., part]
        counts = self.marks.counted[:, None, part] & (top > LOWEST / 2)  # (B, H, t)
        keys = seen.keys[..., part].clamp(min=1.0)
        total_keys = total
        if self.request.sink is not None:
            total = total + (self.request.sink.to(top.dtype)[:, None] - top).exp()

        def weight(score: Tensor) -> Tensor:
            return (score - top).exp() / total  # not exp(score - log sum), which large scores would round

        moment = rows.moment[..., part] / total
        entropy = (total_keys / total) * total.log() - moment
        tally.add("entropy", entropy, counts, keys.log())
        several = counts & (keys >= 2)
        tally.add("normalised_entropy", entropy / keys.clamp(min=2.0).log(), several)
        tally.add("missing", 1.0 - total_keys / total, counts)
        self._near(rows, part, tally, counts, weight, keys)
        self._largest(rows, part, tally, counts, weight, keys)
        if self.known:
            self._classes(rows, seen, part, tally, counts, weight, total)
        if self.marks.corner is not None:
            tally.add("distance", rows.distance[..., part] / total, counts, seen.distance[..., part] / keys)
        if self.out_norms is not None and self.visible_norms is not None:
            tally.add("norm", rows.norm[..., part] / total, counts, self.visible_norms[0, ..., part] / keys)
            norms = self.out_norms[..., part]
            tally.add("output_norm", norms, counts)
            layer = norms.sum(dim=1, keepdim=True)
            writes = counts & (layer > 0)
            tally.add("output_share", norms / layer.clamp(min=torch.finfo(layer.dtype).tiny), writes)

    def _near(
        self, rows: Rows, part: slice, tally: _Tally, counts: Tensor, weight: Weight, keys: Tensor
    ) -> None:
        """Add the masses around the query's own position."""
        if self.marks.corner is None:
            return
        scores = {offset: score[..., part] for offset, score in rows.near.items()}
        for name, offset in (("self", 0), ("previous", -1), ("next", 1)):
            seen = counts & (scores[offset] > -math.inf)
            tally.add(name, weight(scores[offset]), seen, 1.0 / keys)
        masses = torch.stack([weight(score) for score in scores.values()]).sum(dim=0)
        number = torch.stack([score > -math.inf for score in scores.values()]).sum(dim=0)
        tally.add("band", masses, counts & (number > 0), number / keys)
        if self.key_norms is not None:
            lengths, inside = self._at_distance(self.key_norms, 0, part)
            seen = counts & (scores[0] > -math.inf) & inside
            tally.add("self_norm", weight(scores[0]) * lengths, seen, lengths / keys)

    def _largest(
        self, rows: Rows, part: slice, tally: _Tally, counts: Tensor, weight: Weight, keys: Tensor
    ) -> None:
        """Add what the largest weights are and where."""
        tally.add("confidence", weight(rows.top[..., part]), counts, 1.0 / keys)
        content, apart = rows.content[..., part], rows.apart[..., part]
        if self.marks.corner is not None:
            before, after = rows.near[-1][..., part], rows.near[1][..., part]
            rest = torch.maximum(content, apart)
            for name, score, other in (
                ("argmax_previous", before, after),
                ("argmax_next", after, before),
            ):
                seen = counts & (score > -math.inf) & (keys >= 2)
                tally.add(name, (score > torch.maximum(rest, other)).to(score.dtype), seen)
            for offset, score in ((-1, before), (1, after)):
                set_apart, _ = self._at_distance(self.marks.set_apart.unsqueeze(1), offset, part)
                content = torch.maximum(content, score.masked_fill(set_apart, -math.inf))
        if self.known:
            tally.add("content_confidence", weight(content), counts & (content > -math.inf), 1.0 / keys)

    def _classes(
        self,
        rows: Rows,
        seen: Visible,
        part: slice,
        tally: _Tally,
        counts: Tensor,
        weight: Weight,
        total: Tensor,
    ) -> None:
        """Add the masses on the first real token and on classes of tokens."""
        keys = seen.keys[..., part].clamp(min=1.0)
        special, punctuation = seen.special[..., part], seen.punctuation[..., part]
        first = weight(rows.first[..., part])
        sees_first = counts & (rows.first[..., part] > -math.inf)
        tally.add("first", first, sees_first, 1.0 / keys)
        tally.add("special", rows.special[..., part] / total, counts & (special > 0), special / keys)
        tally.add(
            "punctuation", rows.punctuation[..., part] / total, counts & (punctuation > 0), punctuation / keys
        )
        self.first_sums[0] += torch.where(sees_first, first, 0.0).sum(dim=2, dtype=torch.float64)
        self.first_sums[1] += torch.where(sees_first, 1.0 / keys, 0.0).sum(dim=2)
        self.first_sums[2] += sees_first.sum(dim=2)
        if self.key_norms is not None and self.visible_norms is not None:
            where = self.marks.first.clamp(min=0)[:, None, None].expand(-1, self.key_norms.shape[1], 1)
            length = self.key_norms.gather(2, where)
            tally.add("first_norm", first * length, sees_first, length / keys)
            equal = self.visible_norms[1, ..., part] / keys
            tally.add("special_norm", rows.special_norm[..., part] / total, counts & (special > 0), equal)

    def _at_distance(self, t: Tensor, offset: int, part: slice) -> tuple[Tensor, Tensor]:
        """Return (B, …, S) at the keys this far from each query, (B, …, t), and where there is such a key."""
        index = torch.arange(part.start, part.stop, device=t.device)
        index = (self.marks.corner or 0) + offset + self.marks.step * index
        inside = (index >= 0) & (index < t.shape[-1])
        return t[..., index.clamp(0, t.shape[-1] - 1)], inside

    def texts(self, tally: _Tally) -> None:
        """Add the averages per text."""
        number = self.first_sums[2]
        received, equal = self.first_sums[:2] / number.clamp(min=1.0)
        tally.add("first_received", received, number > 0, equal)
        sink, equal_sink = ((share > SINK_SHARE).double() for share in (received, equal))
        tally.add("sink", sink, number > 0, equal_sink)


def _received(received: Tensor, uniform: Tensor, tally: _Tally) -> Tensor:
    """Add what keys receive, (B, H, S) in weights, and return it as shares of each text's attention."""
    queries = uniform.sum(dim=2, keepdim=True)
    counts = queries.squeeze(2) > 0
    shares, equal = (t / queries.clamp(min=1.0) for t in (received, uniform))
    if shares.shape[2]:
        tally.add("received_max", shares.amax(dim=2), counts, equal.amax(dim=2))
        tally.add("received_concentration", shares.square().sum(dim=2), counts, equal.square().sum(dim=2))
    return shares
