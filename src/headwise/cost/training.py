"""Memory of a training step: what autograd keeps for the backward pass, and the peak of the whole step.

What each part keeps was read off headwise's own modules with a saved-tensor hook, on a CPU, without dropout;
`verify` holds these formulas against the real thing. N = B · T tokens, F d_ff.

- a norm keeps its input, its output and a few numbers per token; an RMS norm also the input before the gains
- attention keeps q, k, v and the joined heads: N · (H·K + G·K + G·V + H·V)
- written out, attention also keeps the softmax and the weights multiplied with the values: 2 · B · H · T²
- tiled, it keeps its output and one number per query and head (log-sum-exp) instead: N · H
- a gated feed-forward part keeps 4 · N · F (gate, up, activated gate, product), a plain one 2 · N · F
- the loss keeps the log-probabilities: N · vocab_size
"""

from __future__ import annotations

from headwise.cost.architecture import Architecture, Attention, FeedForward, Layer
from headwise.cost.numbers import BITS
from headwise.cost.parameters import attention_parameters, feed_forward_parameters, parameters
from headwise.cost.workload import Workload

SCORES_KEPT = 2
"""Score-sized tensors that one layer of written-out attention keeps: the softmax, and the weights in use."""

SCORES_WORKING = 1
"""Score-sized tensors that are alive besides, on the way forward and on the way back."""

MOMENTS = 2
"""Numbers that AdamW keeps for each parameter."""


def score_bytes(attention: Attention, workload: Workload) -> int:
    """Bytes of one score-sized tensor in training: softmax runs in fp32 or wider."""
    return workload.batch * attention.n_head * workload.length**2 * max(workload.number, 4)


def kept_scores(architecture: Architecture, workload: Workload) -> int:
    """Bytes of the score-sized tensors that written-out attention keeps, and of its masks."""
    return sum(_scores_kept(layer.attention, workload) for layer in architecture.layers)


def activations(architecture: Architecture, workload: Workload, *, tiled: bool) -> int:
    """Bytes kept between forward and backward, ids and targets included.

    tiled: attention works in tiles and keeps no scores; otherwise `kept_scores` is part of the result.
    """
    ends = _ends(architecture, workload)
    return sum(_layer_kept(architecture, layer, workload, tiled) for layer in architecture.layers) + ends


def states(architecture: Architecture, workload: Workload) -> int:
    """Bytes of weights, gradients and AdamW's two moments."""
    return (2 + MOMENTS) * parameters(architecture) * BITS[workload.states] // 8


def step_peak(architecture: Architecture, workload: Workload, *, tiled: bool) -> int:
    """Most bytes alive at once in a training step with AdamW, from the second step on.

    Gradients come to life from the last layer to the first while what was kept dies, so the peak stands in
    the last layer's scores, where the loss begins its way back, in a layer on the way, or in the optimizer.
    Not counted: what kernels use inside, the allocator's reserve, the CUDA context, dropout masks.
    """
    a = architecture
    number, state = workload.number, BITS[workload.states] // 8
    tokens = workload.batch * workload.length
    lasting = (1 + MOMENTS) * parameters(a) * state
    logits = tokens * a.vocab_size * number
    embedding = a.vocab_size * a.d_model * state
    stream = tokens * a.d_model * number
    alive = activations(a, workload, tiled=tiled)
    # two more of their size beside the log-probabilities: their gradient, and that of the logits
    peaks = [alive + 2 * logits]
    alive += embedding - logits - _norm_kept(a, workload)
    for layer in reversed(a.layers):
        part, attention = layer.feed_forward, layer.attention
        if part is not None:
            hidden = tokens * (part.n_active * part.d_ff + part.d_shared) * number
            peaks.append(alive + (3 if part.gated else 2) * hidden + stream)
            alive -= _feed_forward_kept(a, part, workload)
            alive += feed_forward_parameters(part, a.d_model) * state
        h, g, k, v = attention.n_head, attention.n_kv_head, attention.d_head, attention.d_value
        inside = tokens * (h * k + g * k + g * v + h * v) * number  # their gradients
        if not tiled:
            inside += SCORES_WORKING * score_bytes(attention, workload)
        peaks.append(alive + inside + stream)
        alive -= _attention_kept(a, attention, workload, tiled)
        alive += attention_parameters(attention, a.d_model) * state
    # AdamW goes from matrix to matrix and needs three more of its size
    peaks.append(parameters(a) * state + 3 * _largest_matrix(a) * state)
    return lasting + max(peaks)


