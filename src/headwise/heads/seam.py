"""The one seam through which heads are looked at and changed while a model runs.

Letters: B batch, H query heads, T queries, S keys, V width of a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn

from headwise.hub.calls import AttentionCall as AttentionCall
from headwise.hub.layers import AttentionLayer, attention_layers
from headwise.hub.listening import Heard, listening
from headwise.hub.listening import gated as gated
from headwise.hub.translation import Translator

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

    model: a GPT or any module with `MultiHeadAttention` in it, or a model of transformers that goes through
        its attention interface with "sdpa" or "eager". Its mode stays as it is: in training, dropout acts.
    observer: called for each layer each time it runs, with the heads' outputs before any gate.
    gates: what to multiply each head's output by before the output projection: (n_layer, n_head), or for each
        layer to be gated, by its index, (H,) or (B, H). Gates get gradients.
    fills: by the layer's index, what takes the place of the gated share: the output becomes
        gate · out + (1 - gate) · fill; broadcastable to (B, H, T, V), 0 where missing. Those of layers
        without a gate wait for one.

    Contexts may be nested: each observer sees the heads' outputs before any gate, and all gates act, the
    outer ones first. Yields the layers. The model is as before afterwards, also after an exception.

    Raises ValueError for a model without attention that can be observed, and for gates or fills that do not
    fit its layers; TypeError for such as are no tensors.
    """
    if observer is not None and not callable(observer):
        raise TypeError(f"observer must be a function of an AttentionCall, got {type(observer).__name__}")
    layers = attention_layers(model)
    gate_of = _gates(gates, layers)
    fill_of = _fills(fills, layers)
    _check_device(gate_of, "gates", layers, model)
    _check_device(fill_of, "fills", layers, model)
    turns = _Turns(layers)
    translator = Translator()

    def listen(heard: Heard, out: Tensor) -> Tensor:
        layer = turns.next(heard.module)
        if observer is not None:
            observer(translator.call(layer, heard))
        gate, fill = gate_of.get(layer.index), fill_of.get(layer.index)
        if gate is not None:
            _check_call(layer, out, gate, fill)
        return gated(out, gate, fill)

    with listening([layer.module for layer in layers if layer.n_head], listen):
        handle = model.register_forward_pre_hook(turns.restart)
        try:
            yield layers
        finally:
            handle.remove()


class _Turns:
    """Which layer runs, where several share a module."""

    def __init__(self, layers: list[AttentionLayer]) -> None:
        self.layers: dict[nn.Module, list[AttentionLayer]] = {}
        for layer in layers:
            self.layers.setdefault(layer.module, []).append(layer)
        self.done = dict.fromkeys(self.layers, 0)

    def restart(self, *_: object) -> None:
        self.done = dict.fromkeys(self.layers, 0)

    def next(self, module: nn.Module) -> AttentionLayer:
        layers = self.layers[module]
        turn = self.done[module] % len(layers)
        self.done[module] += 1
        return layers[turn]


def _gates(gates: Mapping[int, Tensor] | Tensor | None, layers: list[AttentionLayer]) -> dict[int, Tensor]:
    """Return each gated layer's gate, checked as far as can be before the model runs."""
    if gates is None:
        return {}
    if isinstance(gates, Tensor):
        heads = {layer.n_head for layer in layers}
        if len(heads) > 1:
            raise ValueError(
                f"gates is one tensor, but the layers have {sorted(heads)} heads; "
                "give a mapping from a layer's index to its gates (H,)"
            )
        wanted = (len(layers), heads.pop())
        if tuple(gates.shape) != wanted:
            raise ValueError(
                f"gates must be of shape (n_layer, n_head) = {wanted}, got {tuple(gates.shape)}; "
                "for some layers only, or gates per text, give a mapping from a layer's index"
            )
        gates = dict(enumerate(gates))
    _check_keys(gates, "gates", layers)
    for index, gate in gates.items():
        layer = layers[index]
        if not (gate.ndim in (1, 2) and gate.shape[-1] == layer.n_head):
            raise ValueError(
                f"the gates of layer {index} ({layer.name}) must be one number per head, (H,) or (B, H) with "
                f"H = {layer.n_head}, got shape {tuple(gate.shape)}"
            )
    return dict(gates)


def _fills(fills: Mapping[int, Tensor] | None, layers: list[AttentionLayer]) -> dict[int, Tensor]:
    if fills is None:
        return {}
    _check_keys(fills, "fills", layers)
    for index, fill in fills.items():
        layer = layers[index]
        ends = (layer.n_head, None, layer.d_value)[-fill.ndim :] if fill.ndim else ()
        if fill.ndim > 4 or any(
            want is not None and have not in (1, want)
            for have, want in zip(fill.shape[-3:], ends, strict=False)
        ):
            raise ValueError(
                f"the fill of layer {index} ({layer.name}) must broadcast to (B, H, T, V) with "
                f"H = {layer.n_head} and V = {layer.d_value}, got shape {tuple(fill.shape)}"
            )
    return dict(fills)


def _check_keys(given: Mapping[int, Tensor], name: str, layers: list[AttentionLayer]) -> None:
    if not isinstance(given, Mapping):
        raise TypeError(f"{name} must map a layer's index to a tensor, got {type(given).__name__}")
    for index, tensor in given.items():
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(layers):
            raise ValueError(f"{name} names layer {index!r}, but the layers are 0 … {len(layers) - 1}")
        where = f"the {name} of layer {index} ({layers[index].name})"
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{where} must be a tensor, got {type(tensor).__name__}")
        if not tensor.dtype.is_floating_point:
            raise ValueError(
                f"{where} must hold floating-point numbers, got {tensor.dtype}; convert them with .float()"
            )


def _check_device(
    given: dict[int, Tensor], name: str, layers: list[AttentionLayer], model: nn.Module
) -> None:
    for index, tensor in given.items():
        parameter = next(layers[index].module.parameters(), None)
        if parameter is None:
            parameter = next(model.parameters(), None)
        if parameter is not None and tensor.device != parameter.device:
            raise ValueError(
                f"the {name} of layer {index} ({layers[index].name}) are on {tensor.device} but the layer is "
                f"on {parameter.device}; move them with .to({str(parameter.device)!r})"
            )


def _check_call(layer: AttentionLayer, out: Tensor, gate: Tensor, fill: Tensor | None) -> None:
    """Raise ValueError unless gate and fill fit the batch and the length of this call."""
    where = f"layer {layer.index} ({layer.name})"
    if gate.ndim == 2 and gate.shape[0] not in (1, out.shape[0]):
        raise ValueError(
            f"the gates of {where} are for {gate.shape[0]} texts but the batch holds {out.shape[0]}; "
            "give (H,) for all of them or a row for each"
        )
    if fill is not None and any(
        have not in (1, want) for have, want in zip(reversed(fill.shape), reversed(out.shape), strict=False)
    ):
        raise ValueError(
            f"the fill of {where} has shape {tuple(fill.shape)}, which does not broadcast to "
            f"(B, H, T, V) = {tuple(out.shape)}"
        )
