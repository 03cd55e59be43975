"""Numbers of parameters by part, and how many of them a token is multiplied with.

Attention: D·H·K (queries) + D·G·K (keys) + D·G·V (values) + H·V·D (output), and biases H·K + G·K + G·V + D.
"""

from __future__ import annotations

from headwise.cost.architecture import Architecture, Attention, FeedForward, Layer


def projection_parameters(attention: Attention, d_model: int) -> int:
    """Numbers in the matrices of one layer's attention, without biases."""
    h, g, k, v = attention.n_head, attention.n_kv_head, attention.d_head, attention.d_value
    output = h * v * d_model if attention.output_projection else 0
    latent = attention.latent
    if latent is None:
        return d_model * (h * k + g * k + g * v) + output
    rank = latent.query_rank
    queries = d_model * h * k if rank is None else d_model * rank + rank * h * k
    down = d_model * (latent.rank + latent.d_rope)
    return queries + down + latent.rank * h * (k - latent.d_rope + v) + output


def attention_parameters(attention: Attention, d_model: int) -> int:
    """All parameters of one layer's attention: matrices, biases, and norms of queries and keys."""
    h, g, k, v = attention.n_head, attention.n_kv_head, attention.d_head, attention.d_value
    sizes = {"q": h * k, "k": g * k, "v": g * v, "o": d_model}
    biases = sum(sizes[part] for part in attention.biases)
    return projection_parameters(attention, d_model) + biases + attention.extra


def expert_parameters(part: FeedForward, d_model: int, d_ff: int) -> int:
    """All parameters of one expert, or of the whole part where nothing is routed."""
    matrices = 3 if part.gated else 2
    biases = (matrices - 1) * d_ff + d_model if part.bias else 0
    return matrices * d_model * d_ff + biases


def feed_forward_parameters(part: FeedForward, d_model: int, *, experts: int | None = None) -> int:
    """All parameters of a feed-forward part, counting `experts` of the routed ones (default: all)."""
    experts = part.n_expert if experts is None else experts
    router = part.n_expert * (d_model + part.router_bias) if part.routed else 0
    shared = expert_parameters(part, d_model, part.d_shared) if part.d_shared else 0
    gate = d_model if part.shared_gate else 0
    return experts * expert_parameters(part, d_model, part.d_ff) + router + shared + gate


def parameters_by_part(architecture: Architecture) -> dict[str, int]:
    """Parameters of each kind of part; tied embeddings count once. The values add up to `parameters`."""
    a = architecture
    head = 0 if a.tied else a.vocab_size * a.d_model
    parts = {
        "token embedding": a.vocab_size * a.d_model,
        "position embedding": a.positions * a.d_model,
        "attention": sum(attention_parameters(layer.attention, a.d_model) for layer in a.layers),
        "feed-forward": sum(
            feed_forward_parameters(layer.feed_forward, a.d_model) for layer in a.layers if layer.feed_forward
        ),
        "norms": sum(layer.norm_parameters for layer in a.layers) + a.final_norm_parameters,
        "output layer": head + (a.vocab_size if a.head_bias else 0),
    }
    return {part: number for part, number in parts.items() if number}


def parameters(architecture: Architecture) -> int:
    """All parameters."""
    return sum(parameters_by_part(architecture).values())


def active_parameters(architecture: Architecture, tokens: int = 1) -> int:
    """Parameters that at most this many tokens make use of: all, but for experts that none of them visits."""
    idle = 0
    for layer in architecture.layers:
        part = layer.feed_forward
        if part is not None and part.routed:
            used = min(part.n_expert, tokens * part.n_active)
            idle += (part.n_expert - used) * expert_parameters(part, architecture.d_model, part.d_ff)
    return parameters(architecture) - idle


def multiplied(architecture: Architecture) -> int:
    """Numbers in the matrices that one token is multiplied with, the output layer included."""
    d = architecture.d_model
    return sum(_layer_multiplied(layer, d) for layer in architecture.layers) + architecture.vocab_size * d


def _layer_multiplied(layer: Layer, d_model: int) -> int:
    total = projection_parameters(layer.attention, d_model)
    part = layer.feed_forward
    if part is not None:
        width = part.n_active * part.d_ff + part.d_shared
        total += (3 if part.gated else 2) * d_model * width
        total += (part.n_expert * d_model if part.routed else 0) + (d_model if part.shared_gate else 0)
    return total
