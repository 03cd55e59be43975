"""How many key/value heads each layer keeps, so that the cache has a given size and least is lost.

Letters: G key/value heads, M members of a group.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from headwise.compress import methods
from headwise.compress.layer_by_layer import LayerByLayer
from headwise.compress.moments import Moments, gram_of, shrunk, with_one
from headwise.compress.rows import given_rows
from headwise.compress.subspace import lost_share, shared_subspace
from headwise.hub.subject import Subject
from headwise.hub.surgery import LayerHandle, LayerWeights, layer_handles, read_weights


@torch.no_grad()
def counts_for_cache(
    source: Subject | nn.Module, share: float, texts: Iterable[str] | Sequence[Tensor]
) -> list[int]:
    """Return how many key/value heads to leave in each layer, for `group`, at most this share of them all.

    What a count costs a layer is estimated from the closed forms: the share of the scores' and of the
    output's energy that neighbouring heads lose when they share one. Of all choices that fit, the one that
    loses least in sum is taken.

    Raises:
        ValueError: a share outside 0 … 1, or so small that not even one head in each layer fits.
    """
    if not 0.0 < share <= 1.0:
        raise ValueError(f"share must lie in 0 < share ≤ 1, got {share}")
    model = source.model if isinstance(source, Subject) else source
    handles = layer_handles(model)
    most = int(share * sum(handle.n_kv_head for handle in handles) + 1e-9)
    if most < len(handles):
        raise ValueError(
            f"share={share} leaves {most} key/value heads for {len(handles)} layers, which need one each; "
            f"give at least {len(handles) / sum(handle.n_kv_head for handle in handles):.4g}"
        )
    training = model.training
    model.eval()
    try:
        stages = LayerByLayer(model, handles, given_rows(source, texts))
        costs = [_costs(handle, stages) for handle in handles]
    finally:
        model.train(training)
    return cheapest(costs, most)


def cheapest(costs: Sequence[dict[int, float]], most: int) -> list[int]:
    """Return one count for each layer, at most so many in sum, of least cost in sum; costs: by count."""
    best: dict[int, tuple[float, list[int]]] = {0: (0.0, [])}
    for layer in costs:
        options: dict[int, tuple[float, list[int]]] = {}
        for used, (cost, counts) in best.items():
            for count, more in layer.items():
                total = used + count
                if total <= most and cost + more < options.get(total, (float("inf"), []))[0]:
                    options[total] = (cost + more, [*counts, count])
        best = options
    return min(best.values())[1]


def _costs(handle: LayerHandle, stages: LayerByLayer) -> dict[int, float]:
    """Return what each possible count of key/value heads costs a layer."""
    inputs = Moments()
    for run in stages.runs(handle):
        inputs.update(with_one(run.x))
    moments = shrunk(inputs.mean)
    weights = read_weights(handle).with_values_hoisted()
    heads = weights.n_kv_head
    return {
        count: _lost(handle, weights, heads // count, moments)
        for count in range(1, heads + 1)
        if heads % count == 0
    }


def _lost(handle: LayerHandle, weights: LayerWeights, size: int, moments: Tensor) -> float:
    """Return the share of energy lost when every `size` neighbours share their keys and their values."""
    if size == 1:
        return 0.0
    lost = []
    for start in range(0, weights.n_kv_head, size):
        group = weights.take_groups(range(start, start + size))
        readers = group.q.reshape(size, -1, *group.q.shape[1:])
        keys = methods.shared_keys(group.k, readers, moments, handle)
        key_costs = torch.einsum("mrwn,nk,mrvk->mwv", readers, moments, readers)
        mixers = group.o.reshape(size, -1, *group.o.shape[1:])
        value_costs = torch.einsum("mrov,mrow->mvw", mixers, mixers)
        gram = gram_of(group.v, moments)
        values = shared_subspace(gram, value_costs)
        lost.append(lost_share(gram_of(group.k, moments), key_costs, keys))
        lost.append(lost_share(gram, value_costs, values))
    return sum(lost) / len(lost)
