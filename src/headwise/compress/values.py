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
RIDGES = 1.0, 0.1, 0.01, 0.03, 0.3, 3.0, 10.0
"""How firmly the refitted output projection may be held to the one it starts from; the first where no text is
left to choose by."""

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
    pulled = weighted @ back

    def left(s: Tensor) -> Tensor:
        return (pulled @ s @ grams).sum(dim=0)

    found = start
    residual = (weighted @ own @ grams).sum(dim=0) - left(found)
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
    """Refit the output projection to what the layer gave before, by ridge regression about where it is.

    How firmly it is held there is chosen on a part of the text that the fit does not see.
    """
    write_weights(handle, weights)
    parts = _Fit(), _Fit()
    cut = max(1, len(runs) - len(runs) // 4)
    for number, run in enumerate(runs):
        parts[int(number >= cut)].update(run_again(handle, run).joined, run.y, weights)
    both = parts[0] + parts[1]
    if both.lost <= ROUNDING * both.wanted:
        return weights
    ridge = RIDGES[0]
    if parts[1].count:
        ridge = min(RIDGES, key=lambda level: parts[1].error(parts[0].change(level)))
        if parts[1].error(parts[0].change(ridge)) >= parts[1].lost:
            return weights
    change = both.change(ridge)
    o = weights.o + change[:, :-1].reshape(len(change), weights.n_head, -1).transpose(0, 1)
    return replace(weights, o=o, o_bias=None if weights.o_bias is None else weights.o_bias + change[:, -1])


class _Fit:
    """What a change of the output projection needs to be fitted and judged, summed up over a text."""

    def __init__(self) -> None:
        self.seen: Tensor | float = 0.0
        self.missing: Tensor | float = 0.0
        self.wanted = self.lost = 0.0
        self.count = 0
        self.biased = True

    def update(self, joined: Tensor, y: Tensor, weights: LayerWeights) -> None:
        """Take in what the heads give now, (B, T, H·V), and what the layer gave before, (B, T, O)."""
        f = with_one(joined).flatten(0, 1).cpu().double()
        wanted = y.flatten(0, 1).cpu().double()
        o_bias = torch.zeros(wanted.shape[1]) if weights.o_bias is None else weights.o_bias
        now = f @ torch.cat((weights.o.transpose(0, 1).flatten(1), o_bias.double().unsqueeze(1)), dim=1).T
        error = wanted - now
        self.biased = weights.o_bias is not None
        self.seen = self.seen + f.T @ f
        self.missing = self.missing + error.T @ f
        self.wanted += float(wanted.square().sum())
        self.lost += float(error.square().sum())
        self.count += len(f)

    def __add__(self, other: _Fit) -> _Fit:
        made = _Fit()
        made.seen, made.missing = self.seen + other.seen, self.missing + other.missing
        made.wanted, made.lost = self.wanted + other.wanted, self.lost + other.lost
        made.count, made.biased = self.count + other.count, self.biased
        return made

    def change(self, ridge: float) -> Tensor:
        """Return the change of the output projection and its bias that fits, (O, H·V + 1)."""
        seen, missing = torch.as_tensor(self.seen), torch.as_tensor(self.missing)
        weight = ridge * seen.diagonal()[:-1].mean() * torch.ones(len(seen), dtype=seen.dtype)
        if self.biased:
            weight[-1] = 0.0  # the bias is free
            fitted: Tensor = torch.linalg.solve(seen + torch.diag(weight), missing.T).T
            return fitted
        inner = torch.linalg.solve((seen + torch.diag(weight))[:-1, :-1], missing[:, :-1].T).T
        return torch.cat((inner, torch.zeros_like(inner[:, :1])), dim=1)

    def error(self, change: Tensor) -> float:
        """Return the squared error that is left on this text after a change."""
        seen, missing = torch.as_tensor(self.seen), torch.as_tensor(self.missing)
        return self.lost + float(((change @ seen - 2 * missing) * change).sum())


def _firm(gram: Tensor, members: Tensor) -> Tensor:
    """Return E[b bᵀ] with a little of every direction of the layer's input added, as the members turn it.

    Added as it is, without the members, it would hide that members have much in common.
    """
    rows = members[:, :, :-1].flatten(0, 1)  # (M·V, D)
    every = rows @ rows.T
    if not every.any():
        return gram
    return gram + (SHRINK * gram.trace() / every.trace()) * every
