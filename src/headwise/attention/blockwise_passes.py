"""The arithmetic of blockwise attention: what forward and backward do in each tile.

The heads of a group are folded into the query axis, so that keys and values are never repeated. All numbers
of a tile are float32 or wider.

Letters: B batch, H query heads, G key/value heads, T queries, S keys, K head width of q and k, V that of v,
R = H/G; of a tile: b sequences, h query heads, m = b · h/R key/value heads, t queries, s keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.attention.dropout import PairDropout
from headwise.attention.request import Request
from headwise.attention.scratch import Scratch
from headwise.attention.tile_plan import Plan
from headwise.attention.tiles import Part, Tile, chunks, length, tile_sizes


class _Pass:
    """What forward and backward share: the scores of a tile."""

    def __init__(self, request: Request, dropout: PairDropout | None) -> None:
        self.request = request
        self.dropout = dropout
        self.wide = torch.promote_types(request.q.dtype, torch.float32)
        self.k = request.k.to(self.wide).flatten(0, 1)  # (B·G, S, K), a copy only if strides demand it
        self.v = request.v.to(self.wide).flatten(0, 1)  # (B·G, S, V)
        self.scratch = Scratch(request.q.device)

    def parts(self) -> Iterator[Part]:
        """Return every strip of queries with every chunk of heads."""
        sizes = tile_sizes(self.request)
        heads = list(chunks(self.request, sizes.heads))
        for strip in Plan(self.request, sizes).strips():
            for chunk in heads:
                yield Part(strip, chunk)

    def queries(self, part: Part) -> Tensor:
        """Return the queries (m, R·t, K), scaled as the scores are to be before a softcap."""
        cap = self.request.softcap
        q = self.request.q[part.where].to(self.wide)
        q = q * (self.request.scale if cap is None else self.request.scale / cap)
        blind = part.blind()
        # a NaN in a blind query could survive the hiding of its scores, and would reach the gradient of keys
        return part.fold(q if blind is None else q.masked_fill_(blind, 0.0))

    def keys(self, part: Part, tile: Tile) -> tuple[Tensor, Tensor]:
        """Return the keys (m, s, K) and values (m, s, V) of a tile, zeros where no query sees them.

        A NaN there would spread through a product with weight 0.
        """
        k, v = self.k[part.chunk.merged, tile.keys], self.v[part.chunk.merged, tile.keys]
        if any(patch.unseen is not None for patch in tile.patches):
            k, v = k.clone(), v.clone()
            for patch in tile.patches:
                if patch.unseen is not None:
                    for t in (k, v):
                        by_group = t.view(-1, length(part.chunk.groups), *t.shape[1:])  # (b, h/R, s, W)
                        by_group[:, :, tile.within(patch)].masked_fill_(patch.unseen, 0.0)
        return k, v

    def product(self, name: str, rows: Tensor, columns: Tensor) -> Tensor:
        """Return rows (m, R·t, W) times columns (m, s, W)ᵀ, (m, R·t, s), in a buffer of this name."""
        out = self.scratch.take(name, (*rows.shape[:2], columns.shape[1]), self.wide)
        return torch.bmm(rows, columns.mT, out=out)

    def finish(self, scores: Tensor, part: Part, tile: Tile) -> None:
        """Add the bias to the scores (m, R·t, s) and put -inf where a query may not attend, in place."""
        scores = part.by_head(scores)  # (b, h, t, s)
        if self.request.bias is not None:
            scores.add_(part.pick(self.request.bias, tile))
        for patch in tile.patches:
            patch.hide(scores[..., tile.within(patch)])

    def drop(self, weights: Tensor, out: Tensor, part: Part, tile: Tile) -> Tensor:
        """Write the weights (m, R·t, s) that dropout keeps into ``out``, unscaled, and return it."""
        if self.dropout is not None:
            pairs = self.dropout.part(*part.where, tile.keys)
            pairs.drop(part.by_head(weights), part.by_head(out), self.scratch)
        return out


class Forward(_Pass):
    """The output and the logarithm of the softmax's denominator."""

    def attend(self, part: Part) -> tuple[Tensor, Tensor]:
        """Return the output (b, h, t, V) and the log of the denominators (b, h, t, 1), +inf of blind queries.

        exp(score - inf) then makes weights of 0 of them in backward.
        """
        q = self.queries(part)
        top, total = self._start(part, q)
        summed = q.new_zeros(*q.shape[:2], self.v.shape[2])
        for tile in part.tiles():
            k, v = self.keys(part, tile)
            weights = self.product("scores", q, k)  # (m, R·t, s)
            if self.request.softcap is not None:
                weights.tanh_().mul_(self.request.softcap)
            self.finish(weights, part, tile)
            higher = torch.maximum(top, weights.amax(dim=-1, keepdim=True))
            weights.sub_(higher).exp_()
            fade = top.sub_(higher).exp_()
            top = higher
            total.mul_(fade).add_(weights.sum(dim=-1, keepdim=True))
            summed.mul_(fade).baddbmm_(self.drop(weights, weights, part, tile), v)
        out = part.by_head(summed.div_(total * (1.0 - self.request.dropout)))
        log_sum = part.by_head(top + total.log())
        blind = part.blind()
        if blind is not None:
            out.masked_fill_(blind, 0.0)
            log_sum.masked_fill_(blind, torch.inf)
        return out, log_sum

    def _start(self, part: Part, q: Tensor) -> tuple[Tensor, Tensor]:
        """Return the maximum and the sum before any key, (m, R·t, 1): those of the sink, if there is one."""
        lowest = torch.finfo(self.wide).min  # not -inf, of which no difference can be taken
        if self.request.sink is None:
            return q.new_full((*q.shape[:2], 1), lowest), q.new_zeros(*q.shape[:2], 1)
        sink = self.request.sink[part.chunk.heads].to(self.wide)[None, :, None, None]
        sink = sink.expand(length(part.chunk.batch), -1, length(part.strip.queries), 1)
        sink = part.fold(sink)
        top = sink.clamp(min=lowest)
        return top, (sink - top).exp_()


