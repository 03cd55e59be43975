"""The attention layers of a model: where they are, how many heads they have, what mixes their heads.

Letters: H query heads, G key/value heads, K width of a query and key, V width of a value, D width of the
layer's output.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor, nn

from headwise.attention import MultiHeadAttention
from headwise.hub.library import pretrained_parts
from headwise.model.heads import NoHeads


@dataclass(frozen=True, eq=False)
class AttentionLayer:
    """One layer of attention in a model."""

    index: int
    """Counted from 0, in the order in which the model runs them; layers that have lost all heads count."""
    name: str
    """Where the module is in the model, as `model.get_submodule(name)` takes it."""
    module: nn.Module
    """What computes the attention of the layer. Layers may share one, as in ALBERT."""
    n_head: int
    n_kv_head: int
    d_head: int
    d_value: int
    cross: bool
    """Whether keys and values come from another sequence. A module of ours that may do either says so with
    each call."""
    causal: bool | None
    """Whether no query sees a later key; None where each call has a mask of its own (ours)."""
    o_proj: nn.Module
    """The output projection; `nn.Identity` where heads are not mixed, `UnknownProjection` where it is not
    known what mixes them."""

    @property
    def output_weight(self) -> Tensor | None:
        """The weight W_O of the output projection as (D, H·V), as `nn.Linear` keeps it.

        None where heads are not mixed, and where it is not known what mixes them.
        """
        weight = getattr(self.o_proj, "weight", None)
        if not isinstance(weight, Tensor):
            return None
        return weight if isinstance(self.o_proj, nn.Linear) else weight.T  # Conv1D keeps (H·V, D)

    @property
    def output_bias(self) -> Tensor | None:
        """The bias b_O of the output projection, (D,), or None."""
        bias = getattr(self.o_proj, "bias", None)
        return bias if isinstance(bias, Tensor) else None


class UnknownProjection(nn.Module):
    """Stands for an output projection that is no plain product with one matrix.

    So it is with adapters (`merge_and_unload()` merges them), with quantised weights, and where a model gates
    or normalises its heads' outputs before it mixes them. It is no part of the model.
    """


def attention_layers(model: nn.Module) -> list[AttentionLayer]:
    """Return the attention layers of a model, ours or of transformers.

    Layers of ours come in the order in which they are registered; those that have lost all their heads are
    there with n_head = 0, so that a layer of a GPT has the number of its block. Those of a transformers model
    are found by running it once on a few tokens (in eval mode, without gradients; remembered until its shape
    changes). The model's own hooks see that run too. Layers that mix tokens in other ways, such as linear
    attention in a hybrid model, are not among them.

    Raises:
        ValueError: it has none that can be observed; the text says why.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a module of PyTorch, got {type(model).__name__}")
    _refuse_what_runs_copies(model)
    layers = [_own(name, module) for name, module in model.named_modules() if _is_own(module)]
    names: dict[nn.Module, str] = {}
    for part in pretrained_parts(model):
        from headwise.hub.discovery import discovered

        names = names or {module: name for name, module in model.named_modules()}
        layers += [replace(layer, name=names[layer.module]) for layer in discovered(part)]
    if layers and not any(layer.n_head for layer in layers):
        raise ValueError(
            f"all layers of {type(model).__name__} have lost their heads; there is none to observe"
        )
    if not layers:
        raise ValueError(
            f"{type(model).__name__} has no attention that can be observed: neither headwise's "
            "MultiHeadAttention nor a whole model of transformers; build it from the one, or give the other"
        )
    return [replace(layer, index=index) for index, layer in enumerate(layers)]


def _refuse_what_runs_copies(model: nn.Module) -> None:
    """Raise ValueError where other code or other modules would run than those that are looked at."""
    compiled = any(
        "_orig_mod" in module._modules or module._compiled_call_impl is not None for module in model.modules()
    )
    if compiled and pretrained_parts(model):
        raise ValueError(
            f"{type(model).__name__} was compiled, and compiled code of transformers cannot be looked into; "
            "give the model as it was before torch.compile, and run that"
        )
    if any(isinstance(module, nn.DataParallel) for module in model.modules()):
        raise ValueError(
            "nn.DataParallel runs copies of the model, which cannot be looked into; give the model that it "
            "wraps, model.module, and run that"
        )


def _is_own(module: nn.Module) -> bool:
    return isinstance(module, (MultiHeadAttention, NoHeads))


def _own(name: str, module: nn.Module) -> AttentionLayer:
    if isinstance(module, NoHeads):
        return AttentionLayer(
            0, name, module, 0, 0, 0, 0, cross=False, causal=None, o_proj=UnknownProjection()
        )
    if not isinstance(module, MultiHeadAttention):
        raise TypeError(f"{name} is not headwise's attention but {type(module).__name__}")
    return AttentionLayer(
        index=0,
        name=name,
        module=module,
        n_head=module.n_head,
        n_kv_head=module.n_kv_head,
        d_head=module.d_head,
        d_value=module.d_value,
        cross=module.d_context != module.d_model,
        causal=None,
        o_proj=module.o_proj,
    )
