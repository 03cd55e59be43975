"""Attention weights and their labels, checked once for everything that draws them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from headwise.text.labels import label as visible_label

Scale = Literal["linear", "sqrt"]

# Softmax in half precision leaves rows that miss 1 by a little.
_ROUNDING = 0.01


@dataclass(frozen=True)
class AttentionMaps:
    """What every head of every layer made of one text.

    Attributes:
        layers: one float32 array `(H, T, S)` per layer; H may differ from layer to layer.
        queries: one label per row, T of them.
        keys: one label per column, S of them.
        visible: `(T, S)`, False where the key was hidden from the query.
    """

    layers: tuple[NDArray[np.float32], ...]
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    visible: NDArray[np.bool_]

    def select(self, layer: int | None = None, head: int | None = None) -> list[tuple[int, int]]:
        """The `(layer, head)` pairs asked for; None asks for all.

        Raises:
            ValueError: no such layer, or no chosen layer has such a head.
        """
        if layer is not None and not 0 <= layer < len(self.layers):
            raise ValueError(f"layer={layer} does not exist; {_range('layers', len(self.layers))}")
        chosen = range(len(self.layers)) if layer is None else [layer]
        pairs = [(at, h) for at in chosen for h in range(len(self.layers[at])) if head is None or h == head]
        if not pairs:
            most = max(len(self.layers[at]) for at in chosen)
            where = "" if layer is None else f" in layer {layer}"
            raise ValueError(f"head={head} does not exist{where}; {_range('heads', most)}")
        return pairs


def attention_maps(
    weights: Any,
    labels: Sequence[str],
    *,
    key_labels: Sequence[str] | None = None,
    visible: Any = None,
) -> AttentionMaps:
    """Check weights and labels and bring them into one form.

    Args:
        weights: what `model(ids, return_weights=True)` gives: a list with `(1, H, T, S)` or `(H, T, S)` per
            layer. An array or tensor of shape `(L, H, T, S)`, `(H, T, S)` (one layer) or `(T, S)` (one head)
            is taken too.
        labels: T texts, one per query. White space and other characters that cannot be seen are made visible.
        key_labels: S texts, one per key; by default those of the queries.
        visible: `(T, S)`, True where the query may attend; by default everywhere. `np.tri(T, dtype=bool)`
            is the causal triangle.

    Raises:
        ValueError: shapes that do not fit, more than one sequence, weights that are not finite, are below
            0 or add up to more than 1, or that are not 0 where `visible` is False.
    """
    layers = [_layer(index, layer) for index, layer in enumerate(_as_layers(weights))]
    if not layers:
        raise ValueError("weights hold no layer, so there is nothing to draw (a bigram model has no heads)")
    shape = layers[0].shape[1:]
    for index, layer in enumerate(layers):
        if layer.shape[1:] != shape:
            raise ValueError(
                f"all layers must have the same (T, S): layer 0 has {shape}, layer {index} {layer.shape[1:]}"
            )
        _check_values(index, layer)
    keys = labels if key_labels is None else key_labels
    for name, texts, wanted in (("labels", labels, shape[0]), ("key_labels", keys, shape[1])):
        if len(texts) != wanted:
            raise ValueError(f"{name} must have one text per token, {wanted} of them, got {len(texts)}")
    if visible is None:
        seen = np.ones(shape, dtype=bool)
    else:
        seen = np.asarray(visible, dtype=bool)
        if seen.shape != shape:
            raise ValueError(f"visible must have shape (T, S) = {shape}, got {seen.shape}")
        for index, layer in enumerate(layers):
            leak = float(layer[:, ~seen].max(initial=0.0))
            if leak > 1e-6:
                raise ValueError(f"layer {index} gives weight {leak:.3g} to a key that `visible` hides")
    return AttentionMaps(tuple(layers), _legible(labels), _legible(keys), seen)


def check_scale(scale: Scale) -> None:
    """Raise a ValueError unless `scale` is one that maps can be coloured by."""
    if scale not in get_args(Scale):
        raise ValueError(f"scale must be one of {', '.join(get_args(Scale))}; got {scale!r}")


def _legible(labels: Sequence[str]) -> tuple[str, ...]:
    return tuple(visible_label(text.encode("utf-8", "surrogatepass")) or "‹›" for text in labels)


def _as_layers(weights: Any) -> list[Any]:
    if isinstance(weights, list | tuple):
        return list(weights)
    ndim = getattr(weights, "ndim", None)
    if ndim == 2:
        return [weights[None]]
    if ndim == 3:
        return [weights]
    if ndim == 4:
        return list(weights)
    raise ValueError(
        f"weights must be a list with one (H, T, S) array per layer, or an array of 2 to 4 axes, "
        f"got {type(weights).__name__}{'' if ndim is None else f' with {ndim} axes'}"
    )


def _layer(index: int, layer: Any) -> NDArray[np.float32]:
    if isinstance(layer, torch.Tensor):
        layer = layer.detach().to("cpu", torch.float32).numpy()
    array = np.asarray(layer, dtype=np.float32)
    if array.ndim == 4 and len(array) == 1:
        array = array[0]
    if array.ndim != 3:
        raise ValueError(
            f"the weights of layer {index} must have shape (H, T, S), or (1, H, T, S) for one sequence, "
            f"got {array.shape}; choose one sequence of a batch with weights[n]"
        )
    if 0 in array.shape:
        raise ValueError(f"the weights of layer {index} are empty: their shape (H, T, S) is {array.shape}")
    return array


def _check_values(index: int, layer: NDArray[np.float32]) -> None:
    if not np.isfinite(layer).all():
        raise ValueError(f"the weights of layer {index} hold NaN or infinity; draw weights after the softmax")
    low, total = float(layer.min()), float(layer.sum(axis=-1).max())
    if low < 0 or total > 1 + _ROUNDING:
        raise ValueError(
            f"the rows of layer {index} must be weights from 0 that add up to at most 1, "
            f"got a smallest weight of {low:.3g} and a largest sum of {total:.3g}; "
            "draw weights after the softmax"
        )


def _range(what: str, count: int) -> str:
    return f"there is 1 of the {what}, number 0" if count == 1 else f"the {what} are 0 … {count - 1}"