@dataclass(frozen=True, eq=False)
class _Rows:
    """What the queries of a part bring into the backward pass of each tile."""

    q: Tensor
    """(m, R·t, K)"""
    grad: Tensor
    """(m, R·t, V), the gradient of the output, scaled up for what dropout takes away."""
    log_sum: Tensor
    """(m, R·t, 1)"""
    delta: Tensor
    """(m, R·t, 1), the sum over keys of each weight times its gradient."""
    dq: Tensor
    """(m, R·t, K), to be added to."""


class Backward(_Pass):
    """The gradients of q, k, v, bias and sink, gathered part by part."""

    def __init__(self, request: Request, dropout: PairDropout | None, wanted: tuple[bool, ...]) -> None:
        super().__init__(request, dropout)
        q, bias, sink = request.q, request.bias, request.sink
        self.dq = torch.zeros_like(q, memory_format=torch.contiguous_format) if wanted[0] else None
        self.dk = torch.zeros_like(self.k) if wanted[1] else None
        self.dv = torch.zeros_like(self.v) if wanted[2] else None
        self.dbias = torch.zeros_like(bias, dtype=self.wide) if bias is not None and wanted[3] else None
        self.dsink = torch.zeros_like(sink, dtype=self.wide) if sink is not None and wanted[4] else None

    def add(self, part: Part, grad: Tensor, out: Tensor, log_sum: Tensor) -> None:
        """Add what comes back through a part: grad and out (b, h, t, V), log_sum (b, h, t, 1)."""
        grad, blind = grad.to(self.wide), part.blind()
        if blind is not None:
            grad = grad.masked_fill(blind, 0.0)
        delta = (grad * out).sum(dim=-1, keepdim=True)
        if self.dsink is not None and self.request.sink is not None:
            sink = self.request.sink[part.chunk.heads].to(self.wide)[:, None, None]
            self.dsink[part.chunk.heads] -= ((sink - log_sum).exp_() * delta).sum(dim=(0, 2, 3))
        q = self.queries(part)
        grad = part.fold(grad / (1.0 - self.request.dropout))
        rows = _Rows(q, grad, part.fold(log_sum), part.fold(delta), torch.zeros_like(q))
        for tile in part.tiles():
            self._add_tile(part, tile, rows)
        if self.dq is not None:
            self.dq[part.where] = part.by_head(rows.dq.mul_(self.request.scale)).to(self.dq.dtype)

    def _add_tile(self, part: Part, tile: Tile, rows: _Rows) -> None:
        k, v = self.keys(part, tile)
        tanh, weights = self._weights(part, tile, rows, k)
        dweights = self.product("dweights", rows.grad, v)  # (m, R·t, s)
        kept = weights
        if self.dropout is not None:
            kept = self.scratch.take("kept", weights.shape, self.wide)
            self.drop(weights, kept, part, tile)
        if self.dv is not None:
            self.dv[part.chunk.merged, tile.keys].baddbmm_(kept.mT, rows.grad)
        if self.dropout is None:
            dscores = dweights.sub_(rows.delta).mul_(weights)
        else:
            dscores = dweights.mul_(kept).addcmul_(weights, rows.delta, value=-1.0)
        if self.dbias is not None:
            dbias = part.pick(self.dbias, tile)
            dbias += part.by_head(dscores).sum_to_size(dbias.shape)
        if tanh is not None:  # d tanh(x) = 1 - tanh(x)²; the cap itself is in the scale of dq and dk
            dscores.addcmul_(dscores, tanh.square_(), value=-1.0)
        rows.dq.baddbmm_(dscores, k)
        if self.dk is not None:
            self.dk[part.chunk.merged, tile.keys].baddbmm_(dscores.mT, rows.q)

    def _weights(self, part: Part, tile: Tile, rows: _Rows, k: Tensor) -> tuple[Tensor | None, Tensor]:
        """Return tanh of the scores if they are capped, and the weights before dropout, (m, R·t, s)."""
        scores, tanh = self.product("scores", rows.q, k), None
        if self.request.softcap is not None:
            tanh = scores.tanh_()
            scores = torch.mul(
                tanh, self.request.softcap, out=self.scratch.take("weights", tanh.shape, self.wide)
            )
        self.finish(scores, part, tile)
        return tanh, scores.sub_(rows.log_sum).exp_()

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
