"""Statistics of heads from their weights alone, for maps that come without a model.

Letters: T queries, S keys.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def entropies(weights: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return each query's entropy in nats, (T,), of weights (T, S)."""
    w = weights.astype(np.float64)
    result: NDArray[np.float64] = -np.where(w > 0, w * np.log(np.where(w > 0, w, 1.0)), 0.0).sum(axis=1)
    return result


def map_statistics(weights: NDArray[np.float32], seen: NDArray[np.bool_], *, cross: bool) -> dict[str, float]:
    """Return the statistics of one head, each mass with what equal weights on the seen keys would score."""
    visible = seen.sum(axis=1)
    rows = visible > 0
    w, s, n = weights[rows].astype(np.float64), seen[rows], visible[rows]
    equal = s / n[:, None]
    entropy, most = entropies(weights[rows]), np.log(n)
    found = {
        "entropy": entropy.mean(),
        "entropy_uniform": most.mean(),
        "normalised_entropy": _mean(entropy[n > 1] / most[n > 1]),
        "confidence": w.max(axis=1).mean(),
        "confidence_uniform": (1 / n).mean(),
    }
    if cross:
        return {name: float(value) for name, value in found.items()}
    places = {"self": 0, "previous": -1, "next": 1}
    query = np.arange(len(weights))[rows]
    for name, step in places.items():
        there = (query + step >= 0) & (query + step < weights.shape[1])
        row, key = np.flatnonzero(there), (query + step)[there]
        ok = s[row, key]
        found[name] = _mean(w[row[ok], key[ok]])
        found[f"{name}_uniform"] = _mean(equal[row[ok], key[ok]])
    ok = s[:, 0]
    found |= {"first": _mean(w[ok, 0]), "first_uniform": _mean(equal[ok, 0])}
    return {name: float(value) for name, value in found.items()}


def _mean(values: NDArray[np.float64]) -> float:
    return float(values.mean()) if values.size else float("nan")
