"""The one seam through which heads are looked at and changed while a model runs.

Letters: B batch, H query heads, G key/value heads, T queries, S keys, K head width of q and k, V that of v,
D width of the layer's output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from headwise.attention import Mask, MultiHeadAttention
from headwise.hub.layers import AttentionLayer, attention_layers


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """What one layer of attention was given, and what its heads gave."""

    layer: AttentionLayer
    q: Tensor
    """(B, H, T, K), turned by its positions where the model does that."""
    k: Tensor
    """(B, G, S, K), likewise."""
    v: Tensor
    """(B, G, S, V)."""
    out: Tensor
    """(B, H, T, V), what the heads gave, before gates and output projection."""
    mask: Mask | None
    scale: float
    bias: Tensor | None = None
    """Added to the scores, broadcastable to (B, H, T, S)."""
    softcap: float | None = None
    sink: Tensor | None = None
    """(H,), a score in the denominator of the softmax."""


Observer = Callable[[AttentionCall], None]


@contextmanager
def observe(
    model: nn.Module,
    observer: Observer | None = None,
    *,
    gates: Mapping[int, Tensor] | Tensor | None = None,
    fills: Mapping[int, Tensor] | None = None,
) -> Iterator[list[AttentionLayer]]:
    """While the context lasts, show an observer what each layer of attention does, and gate its heads.

    observer: called for each layer each time it runs, with the heads' outputs before the gates.
    gates: what to multiply each head's output by before the output projection: (n_layer, n_head), or for each
        layer to be gated, by its index, (H,) or (B, H). Gates get gradients.
    fills: by the layer's index, what takes the place of the gated share: the output becomes
        gate · out + (1 - gate) · fill; broadcastable to (B, H, T, V), 0 where missing.

    Yields the layers. The model is as before afterwards, also after an exception.

    Raises ValueError for a model without attention that can be observed, and for gates or fills that do not
    fit its layers.
    """
    layers = attention_layers(model)
    with ExitStack() as stack:
        for layer in layers:
            gate = _of_layer(gates, layer)
            fill = None if fills is None else fills.get(layer.index)
            stack.enter_context(_watched(layer, observer, gate, fill))
        yield layers


def _of_layer(gates: Mapping[int, Tensor] | Tensor | None, layer: AttentionLayer) -> Tensor | None:
    if gates is None:
        return None
    return gates[layer.index] if isinstance(gates, Tensor) else gates.get(layer.index)


@contextmanager
def _watched(
    layer: AttentionLayer, observer: Observer | None, gate: Tensor | None, fill: Tensor | None
) -> Iterator[None]:
    module = layer.module
    if not isinstance(module, MultiHeadAttention):
        raise TypeError(f"layer {layer.name} is not headwise's attention but {type(module).__name__}")
    before = module.attend

    def attend(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
        result = before(q, k, v, **options)
        out, *weights = result if isinstance(result, tuple) else (result,)
        if observer is not None:
            observer(
                AttentionCall(
                    layer,
                    q,
                    k,
                    v,
                    out,
                    options["mask"],
                    q.shape[3] ** -0.5,
                    options["bias"],
                    options["softcap"],
                    options["sink"],
                )
            )
        out = gated(out, gate, fill)
        return (out, *weights) if weights else out

    module.attend = attend
    try:
        yield
    finally:
        module.attend = before


def gated(out: Tensor, gate: Tensor | None, fill: Tensor | None = None) -> Tensor:
    """Return gate · out + (1 - gate) · fill for out (B, H, T, V), gate (H,) or (B, H)."""
    if gate is None:
        return out
    factor = gate.unsqueeze(-1).unsqueeze(-1)  # (H, 1, 1) or (B, H, 1, 1)
    kept = out * factor
    return (kept if fill is None else kept + (1 - factor) * fill).to(out.dtype)
