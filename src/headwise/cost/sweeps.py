"""Costs over a range of head counts, key/value head counts and lengths: the numbers behind the curves."""

from __future__ import annotations

from dataclasses import dataclass, field

from headwise.cost.advice import BAND
from headwise.cost.architecture import Architecture, from_sizes
from headwise.cost.cache import kv_cache_bytes, score_tensor_bytes
from headwise.cost.numbers import whole
from headwise.cost.parameters import projection_parameters
from headwise.cost.workload import Workload

_NARROWEST = 8  # a head narrower than this is no choice, only a longer curve


@dataclass(frozen=True)
class Sweep:
    """Costs of attention alone, one thing changed at a time; bytes and counts.

    Attributes:
        d_model, n_head, n_kv_head, d_head, n_layer, workload: what the changes start from.
        heads: H → (projection parameters of one layer, score tensor bytes of one layer), K = D / H.
        kv_heads: G → cache bytes of all layers.
        lengths: T → (score tensor bytes of one layer, cache bytes of all layers).
        band: smallest and largest H with K from 64 to 128, or None if there is none.
    """

    d_model: int
    n_head: int
    n_kv_head: int
    d_head: int
    n_layer: int
    workload: Workload
    heads: dict[int, tuple[int, int]] = field(default_factory=dict)
    kv_heads: dict[int, int] = field(default_factory=dict)
    lengths: dict[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def band(self) -> tuple[float, float] | None:
        """Head counts between which a head is 64 to 128 wide."""
        low, high = self.d_model / BAND[1], self.d_model / BAND[0]
        return (low, high) if high >= 1 else None


def sweep(
    d_model: int,
    n_head: int,
    workload: Workload,
    *,
    n_kv_head: int | None = None,
    d_head: int | None = None,
    n_layer: int = 1,
) -> Sweep:
    """Return the costs of attention of width D when H, G or T changes.

    Raises TypeError or ValueError for sizes that are not positive whole numbers or heads that do not divide.
    """
    whole("n_layer", n_layer)
    start = from_sizes(d_model, n_head, n_kv_head=n_kv_head, d_head=d_head, n_layer=n_layer)
    attention = start.layers[0].attention

    heads = {}
    for h in _divisors(d_model):
        if d_model // h < _NARROWEST and h != n_head:
            continue
        one = from_sizes(d_model, h).layers[0].attention
        heads[h] = projection_parameters(one, d_model), score_tensor_bytes(one, workload)
    kv_heads = {
        g: kv_cache_bytes(
            from_sizes(d_model, n_head, n_kv_head=g, d_head=attention.d_head, n_layer=n_layer), workload
        )
        for g in _divisors(n_head)
    }
    lengths = {}
    for power in range(-4, 5):
        t = max(1, round(workload.length * 2.0**power))
        asked = workload.with_(length=t)
        lengths[t] = score_tensor_bytes(attention, asked), kv_cache_bytes(start, asked)
    return Sweep(
        d_model,
        n_head,
        attention.n_kv_head,
        attention.d_head,
        n_layer,
        workload,
        heads,
        kv_heads,
        lengths,
    )


def sweep_from(architecture: Architecture, workload: Workload) -> Sweep:
    """Return the curves around a model's own sizes.

    Raises ValueError if its layers differ, or their attention is latent or slides.
    """
    kinds = {layer.attention for layer in architecture.layers}
    if len(kinds) != 1 or any(kind.latent or kind.window for kind in kinds):
        raise ValueError(
            f"curves need layers with the same heads, neither latent nor with a window; {architecture.name} "
            "has others, so give sizes (--d-model, --n-head …)"
        )
    (kind,) = kinds
    return sweep(
        architecture.d_model,
        kind.n_head,
        workload,
        n_kv_head=kind.n_kv_head,
        d_head=kind.d_head,
        n_layer=architecture.n_layer,
    )


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
