"""Finding the attention layers of a transformers model by running it once on a few tokens.

What a model is made of cannot be told from names. So each layer's outputs are replaced by numbers that occur
nowhere else, and the linear layer that receives exactly them is its output projection.

Letters: B batch, H query heads, T queries, S keys, V width of a value.
"""

from __future__ import annotations

import inspect
import weakref
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from headwise.attention import attention
from headwise.hub.calls import AttentionCall
from headwise.hub.layers import AttentionLayer, UnknownProjection
from headwise.hub.library import transformers
from headwise.hub.listening import Heard, listening
from headwise.hub.modes import evaluating
from headwise.hub.translation import Translator, check_understood

_TOKENS = 5
_CONTEXT = 7
"""Another number of tokens for the encoder, so that cross-attention shows by its shape."""

Shape = tuple[tuple[str, tuple[int, ...]], ...]
_known: weakref.WeakKeyDictionary[nn.Module, tuple[Shape, list[AttentionLayer]]] = weakref.WeakKeyDictionary()


def discovered(model: nn.Module) -> list[AttentionLayer]:
    """Return the attention layers of a transformers model in running order.

    Names and indices are left for the caller to fill in.

    Raises:
        ValueError: it attends without transformers' interface, attends in a way of its own, or reads no
            token ids.
    """
    shape = tuple((name, tuple(p.shape)) for name, p in model.named_parameters())
    known = _known.get(model)
    modules = set(model.modules())
    if known is not None and known[0] == shape:
        used = {part for layer in known[1] for part in (layer.module, layer.o_proj)}
        if all(part in modules or isinstance(part, UnknownProjection) for part in used):
            return known[1]
    layers = [found.layer() for found in _dry_run(model, modules)]
    _known[model] = shape, layers
    return layers


@dataclass(eq=False)
class _Found:
    call: AttentionCall
    marker: Tensor
    """(B, T, H·V), what was put in the place of its outputs."""
    receivers: list[nn.Module] = field(default_factory=list)

    @property
    def causal(self) -> bool:
        mask, queries, keys = self.call.mask, self.call.q.shape[2], self.call.k.shape[2]
        return mask is not None and queries == keys and not bool(mask.to_tensor(queries, keys).triu(1).any())

    def layer(self) -> AttentionLayer:
        plain = len(self.receivers) == 1 and _is_plain(self.receivers[0])
        projection = self.receivers[0] if plain else UnknownProjection()
        return replace(self.call.layer, causal=self.causal, o_proj=projection)


def _dry_run(model: Any, modules: set[nn.Module]) -> list[_Found]:
    check_understood(model.config.get_text_config()._attn_implementation)
    found: list[_Found] = []
    translator = Translator()
    generator = torch.Generator().manual_seed(0)

    def listen(heard: Heard, out: Tensor) -> Tensor:
        batch, heads, queries, width = out.shape
        layer = AttentionLayer(
            index=len(found),
            name="",
            module=heard.module,
            n_head=heads,
            n_kv_head=heard.k.shape[1],
            d_head=heard.q.shape[3],
            d_value=width,
            cross=queries != heard.k.shape[2],
            causal=None,
            o_proj=UnknownProjection(),
        )
        call = translator.call(layer, heard)
        _check_ordinary(model, call)
        numbers = torch.randn(batch, queries, heads, width, generator=generator)
        marker = numbers.to(device=out.device, dtype=out.dtype)
        found.append(_Found(call, marker.flatten(2)))
        return marker.transpose(1, 2)

    def receive(module: nn.Module, args: tuple[Any, ...]) -> None:
        if found and args and isinstance(args[0], Tensor) and _same(args[0], found[-1].marker):
            found[-1].receivers.append(module)

    with ExitStack() as stack:
        stack.enter_context(listening(tuple(modules), listen))
        for module in modules:
            if _is_linear(module):
                stack.callback(module.register_forward_pre_hook(receive).remove)
        stack.enter_context(evaluating(model))
        stack.enter_context(torch.no_grad())
        model(**_inputs(model))
    if not found:
        raise ValueError(
            f"{type(model).__name__} has no attention that goes through transformers' attention interface, "
            "so no heads of it can be observed; load a version of the model that uses it "
            '(attn_implementation="sdpa" helps where options such as reorder_and_upcast_attn bypass it)'
        )
    return found


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def _is_plain(module: nn.Module) -> bool:
    """Whether the module multiplies by its weight and does nothing else; quantised ones do not."""
    return type(module).forward is nn.Linear.forward or type(module) is transformers().pytorch_utils.Conv1D


def _same(received: Tensor, marker: Tensor) -> bool:
    if received.numel() != marker.numel() or received.shape[-1] != marker.shape[-1]:
        return False
    return torch.equal(received.reshape(marker.shape), marker.to(received))


def _check_ordinary(model: nn.Module, call: AttentionCall) -> None:
    """Raise ValueError unless the heads gave what the arguments, as we read them, ask for."""
    wanted = attention(
        call.q.float(),
        call.k.float(),
        call.v.float(),
        mask=call.mask,
        bias=None if call.bias is None else call.bias.float(),
        scale=call.scale,
        softcap=call.softcap,
        sink=None if call.sink is None else call.sink.float(),
    )
    if not bool(torch.isfinite(call.out).all() and torch.isfinite(wanted).all()):
        raise ValueError(
            f"the heads of {type(call.layer.module).__name__} give numbers that are not finite (NaN or "
            "infinite) on plain tokens: the weights are damaged, or too large for their dtype"
        )
    tolerance = 1e-3 if call.out.dtype == torch.float32 else 5e-2
    close = wanted.shape == call.out.shape and torch.allclose(
        wanted, call.out.float(), rtol=tolerance, atol=tolerance * float(wanted.abs().max())
    )
    if not close:
        raise ValueError(
            f"{type(model).__name__} attends in a way of its own ({type(call.layer.module).__name__}): not "
            "the softmax of scaled products, bias and mask times the values, so it would be misread"
        )


def _inputs(model: Any) -> dict[str, Any]:
    """Return a few tokens in the form that the model reads."""
    if model.main_input_name != "input_ids":
        raise ValueError(
            f"{type(model).__name__} reads {model.main_input_name}, not token ids; only models of text "
            "can be observed"
        )
    accepted = inspect.signature(model.forward).parameters
    config = model.config.get_text_config()
    two = "decoder_input_ids" in accepted
    inputs: dict[str, Any] = {"input_ids": _ids(model, _CONTEXT if two else _TOKENS)}
    if "attention_mask" in accepted:
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    if "use_cache" in accepted:
        inputs["use_cache"] = False
    if two:
        inputs["decoder_input_ids"] = _ids(model, _TOKENS)
    elif getattr(config, "add_cross_attention", False):
        embeddings = model.get_input_embeddings().weight
        inputs["encoder_hidden_states"] = embeddings.new_ones(1, _CONTEXT, config.hidden_size)
    return inputs


def _ids(model: Any, count: int) -> Tensor:
    """Return token ids (1, count), none of them padding, the end of a text at the end."""
    config = model.config.get_text_config()
    rows = model.get_input_embeddings().weight.shape[0]
    end = getattr(config, "eos_token_id", None)
    plain = [i for i in range(min(rows, count + 3)) if i not in (getattr(config, "pad_token_id", None), end)]
    ids = [plain[i % len(plain)] for i in range(count)]
    if isinstance(end, int) and 0 <= end < rows:
        ids[-1] = end  # some heads read the text there
    return torch.tensor([ids], dtype=torch.int64, device=model.device)
