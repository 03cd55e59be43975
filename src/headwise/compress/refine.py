"""Shared keys made better by what they are for: the attention that comes out.

The closed form takes every plane of a head for itself, and an error in a score for equally bad everywhere.
Here the shared keys, as any mixture of the members' keys, and the queries of each head, as any mixture of
what they were, are fitted so that every head attends as it did: the divergence of its weights from those it
had is made smaller by L-BFGS (Liu and Nocedal 1989), from where the closed form is. Where heads can be merged
without loss, that is the end already, and nothing changes.

Letters: H query heads, G shared keys, M members of each, K width, T queries, S keys, P planes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor

from headwise.attention import MultiHeadAttention
from headwise.compress.layer_by_layer import AttentionRun
from headwise.compress.merge import Merge
from headwise.compress.moments import with_one
from headwise.hub.surgery import LayerHandle, LayerWeights

STEPS = 12
TOKENS = 4096
"""The most tokens that are looked at."""
STRIDE = 4
"""Every fourth query is looked at, with all its keys: more texts teach more than more queries of one."""
NOTHING = 1e-7
"""A divergence so small, in nats, is rounding."""
FLOOR = 1e-4
"""What is added to the moments of every direction of keys and queries, as a share of the mean."""


@dataclass(eq=False)
class _Text:
    """One row of text, as the heads saw it before."""

    q: Tensor
    """(H, T, K), not turned."""
    k: Tensor
    """(G, S, M · K), the members' keys side by side, not turned."""
    turn: Tensor | None
    """The turn of each position, complex (S, P)."""
    weights: Tensor
    """(H, T, S), the attention."""
    hidden: Tensor
    """(T, S), True where a query cannot look."""

    @cached_property
    def known(self) -> Tensor:
        """Σ_t Σ_s weight · log weight of each head, (H,)."""
        return torch.xlogy(self.weights, self.weights).sum(dim=(1, 2))


def refined_keys(
    handle: LayerHandle, before: LayerWeights, merges: list[Merge], runs: Sequence[AttentionRun]
) -> LayerWeights:
    """Return the layer with its keys merged, from `before` and the merges to start from.

    All groups have the same number of members. The values stay as they are.
    """
    into = torch.stack([merge.into.transpose(0, 1).flatten(1) for merge in merges])  # (G, K, M·K)
    back = torch.cat([merge.back for merge in merges])  # (G·M, K, K)
    turned = back.mT.repeat_interleave(before.group_size, dim=0)  # (H, K, K)
    texts = _texts(handle, before, len(merges), runs)
    fitted = _fitted(handle, into, turned, texts, _costs(before, runs))
    into, turned = fitted
    members = before.k.reshape(len(merges), -1, before.k.shape[2])  # (G, M·K, D + 1)
    return replace(before, k=into @ members, q=turned @ before.q)


def _texts(
    handle: LayerHandle, weights: LayerWeights, groups: int, runs: Sequence[AttentionRun]
) -> list[_Text]:
    texts: list[_Text] = []
    scale = float(getattr(handle.module, "scaling", handle.d_head**-0.5))
    q_rows, k_rows = weights.q.float(), weights.k.float()
    seen = 0
    for run in runs:
        turns = _turns(handle, run)
        for row, x in enumerate(with_one(run.x.cpu().float())):
            if seen >= TOKENS:
                return texts
            seen += len(x)
            turn = None if turns is None else turns[row if len(turns) > 1 else 0]
            q = scale * (x @ q_rows.mT)  # (H, S, K)
            k = x @ k_rows.mT  # (G·M, S, K)
            q = q[:, ::STRIDE]
            keys = _turned(k, turn, handle).repeat_interleave(weights.group_size, dim=0)
            hidden = _hidden(len(x), getattr(handle.module, "sliding_window", None))
            scores = _turned(q, _thinned(turn), handle) @ keys.mT
            scores = scores.masked_fill_(hidden, -torch.inf)
            side_by_side = k.reshape(groups, -1, *k.shape[1:]).transpose(1, 2).flatten(2)
            texts.append(_Text(q, side_by_side, turn, scores.softmax(dim=-1), hidden))
    return texts


def _hidden(length: int, window: int | None) -> Tensor:
    """Return where the queries that are looked at see nothing, (T, S)."""
    everywhere = torch.ones(length, length, dtype=torch.bool)
    hidden = everywhere.triu(1)
    return (hidden if window is None else hidden | everywhere.tril(-window))[::STRIDE]


