"""Bytes of the key/value cache and of the score tensor: the two that grow with the text.

KV cache = b · B · Σ over layers of G · (K + V) · min(T, window); a layer with latent attention has
b · B · T · (rank + d_rope), once and not for keys and values apart.
"""

from __future__ import annotations

from headwise.cost.architecture import Architecture, Attention
from headwise.cost.numbers import packed
from headwise.cost.workload import Workload

SCALE_BYTES = 4


def kv_cache_bytes(architecture: Architecture, workload: Workload) -> int:
    """Bytes of the cache of B sequences of T tokens, scales included."""
    return sum(layer_cache_bytes(layer.attention, workload) for layer in architecture.layers)


def kv_cache_bytes_per_token(architecture: Architecture, workload: Workload) -> int:
    """Bytes by which the cache of one sequence grows with a token that is inside every window."""
    return sum(_token_bytes(layer.attention, workload) for layer in architecture.layers)


def layer_cache_bytes(attention: Attention, workload: Workload) -> int:
    """Bytes of one layer's cache."""
    fixed = SCALE_BYTES * len(_vectors(attention)) if workload.scales == "layer" else 0
    return workload.batch * cached_tokens(attention, workload) * _token_bytes(attention, workload) + fixed


def cached_tokens(attention: Attention, workload: Workload) -> int:
    """How many tokens of each sequence one layer keeps: T, or the window, in whole blocks."""
    kept = workload.length if attention.window is None else min(workload.length, attention.window)
    return -(-kept // workload.cache_block) * workload.cache_block


def score_tensor_bytes(attention: Attention, workload: Workload) -> int:
    """Bytes of the scores of one layer if they are written out: B · H · T² numbers, whatever G is."""
    return workload.batch * attention.n_head * workload.length**2 * workload.number


def _token_bytes(attention: Attention, workload: Workload) -> int:
    scale = SCALE_BYTES if workload.scales == "token-head" else 0
    return sum(count * (packed(width, workload.cached) + scale) for count, width in _vectors(attention))


def _vectors(attention: Attention) -> list[tuple[int, int]]:
    """What is cached of one token: kinds of vectors, each (how many, how wide)."""
    if attention.latent is not None:
        return [(1, attention.latent.rank), (1, attention.latent.d_rope)]
    return [(attention.n_kv_head, attention.d_head), (attention.n_kv_head, attention.d_value)]