def _layer_kept(architecture: Architecture, layer: Layer, workload: Workload, tiled: bool) -> int:
    kept = _attention_kept(architecture, layer.attention, workload, tiled)
    if layer.feed_forward is not None:
        kept += _feed_forward_kept(architecture, layer.feed_forward, workload)
    return kept


def _norm_kept(architecture: Architecture, workload: Workload) -> int:
    """What a norm keeps, its output (the input of the projection that follows) included."""
    d = architecture.d_model
    per_token = {"rms": 3 * d + 1, "layer": 2 * d + 2, "none": d}[architecture.norm]
    return workload.batch * workload.length * per_token * workload.number


def _attention_kept(architecture: Architecture, attention: Attention, workload: Workload, tiled: bool) -> int:
    """What the norm before attention and attention itself keep."""
    h, g, k, v = attention.n_head, attention.n_kv_head, attention.d_head, attention.d_value
    tokens, number = workload.batch * workload.length, workload.number
    # written out, q, k and v are kept in the type that softmax runs in
    inputs = tokens * (h * k + g * k + g * v) * (number if tiled else max(number, 4))
    heads = tokens * h * v * number
    joined = heads if attention.output_projection else 0
    kept = _norm_kept(architecture, workload) + inputs
    if attention.latent is not None:
        latent = attention.latent
        kept += tokens * (3 * (latent.rank + (latent.query_rank or 0)) + latent.d_rope) * number
    if architecture.rotary:
        kept += workload.length * k * 4  # cosines and sines
    if not tiled:
        return kept + joined + _scores_kept(attention, workload)
    kept += heads + tokens * h * max(number, 4)
    # turned by their positions, heads lie one after the other, and joining them takes a copy
    if architecture.rotary:
        return kept + joined
    # without a projection or a sum, the joined heads are what the next part keeps as its input
    passed_on = not attention.output_projection and not architecture.residual and architecture.norm == "none"
    return kept - heads if passed_on else kept


def _scores_kept(attention: Attention, workload: Workload) -> int:
    masks = workload.length**2 + 4 * workload.length  # a byte for each pair, and for each query and key
    return SCORES_KEPT * score_bytes(attention, workload) + masks


def _feed_forward_kept(architecture: Architecture, part: FeedForward, workload: Workload) -> int:
    """What the norm before the feed-forward part and that part itself keep."""
    per_token = (4 if part.gated else 2) * (part.n_active * part.d_ff + part.d_shared)
    if part.routed:  # each expert gathers its own input
        per_token += part.n_active * architecture.d_model + part.n_expert
    tokens = workload.batch * workload.length
    return _norm_kept(architecture, workload) + tokens * per_token * workload.number


def _ends(architecture: Architecture, workload: Workload) -> int:
    """What is kept outside the layers: ids, the last norm, and if there is a vocabulary, targets and loss."""
    tokens, number = workload.batch * workload.length, workload.number
    kept = 8 * tokens + _norm_kept(architecture, workload)
    if architecture.vocab_size:
        kept += 8 * tokens + tokens * architecture.vocab_size * number + number
    return kept


def _largest_matrix(architecture: Architecture) -> int:
    """Numbers in the largest single matrix."""
    d = architecture.d_model
    rows = [architecture.vocab_size, architecture.positions]
    for layer in architecture.layers:
        rows.append(layer.attention.n_head * layer.attention.d_head)
        if layer.feed_forward is not None:
            rows.append(layer.feed_forward.d_ff)
    return d * max(rows)
