"""All costs of one architecture under one workload, as one value with names that say bytes or counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from headwise.cost import cache, flops, training
from headwise.cost.architecture import Architecture
from headwise.cost.parameters import active_parameters, parameters_by_part
from headwise.cost.workload import Workload


@dataclass(frozen=True)
class Cost:
    """What an architecture costs. Names end in bytes where bytes are meant; the others are counts.

    Attributes:
        name: of the architecture.
        workload: what was asked of it.
        parameters_by_part, parameters: tied embeddings count once.
        parameters_active: those that one token makes use of; fewer than all only with experts.
        weights_bytes: all parameters in the workload's dtype.
        score_tensor_bytes: B·H·T² numbers of the layer with most heads, if they are written out.
        score_tensor_bytes_all_layers: the same of all layers.
        kv_cache_bytes: of B sequences of T tokens, scales included.
        kv_cache_bytes_per_token: growth of one sequence's cache with a token inside every window.
        activation_bytes_explicit: what autograd keeps if scores are written out; includes
        score_tensors_kept_bytes: the part of it that grows with T².
        activation_bytes_tiled: what autograd keeps if attention works in tiles.
        training_state_bytes: weights, gradients and AdamW's two moments.
        training_peak_bytes_explicit, training_peak_bytes_tiled: most bytes alive in a training step.
        flops_forward, flops_backward: of a step over B·T tokens, every pair counted.
        flops_backward_tiled_extra: what tiled attention adds by computing scores again.
        flops_forward_on_hidden_pairs: the part of flops_forward spent on pairs that masks hide.
        flops_prefill: a forward pass over the prompt that needs the last token's scores only.
        flops_decode_token: one new token of one sequence that sees T tokens.
        flops_per_byte_prefill, flops_per_byte_decode, flops_per_byte_decode_attention: arithmetic intensity;
            None where no byte is moved.
        notes: what is not counted.
    """

    name: str
    workload: Workload
    parameters: int
    parameters_active: int
    parameters_by_part: Mapping[str, int]
    weights_bytes: int
    score_tensor_bytes: int
    score_tensor_bytes_all_layers: int
    kv_cache_bytes: int
    kv_cache_bytes_per_token: int
    activation_bytes_explicit: int
    score_tensors_kept_bytes: int
    activation_bytes_tiled: int
    training_state_bytes: int
    training_peak_bytes_explicit: int
    training_peak_bytes_tiled: int
    flops_forward: int
    flops_backward: int
    flops_backward_tiled_extra: int
    flops_forward_on_hidden_pairs: int
    flops_prefill: int
    flops_decode_token: int
    flops_per_byte_prefill: float | None
    flops_per_byte_decode: float | None
    flops_per_byte_decode_attention: float | None
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain numbers and texts, the workload's fields first."""
        values = asdict(self)
        w = self.workload
        workload = values.pop("workload") | {
            "state_dtype": w.states,
            "cache_dtype": w.cached,
            "cache_scales": w.scales,
        }
        return {"name": values.pop("name"), **workload, **values, "notes": list(self.notes)}


def estimate(architecture: Architecture, workload: Workload) -> Cost:
    """Return what `architecture` costs under `workload`, by formula; see the modules for each formula."""
    a, w = architecture, workload
    parts = parameters_by_part(a)
    scores = [cache.score_tensor_bytes(layer.attention, w) for layer in a.layers]
    total = sum(parts.values())
    cached = cache.kv_cache_bytes(a, w)
    return Cost(
        name=a.name,
        workload=w,
        parameters=total,
        parameters_active=active_parameters(a),
        parameters_by_part=parts,
        weights_bytes=total * w.number,
        score_tensor_bytes=max(scores, default=0),
        score_tensor_bytes_all_layers=sum(scores),
        kv_cache_bytes=cached,
        kv_cache_bytes_per_token=cache.kv_cache_bytes_per_token(a, w),
        activation_bytes_explicit=training.activations(a, w, tiled=False),
        score_tensors_kept_bytes=training.kept_scores(a, w),
        activation_bytes_tiled=training.activations(a, w, tiled=True),
        training_state_bytes=training.states(a, w),
        training_peak_bytes_explicit=training.step_peak(a, w, tiled=False),
        training_peak_bytes_tiled=training.step_peak(a, w, tiled=True),
        flops_forward=flops.forward(a, w),
        flops_backward=flops.backward(a, w),
        flops_backward_tiled_extra=flops.recomputed(a, w),
        flops_forward_on_hidden_pairs=flops.hidden_pairs(a, w),
        flops_prefill=flops.prefill(a, w),
        flops_decode_token=flops.decode(a, w),
        flops_per_byte_prefill=flops.prefill_intensity(a, w) if total + cached else None,
        flops_per_byte_decode=flops.decode_intensity(a, w) if total + cached else None,
        flops_per_byte_decode_attention=flops.decode_attention_intensity(a, w) if cached else None,
        notes=a.notes,
    )