def _turns(handle: LayerHandle, run: AttentionRun) -> Tensor | None:
    """Return the turns of positions as complex numbers, (1 or B, S, P)."""
    if handle.rotary is None:
        return None
    if isinstance(handle.module, MultiHeadAttention):
        rotary = cast(Any, handle.module.rotary)
        cos, sin = rotary.tables(torch.arange(run.x.shape[1]))
        return torch.complex(cos, sin).unsqueeze(0)
    cos, sin = (table.cpu().float() for table in run.call[1]["position_embeddings"])  # (B, S, K)
    planes = slice(None, None, 2) if handle.rotary == "interleaved" else slice(cos.shape[-1] // 2)
    return torch.complex(cos[..., planes], sin[..., planes])


def _turned(x: Tensor, turn: Tensor | None, handle: LayerHandle) -> Tensor:
    """Turn x (…, S, K) by its positions; the elements come out in another order, one for queries and keys."""
    if turn is None:
        return x
    width = handle.rotary_width
    z = x[..., :width]
    first, second = (z[..., 0::2], z[..., 1::2]) if handle.rotary == "interleaved" else z.chunk(2, dim=-1)
    cos, sin = turn.real, turn.imag
    return torch.cat((first * cos - second * sin, second * cos + first * sin, x[..., width:]), dim=-1)


def _costs(weights: LayerWeights, runs: Sequence[AttentionRun]) -> Tensor:
    """Return what it costs when a head looks elsewhere, (H,): the spread of what its values add."""
    x = with_one(torch.cat([run.x.flatten(0, 1) for run in runs]).cpu().double())
    moments = x.T @ x / len(x)
    spread = moments - torch.outer(moments[:, -1], moments[:, -1])
    values = (weights.v @ spread @ weights.v.mT).repeat_interleave(weights.group_size, dim=0)  # (H, V, V)
    return torch.einsum("hov,hvw,how->h", weights.o, values, weights.o).float()


class _Divergence(torch.autograd.Function):
    """Σ_h cost_h Σ_t KL(weights before ‖ weights now), with its gradient, in one pass over the scores."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, text: _Text, costs: Tensor) -> Tensor:
        scores = (q @ k.mT).masked_fill_(text.hidden, -torch.inf)
        log_weights = scores.sub_(scores.logsumexp(dim=-1, keepdim=True))
        crossed = text.weights * log_weights.masked_fill(text.hidden, 0.0)
        loss = (costs * (text.known - crossed.sum(dim=(1, 2)))).sum()
        change = log_weights.exp_().sub_(text.weights) * costs[:, None, None]
        ctx.save_for_backward(change @ k, change.mT @ q)
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        by_q, by_k = ctx.saved_tensors
        return grads[0] * by_q, grads[0] * by_k, None, None


def _thinned(turn: Tensor | None) -> Tensor | None:
    return None if turn is None else turn[::STRIDE]


def _fitted(
    handle: LayerHandle, into: Tensor, turned: Tensor, texts: list[_Text], costs: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the mixtures of keys (G, K, M·K) and of queries (H, K, K) that fit best."""
    shared = costs / costs.sum() if costs.sum() > 0 else torch.full_like(costs, 1 / len(costs))
    per_group = len(turned) // len(into)
    key_root = _root(torch.cat([text.k for text in texts], dim=1))
    query_root = _root(torch.cat([text.q for text in texts], dim=1))
    a, b = into.float() @ key_root, turned.float() @ query_root  # (G, K, M·K), (H, K, K)
    # the energy of a mixture's dimension is how fast the scores change with the other side's
    key_energy = a.square().sum(dim=2, keepdim=True).sqrt() + 1e-12
    query_energy = b.square().sum(dim=2, keepdim=True).reshape(len(into), per_group, -1, 1)
    query_energy = query_energy.mean(dim=1).sqrt() + 1e-12
    key_energy_h = key_energy.repeat_interleave(per_group, dim=0)
    u = (a * query_energy).requires_grad_()
    w = (b * key_energy_h).requires_grad_()
    key_back, query_back = torch.linalg.inv(key_root), torch.linalg.inv(query_root)

    def mixtures() -> tuple[Tensor, Tensor]:
        return u / query_energy @ key_back, w / key_energy_h @ query_back

    diverge: Callable[..., Tensor] = _Divergence.apply

    def divergence() -> float:
        optimizer.zero_grad()
        keys, queries = mixtures()
        total = torch.zeros(())
        for text in texts:
            k = _turned(text.k @ keys.mT, text.turn, handle).repeat_interleave(per_group, dim=0)  # (H, S, K)
            q = _turned(text.q @ queries.mT, _thinned(text.turn), handle)
            total = total + diverge(q, k, text, shared / (len(texts) * q.shape[1]))
        total.backward()  # type: ignore[no-untyped-call]
        return total.item()

    optimizer = torch.optim.LBFGS([u, w], max_iter=STEPS, history_size=STEPS, line_search_fn="strong_wolfe")
    with torch.enable_grad():
        if divergence() > NOTHING:
            optimizer.step(divergence)  # type: ignore[no-untyped-call]
            keys, queries = mixtures()
            return keys.detach().double(), queries.detach().double()
    return into, turned


def _root(x: Tensor) -> Tensor:
    """Return the square root of E[x xᵀ] of x (heads, T, N) for each head, (heads, N, N)."""
    moments = x.mT @ x / x.shape[1]
    level = moments.diagonal(dim1=1, dim2=2).mean(dim=1)
    one = torch.eye(moments.shape[-1])
    firm = moments + torch.where(level > 0, FLOOR * level, 1.0)[:, None, None] * one
    values, vectors = torch.linalg.eigh(firm)
    root: Tensor = (vectors * values.clamp(min=1e-20).sqrt().unsqueeze(1)) @ vectors.mT
    return root
