"""The arithmetic of blockwise attention: what forward and backward do in each tile.

The heads of a group are folded into the query axis, so that keys and values are never repeated. All numbers
of a tile are float32 or wider.

Letters: B batch, H query heads, G key/value heads, T queries, S keys, K head width of q and k, V that of v,
R = H/G; of a tile: b sequences, h query heads, m = b·h/R key/value heads, t queries, s keys.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from headwise.attention.dropout import PairDropout
from headwise.attention.request import Request
from headwise.attention.scratch import Scratch
from headwise.attention.tiles import Chunk, Patch, Strip, Tile, chunks, cut, strips, tile_sizes


class _Pass:
    """What forward and backward share: the tiles, and the scores of one."""

    def __init__(self, request: Request, dropout: PairDropout | None) -> None:
        self.request = request
        self.dropout = dropout
        self.wide = torch.promote_types(request.q.dtype, torch.float32)
        self.k = request.k.to(self.wide).flatten(0, 1)  # (B·G, S, K), a copy only if strides demand it
        self.v = request.v.to(self.wide).flatten(0, 1)  # (B·G, S, V)
        cap = request.softcap
        self.factor = request.scale if cap is None else request.scale / cap
        self.scratch = Scratch(request.q.device)

    def parts(self) -> Iterator[tuple[Strip, Chunk]]:
        """Return every strip of queries with every chunk of heads."""
        request = self.request
        sizes = tile_sizes(request)
        heads = list(chunks(request, sizes.heads))
        for strip in strips(request, sizes):
            for chunk in heads:
                yield strip, chunk

    def queries(self, strip: Strip, chunk: Chunk) -> Tensor:
        """Return the queries of a strip, scaled, (m, R·t, K)."""
        q = self.request.q[chunk.batch, chunk.heads, strip.queries]
        return self.fold(q.to(self.wide) * self.factor, chunk)

    def fold(self, rows: Tensor, chunk: Chunk) -> Tensor:
        """Turn (b, h, t, W) into (m, R·t, W), wide and contiguous."""
        heads = chunk.merged.stop - chunk.merged.start
        rows = rows.to(self.wide)
        return rows.reshape(heads, rows.shape[0] * rows.shape[1] // heads * rows.shape[2], rows.shape[3])

    def keys(self, chunk: Chunk, tile: Tile, patches: tuple[Patch, ...]) -> tuple[Tensor, Tensor]:
        """Return the keys (m, s, K) and values (m, s, V) of a tile, zeros where no query sees them.

        A NaN there would spread through a product with weight 0.
        """
        k, v = self.k[chunk.merged, tile.keys], self.v[chunk.merged, tile.keys]
        if any(patch.unseen is not None for patch in patches):
            k, v = k.clone(), v.clone()
            groups = chunk.groups.stop - chunk.groups.start
            for patch in patches:
                if patch.unseen is not None:
                    for t in (k, v):
                        t.view(-1, groups, *t.shape[1:])[:, :, patch.keys].masked_fill_(patch.unseen, 0.0)
        return k, v

    def product(self, name: str, rows: Tensor, columns: Tensor) -> Tensor:
        """Return rows (m, R·t, W) times columns (m, s, W)ᵀ, (m, R·t, s), in a buffer of this name."""
        out = self.scratch.take(name, (*rows.shape[:2], columns.shape[1]), self.wide)
        return torch.bmm(rows, columns.mT, out=out)

    def by_head(self, t: Tensor, chunk: Chunk, strip: Strip) -> Tensor:
        """View (m, R·t, W) as (b, h, t, W)."""
        heads = chunk.heads.stop - chunk.heads.start
        return t.view(-1, heads, strip.queries.stop - strip.queries.start, t.shape[2])

    def bias_and_mask(
        self, scores: Tensor, strip: Strip, chunk: Chunk, tile: Tile, patches: tuple[Patch, ...]
    ) -> None:
        """Add the bias to the scores (m, R·t, s) and put -inf where a query may not attend, in place."""
        scores = self.by_head(scores, chunk, strip)  # (b, h, t, s)
        if self.request.bias is not None:
            scores.add_(chunk.pick(cut(self.request.bias, strip.queries, tile.keys)))
        for patch in patches:
            scores[..., patch.keys].masked_fill_(patch.hidden, -torch.inf)

    def dropped(self, weights: Tensor, out: Tensor, strip: Strip, chunk: Chunk, tile: Tile) -> Tensor:
        """Write the weights (m, R·t, s) that dropout keeps into ``out``, unscaled, and return it."""
        if self.dropout is not None:
            part = self.dropout.part(chunk.batch, chunk.heads, strip.queries, tile.keys)
            part.drop(self.by_head(weights, chunk, strip), self.by_head(out, chunk, strip), self.scratch)
        return out


class Forward(_Pass):
    """The output and the logarithm of the softmax's denominator."""

    def attend(self, strip: Strip, chunk: Chunk) -> tuple[Tensor, Tensor]:
        """Return the output (b, h, t, V) of some queries and the log of their denominators (b, h, t, 1)."""
        q = self.queries(strip, chunk)
        top, total = self._start(q, strip, chunk)
        summed = q.new_zeros(*q.shape[:2], self.v.shape[2])
        for tile in strip.tiles:
            patches = tile.for_chunk(chunk)
            if patches is None:
                continue
            k, v = self.keys(chunk, tile, patches)
            weights = self.product("scores", q, k)  # (m, R·t, s)
            if self.request.softcap is not None:
                weights.tanh_().mul_(self.request.softcap)
            self.bias_and_mask(weights, strip, chunk, tile, patches)
            higher = torch.maximum(top, weights.amax(dim=-1, keepdim=True))
            weights.sub_(higher).exp_()
            fade = top.sub_(higher).exp_()
            top = higher
            total.mul_(fade).add_(weights.sum(dim=-1, keepdim=True))
            kept = self.dropped(weights, weights, strip, chunk, tile)
            summed.mul_(fade).baddbmm_(kept, v)
        out = self.by_head(summed.div_(total * (1.0 - self.request.dropout)), chunk, strip)
        log_sum = self.by_head(top + total.log(), chunk, strip)
        if strip.alive is None:
            return out, log_sum
        blind = ~chunk.pick(strip.alive)
        return out.masked_fill_(blind, 0.0), log_sum.masked_fill_(blind, torch.inf)

    def _start(self, q: Tensor, strip: Strip, chunk: Chunk) -> tuple[Tensor, Tensor]:
        """Return the maximum and the sum before any key, (m, R·t, 1): those of the sink, if there is one."""
        lowest = torch.finfo(self.wide).min  # not -inf, of which no difference can be taken
        if self.request.sink is None:
            return q.new_full((*q.shape[:2], 1), lowest), q.new_zeros(*q.shape[:2], 1)
        queries = strip.queries.stop - strip.queries.start
        batch = chunk.batch.stop - chunk.batch.start
        sink = self.request.sink[chunk.heads].to(self.wide)[None, :, None, None]
        sink = self.fold(sink.expand(batch, -1, queries, 1), chunk)
        top = sink.clamp(min=lowest)
        return top, (sink - top).exp_()


