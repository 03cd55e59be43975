"""Floating-point operations of the matrix products; a multiplication with its addition counts as two.

Forward = 2 · B · T · (numbers in the matrices) + 2 · B · T² · Σ H · (K + V). Norms, softmax, activation
functions and look-ups are not counted. Every pair of tokens counts, also those that a causal mask or a window
hides, because attention that is written out computes them; `hidden_pairs` says how much of it that is.
"""

from __future__ import annotations

from headwise.cost.architecture import Architecture, Attention
from headwise.cost.cache import kv_cache_bytes
from headwise.cost.parameters import active_parameters, multiplied
from headwise.cost.workload import Workload


def forward(architecture: Architecture, workload: Workload) -> int:
    """FLOPs of a forward pass over B sequences of T tokens."""
    tokens = workload.batch * workload.length
    pairs = workload.batch * workload.length**2
    return 2 * tokens * multiplied(architecture) + pairs * _per_pair(architecture)


def backward(architecture: Architecture, workload: Workload) -> int:
    """FLOPs of the backward pass: each product has two, one for each of its factors."""
    return 2 * forward(architecture, workload)


def recomputed(architecture: Architecture, workload: Workload) -> int:
    """FLOPs that tiled attention adds to the backward pass: the scores once more, 2 · B · T² · Σ H · K."""
    pairs = workload.batch * workload.length**2
    return pairs * sum(2 * layer.attention.n_head * layer.attention.d_head for layer in architecture.layers)


def hidden_pairs(architecture: Architecture, workload: Workload) -> int:
    """FLOPs of the forward pass spent on pairs that masks hide; a kernel that skips them saves up to this."""
    t = workload.length
    total = 0
    for layer in architecture.layers:
        w = min(t, layer.attention.window or t)
        visible = w * (w + 1) // 2 + (t - w) * w
        total += workload.batch * (t * t - visible) * _attention_per_pair(layer.attention)
    return total


def prefill(architecture: Architecture, workload: Workload) -> int:
    """FLOPs of reading a prompt of T tokens: a forward pass that needs scores of the last token only."""
    skipped = workload.batch * (workload.length - 1) * architecture.vocab_size * architecture.d_model
    return forward(architecture, workload) - 2 * skipped


def decode(architecture: Architecture, workload: Workload) -> int:
    """FLOPs of one new token of one sequence that sees T cached tokens, itself included.

    Latent attention is counted as serving runs it, on the cached vectors themselves (arXiv:2405.04434).
    """
    return 2 * multiplied(architecture) + _decode_attention(architecture, workload)


def prefill_intensity(architecture: Architecture, workload: Workload) -> float:
    """FLOPs of the prefill for each byte moved: weights read once, cache written once."""
    weights = active_parameters(architecture, workload.batch * workload.length) * workload.number
    return prefill(architecture, workload) / (weights + kv_cache_bytes(architecture, workload))


def decode_intensity(architecture: Architecture, workload: Workload) -> float:
    """FLOPs of one new token in each of the B sequences, for each byte moved: weights and cache read once."""
    rows = 0 if architecture.tied else architecture.vocab_size  # an embedding that is only looked up
    looked_up = (rows + architecture.positions) * architecture.d_model
    weights = (active_parameters(architecture, workload.batch) - looked_up) * workload.number
    moved = weights + kv_cache_bytes(architecture, workload)
    return workload.batch * decode(architecture, workload) / moved


def decode_attention_intensity(architecture: Architecture, workload: Workload) -> float:
    """FLOPs of attention alone for each byte of cache read: 2 · H / (G · b); no batch improves it."""
    read = kv_cache_bytes(architecture, workload)
    return workload.batch * _decode_attention(architecture, workload) / read


def _decode_attention(architecture: Architecture, workload: Workload) -> int:
    total = 0
    for layer in architecture.layers:
        a = layer.attention
        seen = min(workload.length, a.window or workload.length)
        width = a.d_head + a.d_value if a.latent is None else 2 * a.latent.rank + a.latent.d_rope
        total += 2 * a.n_head * width * seen
    return total


def _per_pair(architecture: Architecture) -> int:
    return sum(_attention_per_pair(layer.attention) for layer in architecture.layers)


def _attention_per_pair(attention: Attention) -> int:
    return 2 * attention.n_head * (attention.d_head + attention.d_value)
