"""Which numbers of heads suit a width, a length and a cache budget."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from headwise.cost.architecture import from_sizes
from headwise.cost.cache import kv_cache_bytes, score_tensor_bytes
from headwise.cost.numbers import say_bytes, whole
from headwise.cost.parameters import projection_parameters
from headwise.cost.workload import Workload

BAND = (64, 128)
"""Widths of a head that are worth taking, see `BAND_REASON`."""

BAND_REASON = (
    "Below 64, the same parameters make more heads and so more scores (B·H·T²), and kernels that work in "
    "tiles of 64 to 128 columns run half empty; above 128 there are fewer patterns to attend with, and many "
    "fused kernels grow slow or refuse."
)


@dataclass(frozen=True)
class Candidate:
    """One choice of heads, and what it costs.

    Attributes:
        n_head, n_kv_head, d_head: H, G, K, with H · K = D.
        kv_cache_bytes: of all layers, for B sequences of T tokens.
        score_tensor_bytes: of one layer, if scores are written out.
        attention_parameters: the projections of one layer.
    """

    n_head: int
    n_kv_head: int
    d_head: int
    kv_cache_bytes: int
    score_tensor_bytes: int
    attention_parameters: int

    def to_json(self) -> dict[str, Any]:
        """Plain numbers."""
        return asdict(self)


def advise(d_model: int, cache_budget_bytes: int, workload: Workload, *, n_layer: int) -> list[Candidate]:
    """Return every (H, G, K) with H · K = D, K from 64 to 128, and a cache within the budget.

    Those with most cached keys and values come first (they lose least), then those with fewest scores.
    Only numbers are weighed here: which quality a choice reaches is for training to say.

    Raises:
        TypeError: a size that is not a whole number.
        ValueError: a size below 1, a width without such heads, or a budget that none fits, with the least
            that one would need.
    """
    whole("d_model", d_model)
    whole("cache_budget_bytes", cache_budget_bytes)
    whole("n_layer", n_layer)
    low, high = BAND
    found = [
        _candidate(d_model, d_model // width, groups, width, workload, n_layer)
        for width in range(low, high + 1)
        if d_model % width == 0 and width % 2 == 0
        for groups in range(1, d_model // width + 1)
        if d_model // width % groups == 0
    ]
    if not found:
        raise ValueError(
            f"d_model={d_model} has no head width from {low} to {high} that is even and divides it; "
            f"a multiple of {low} has"
        )
    fitting = [candidate for candidate in found if candidate.kv_cache_bytes <= cache_budget_bytes]
    if not fitting:
        least = min(candidate.kv_cache_bytes for candidate in found)
        raise ValueError(
            f"no choice of heads fits a cache of {say_bytes(cache_budget_bytes)}; the smallest, multi-query "
            f"attention, takes {say_bytes(least)} at length {workload.length} and batch {workload.batch}"
        )
    return sorted(fitting, key=lambda c: (-c.kv_cache_bytes, c.score_tensor_bytes))


def _candidate(
    d_model: int, n_head: int, n_kv_head: int, d_head: int, workload: Workload, n_layer: int
) -> Candidate:
    sizes = from_sizes(d_model, n_head, n_kv_head=n_kv_head, d_head=d_head, n_layer=n_layer)
    attention = sizes.layers[0].attention
    return Candidate(
        n_head,
        n_kv_head,
        d_head,
        kv_cache_bytes(sizes, workload),
        score_tensor_bytes(attention, workload),
        projection_parameters(attention, d_model),
    )
