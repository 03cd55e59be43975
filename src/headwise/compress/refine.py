"""Shared keys made better by what they are for: what the heads read with them.

The closed form takes every plane of a head for itself, and an error in a score for equally bad everywhere.
Here the shared keys, as any mixture of the members' keys, and the queries of each head, as any mixture of
what they were, are fitted so that every head reads what it did: the squared error of what the heads add to
the output, each for itself, is made smaller by L-BFGS (Liu and Nocedal 1989), from where the closed form is.
Mixtures of what was there have few numbers, so that a short text is enough. Where heads can be merged without
loss, the closed form is the end already, and nothing changes.

Letters: H query heads, G shared keys, M members of each, K width of keys, V of values, D of the input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.func import functional_call

from headwise.compress.layer_by_layer import AttentionRun, run_again
from headwise.compress.merge import Merge
from headwise.compress.moments import Moments, with_one
from headwise.compress.values import ROUNDING
from headwise.hub.surgery import LayerHandle, LayerWeights, write_weights

STEPS = 25
TOKENS = 8192
"""The most tokens that are looked at."""
FLOOR = 1e-3
"""What is added to the moments of every direction of keys and queries, as a share of the mean."""


def refined_keys(
    handle: LayerHandle, before: LayerWeights, merges: list[Merge], runs: Sequence[AttentionRun]
) -> LayerWeights:
    """Return the layer with its keys merged, from `before` and the merges to start from.

    All groups have the same number of members. The values stay as they are.
    The layer is left with the weights `before`; write the result to it.
    """
    write_weights(handle, before)
    reading = _Reading(handle, before, runs)
    members = before.k.reshape(len(merges), -1, before.k.shape[2])  # (G, M·K, D + 1)
    into = torch.stack([merge.into.transpose(0, 1).flatten(1) for merge in merges])  # (G, K, M·K)
    back = torch.cat([merge.back for merge in merges])  # (G·M, K, K)
    turned = back.mT.repeat_interleave(before.group_size, dim=0)  # (H, K, K)
    if reading.lost(into @ members, turned @ before.q) > ROUNDING:
        into, turned = _fitted(into, turned, members, before.q, reading)
    return replace(before, k=into @ members, q=turned @ before.q)


class _Reading:
    """What the heads of a layer read on a text, and how far other keys and queries lead them from it."""

    def __init__(self, handle: LayerHandle, before: LayerWeights, runs: Sequence[AttentionRun]) -> None:
        self.handle = handle
        self.fixed = {name: weight.detach() for name, weight in handle.module.named_parameters()}
        self.runs = _first_tokens(runs)
        self.wanted = [run_again(handle, run).joined for run in self.runs]
        inputs = Moments()
        for run in self.runs:
            inputs.update(with_one(run.x))
        self.inputs = inputs.mean
        # |o · error|² = |error · factor|²
        costs = torch.einsum("hov,how->hvw", before.o, before.o)
        self.factors = _roots(costs, 1e-9)[0].to(self.wanted[0])
        self.energy = sum(float(self._weighed(wanted).sum()) for wanted in self.wanted)

    def lost(self, k: Tensor, q: Tensor) -> float:
        """Return the squared error as a share of what there is, with keys (G, K, D + 1) and queries
        (H, K, D + 1). If these require gradients, the error's are added up in what they were made from."""
        wanted = k.requires_grad
        total = 0.0
        # the batches one after the other, then one way back from the weights
        leaves = [rows.detach().to(self.factors).requires_grad_(wanted) for rows in (k, q)]
        for run, before in zip(self.runs, self.wanted, strict=True):
            with torch.set_grad_enabled(wanted):
                error = self._weighed(self._joined(run, *leaves) - before).sum() / max(self.energy, 1e-30)
            if wanted:
                torch.autograd.backward(error)
            total += error.item()
        if wanted:
            torch.autograd.backward((k, q), [leaf.grad.to(k) for leaf in leaves if leaf.grad is not None])
        return total

    def _joined(self, run: AttentionRun, k: Tensor, q: Tensor) -> Tensor:
        """Return what the heads read, side by side, (B, T, H · V)."""
        weights = dict(self.fixed)
        per_key = self.handle.n_kv_head // len(k)
        for part, rows in (("q_proj", q), ("k_proj", k.repeat_interleave(per_key, dim=0))):
            flat = rows.flatten(0, 1)  # (heads · K, D + 1)
            weights[f"{part}.weight"] = flat[:, :-1]
            if f"{part}.bias" in weights:
                weights[f"{part}.bias"] = flat[:, -1]
        seen: list[Tensor] = []
        hook = self.handle.o_proj.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        try:
            args, kwargs = run.call
            functional_call(self.handle.module, weights, args, dict(kwargs))
        finally:
            hook.remove()
        return seen[0]

    def _weighed(self, joined: Tensor) -> Tensor:
        """Return what each head adds to the squared norm of the output, alone, (B, T, H)."""
        heads = joined.reshape(*joined.shape[:2], len(self.factors), -1)  # (B, T, H, V)
        return torch.einsum("bthv,hvw->bthw", heads, self.factors).float().square().sum(dim=3)


def _first_tokens(runs: Sequence[AttentionRun]) -> list[AttentionRun]:
    found, seen = [], 0
    for run in runs:
        if seen >= TOKENS:
            break
        found.append(run)
        seen += run.x.shape[0] * run.x.shape[1]
    return found


def _fitted(
    into: Tensor, turned: Tensor, members: Tensor, q: Tensor, reading: _Reading
) -> tuple[Tensor, Tensor]:
    """Return the mixtures of keys (G, K, M·K) and of queries (H, K, K) that fit best."""
    per_group = len(turned) // len(into)
    key_root, key_back = _roots(members @ reading.inputs @ members.mT, FLOOR)
    query_root, query_back = _roots(q @ reading.inputs @ q.mT, FLOOR)
    # the energy of a mixture's dimension is how fast the scores change with the other side's
    key_energy = (into @ key_root).square().sum(dim=2, keepdim=True)  # (G, K, 1)
    query_energy = (turned @ query_root).square().sum(dim=2, keepdim=True)  # (H, K, 1)
    query_energy = query_energy.reshape(len(into), per_group, -1, 1).mean(dim=1).sqrt() + 1e-12
    key_energy = (key_energy.sqrt() + 1e-12).repeat_interleave(per_group, dim=0)
    change_k, change_q = torch.zeros_like(into), torch.zeros_like(turned)
    change_k.requires_grad_()
    change_q.requires_grad_()

    def mixtures() -> tuple[Tensor, Tensor]:
        return (
            into + change_k / query_energy @ key_back,
            turned + change_q / key_energy @ query_back,
        )

    def lost() -> float:
        optimizer.zero_grad()
        keys, queries = mixtures()
        return reading.lost(keys @ members, queries @ q)

    optimizer = torch.optim.LBFGS(
        [change_k, change_q], max_iter=STEPS, history_size=STEPS, line_search_fn="strong_wolfe"
    )
    with torch.enable_grad():
        optimizer.step(lost)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        return mixtures()


def _roots(moments: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    """Return the square roots of symmetric matrices (heads, N, N), made firm, and their inverses."""
    level = moments.diagonal(dim1=1, dim2=2).mean(dim=1)
    one = torch.eye(moments.shape[-1], dtype=moments.dtype)
    firm = moments + torch.where(level > 0, floor * level, 1.0)[:, None, None] * one
    values, vectors = torch.linalg.eigh(firm)
    roots = values.clamp(min=1e-20).sqrt().unsqueeze(1)
    return (vectors * roots) @ vectors.mT, (vectors / roots) @ vectors.mT