class Backward(_Pass):
    """The gradients of q, k, v, bias and sink, gathered strip by strip."""

    def __init__(self, request: Request, dropout: PairDropout | None, wanted: tuple[bool, ...]) -> None:
        super().__init__(request, dropout)
        self.wanted = wanted
        q, bias, sink = request.q, request.bias, request.sink
        self.dq = torch.zeros_like(q, memory_format=torch.contiguous_format) if wanted[0] else None
        self.dk = torch.zeros_like(self.k) if wanted[1] else None
        self.dv = torch.zeros_like(self.v) if wanted[2] else None
        self.dbias = torch.zeros_like(bias, dtype=self.wide) if bias is not None and wanted[3] else None
        self.dsink = torch.zeros_like(sink, dtype=self.wide) if sink is not None and wanted[4] else None

    def add(self, strip: Strip, chunk: Chunk, grad: Tensor, out: Tensor, log_sum: Tensor) -> None:
        """Add what comes back through some queries: grad and out (b, h, t, V), log_sum (b, h, t, 1)."""
        q, grad, out = self.queries(strip, chunk), self.fold(grad, chunk), self.fold(out, chunk)
        log_sum = self.fold(log_sum, chunk)
        if strip.alive is not None:
            blind = log_sum == torch.inf
            q, grad = q.masked_fill(blind, 0.0), grad.masked_fill(blind, 0.0)
        delta = (grad * out).sum(dim=-1, keepdim=True)  # (m, R·t, 1), Σ over keys of weight · its gradient
        if self.dsink is not None and self.request.sink is not None:
            sink = self.request.sink[chunk.heads].to(self.wide)[:, None, None]
            part = (sink - self.by_head(log_sum, chunk, strip)).exp_() * self.by_head(delta, chunk, strip)
            self.dsink[chunk.heads] -= part.sum(dim=(0, 2, 3))
        grad = grad / (1.0 - self.request.dropout)
        dq = torch.zeros_like(q)
        for tile in strip.tiles:
            patches = tile.for_chunk(chunk)
            if patches is not None:
                self._add_tile(strip, chunk, tile, patches, q, grad, log_sum, delta, dq)
        if self.dq is not None:
            part = self.by_head(dq.mul_(self.request.scale), chunk, strip)
            self.dq[chunk.batch, chunk.heads, strip.queries] = part.to(self.dq.dtype)

    def _add_tile(
        self,
        strip: Strip,
        chunk: Chunk,
        tile: Tile,
        patches: tuple[Patch, ...],
        q: Tensor,
        grad: Tensor,
        log_sum: Tensor,
        delta: Tensor,
        dq: Tensor,
    ) -> None:
        k, v = self.keys(chunk, tile, patches)
        capped, weights = self._weights(strip, chunk, tile, patches, q, k, log_sum)
        dweights = self.product("dweights", grad, v)  # (m, R·t, s)
        if self.dropout is None:
            kept = weights
            dscores = dweights.sub_(delta).mul_(weights)
            if self.dv is not None:
                self.dv[chunk.merged, tile.keys].baddbmm_(kept.mT, grad)
        else:
            buffer = self.scratch.take("kept", weights.shape, self.wide)
            kept = self.dropped(weights, buffer, strip, chunk, tile)
            if self.dv is not None:
                self.dv[chunk.merged, tile.keys].baddbmm_(kept.mT, grad)
            dscores = dweights.mul_(kept).addcmul_(weights, delta, value=-1.0)
        if self.dbias is not None:
            part = cut(self.dbias, strip.queries, tile.keys)
            part = chunk.pick(part)
            part += self.by_head(dscores, chunk, strip).sum_to_size(part.shape)
        if capped is not None:  # d tanh(x) = 1 - tanh(x)²; the cap itself is in the scale of dq and dk
            dscores.addcmul_(dscores, capped.square_(), value=-1.0)
        dq.baddbmm_(dscores, k)
        if self.dk is not None:
            self.dk[chunk.merged, tile.keys].baddbmm_(dscores.mT, q)

    def _weights(
        self,
        strip: Strip,
        chunk: Chunk,
        tile: Tile,
        patches: tuple[Patch, ...],
        q: Tensor,
        k: Tensor,
        log_sum: Tensor,
    ) -> tuple[Tensor | None, Tensor]:
        """Return tanh of the scores if they are capped, and the weights before dropout, (m, R·t, s)."""
        scores = self.product("scores", q, k)
        capped = None
        if self.request.softcap is not None:
            capped = scores.tanh_()
            scores = self.scratch.take("weights", capped.shape, self.wide)
            torch.mul(capped, self.request.softcap, out=scores)
        self.bias_and_mask(scores, strip, chunk, tile, patches)
        return capped, scores.sub_(log_sum).exp_()

    def gradients(self) -> tuple[Tensor | None, ...]:
        """Return the gradients of q, k, v, bias and sink in their shapes and dtypes, None where unwanted."""
        given = self.request
        if self.dk is not None and given.softcap is not None:
            self.dk *= given.softcap
        return (
            self.dq,
            None if self.dk is None else self.dk.view(given.k.shape).to(given.k.dtype),
            None if self.dv is None else self.dv.view(given.v.shape).to(given.v.dtype),
            None if self.dbias is None or given.bias is None else self.dbias.to(given.bias.dtype),
            None if self.dsink is None or given.sink is None else self.dsink.to(given.sink.dtype),
        )
