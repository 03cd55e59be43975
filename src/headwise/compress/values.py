"""Values in closed form, from what the heads read: the values after attention, as each query head sees them.

Letters: H query heads, M members of a group, V width of a value, O width of the output.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from headwise.compress.layer_by_layer import AttentionRun, run_again
from headwise.compress.moments import SHRINK, Moments, centred, with_one
from headwise.compress.subspace import shared_subspace
from headwise.hub.surgery import LayerHandle, LayerWeights, write_weights

SWEEPS = 8
RIDGE = 1e-2
"""How firmly the refitted output projection is held to the one it starts from."""

ROUNDING = 1e-9
"""An error so small, as a share of the energy of the output, is that of float32: there is nothing to fit."""


def shared_values(
    handle: LayerHandle, weights: LayerWeights, size: int, runs: list[AttentionRun]
) -> LayerWeights:
    """Return the layer with every `size` neighbouring values made one.

    weights: with keys merged already, but all the values. runs: the attention of the layer as it was.
    The layer is left in an intermediate state; write the result to it.
    """
    reading = _moments_as_read(handle, weights, size, runs)  # per query head
    if weights.o_bias is not None:
        reading = [centred(moments) for moments in reading]
    per_group = weights.n_head // (len(weights.v) // size)
    values, outputs = [], []
    for group in range(len(weights.v) // size):
        members = weights.v[group * size : (group + 1) * size]
        heads = slice(group * per_group, (group + 1) * per_group)
        into, out = _shared(weights.o[heads], [_firm(b[:-1, :-1], members) for b in reading[heads]], size)
        values.append(torch.einsum("wmu,mun->wn", into.reshape(len(into), size, -1), members))
        outputs.append(out)
    made = replace(weights, v=torch.stack(values), o=torch.cat(outputs))
    return _refitted(handle, made, runs)


def _moments_as_read(
    handle: LayerHandle, weights: LayerWeights, size: int, runs: list[AttentionRun]
) -> list[Tensor]:
    """Return E[b bᵀ] for each query head, (M·V + 1, M·V + 1).

    b: what the head reads of the values of all members of its group, with a 1 behind it. The attention runs
    once for each place in a group, with the values of the members at that place.
    """
    moments = [Moments() for _ in range(weights.n_head)]
    for run in runs:
        places = []
        for place in range(size):
            write_weights(handle, replace(weights, v=weights.v[place::size]))
            joined = run_again(handle, run).joined
            places.append(joined.reshape(*joined.shape[:2], weights.n_head, -1))
        read = torch.cat(places, dim=-1)  # (B, T, H, M·V)
        for head, seen in enumerate(moments):
            seen.update(with_one(read[:, :, head]))
    return [seen.mean for seen in moments]


def _shared(o: Tensor, reading: list[Tensor], size: int) -> tuple[Tensor, Tensor]:
    """Return what makes the shared value of the members', (V, M·V), and the output of each head, (H, O, V).

    Starts from the closed form for moments that all heads share, then solves for the outputs and for the
    shared value in turn, with the moments of each head: the cost falls with every step.
    """
    width = o.shape[2]
    per_member = len(o) // size
    costs = torch.einsum("hov,how->hvw", o, o)  # (H, V, V)
    grams = torch.stack(reading)  # (H, M·V, M·V)
    gram = grams.mean(dim=0).reshape(size, width, size, width)
    merge = shared_subspace(gram, costs.reshape(size, per_member, width, width).sum(dim=1))
    into = merge.into.permute(1, 0, 2).flatten(1)  # (V, M·V)
    own = torch.eye(size * width, dtype=o.dtype).reshape(size, width, -1)  # picks a member: (M, V, M·V)
    own = own.repeat_interleave(per_member, dim=0)  # (H, V, M·V)
    back = _back(own, grams, into)
    for _ in range(SWEEPS):
        into = _into(own, grams, costs, back, into)
        back = _back(own, grams, into)
    return into, o @ back


def _back(own: Tensor, grams: Tensor, into: Tensor) -> Tensor:
    """Return E[own sᵀ] E[s sᵀ]⁻¹ for each head, (H, V, V)."""
    seen = grams @ into.T  # (H, M·V, V)
    back: Tensor = own @ seen @ torch.linalg.pinv(into @ seen, hermitian=True)
    return back


def _into(own: Tensor, grams: Tensor, costs: Tensor, back: Tensor, start: Tensor) -> Tensor:
    """Solve Σ_h backᵀ Q back S B = Σ_h backᵀ Q own B for S by conjugate gradients from where S is."""
    weighted = back.mT @ costs  # (H, V, V)

    def left(s: Tensor) -> Tensor:
        return torch.einsum("hvw,hwx,xy,hyz->vz", weighted, back, s, grams)

    found = start
    residual = torch.einsum("hvw,hwx,hxz->vz", weighted, own, grams) - left(found)
    direction, energy = residual, residual.square().sum()
    least = 1e-24 * energy
    for _ in range(20):
        if energy <= least or energy == 0.0:
            break
        changed = left(direction)
        step = energy / (direction * changed).sum()
        found = found + step * direction
        residual = residual - step * changed
        after = residual.square().sum()
        direction, energy = residual + (after / energy) * direction, after
    return found


def _refitted(handle: LayerHandle, weights: LayerWeights, runs: list[AttentionRun]) -> LayerWeights:
    """Refit the output projection to what the layer gave before, by ridge regression about where it is."""
    write_weights(handle, weights)
    seen, missing = Moments(), Moments()
    wanted = lost = 0.0
    for run in runs:
        now = run_again(handle, run)
        error = run.y.double() - now.y.double()
        f = with_one(now.joined)
        seen.update(f)
        missing.update(error, f)
        wanted += float(run.y.double().square().sum())
        lost += float(error.square().sum())
    if lost <= ROUNDING * wanted:
        return weights
    moments, errors = seen.mean, missing.mean
    if weights.o_bias is not None:
        mean, error = moments[:, -1], errors[:, -1]
        moments, errors = moments - torch.outer(mean, mean), errors - torch.outer(error, mean)
    width = len(moments) - 1
    level = RIDGE * moments.diagonal()[:width].mean()
    firm = moments[:width, :width] + level * torch.eye(width, dtype=moments.dtype)
    change = torch.linalg.solve(firm, errors[:, :width].T).T  # (O, H·V)
    o = weights.o + change.reshape(len(change), weights.n_head, -1).transpose(0, 1)
    if weights.o_bias is None:
        return replace(weights, o=o)
    return replace(weights, o=o, o_bias=weights.o_bias + error - change @ mean[:width])


def _firm(gram: Tensor, members: Tensor) -> Tensor:
    """Return E[b bᵀ] with a little of every direction of the layer's input added, as the members turn it.

    Added as it is, without the members, it would hide that members have much in common.
    """
    rows = members[:, :, :-1].flatten(0, 1)  # (M·V, D)
    every = rows @ rows.T
    if not every.any():
        return gram
    return gram + (SHRINK * gram.trace() / every.trace()) * every
