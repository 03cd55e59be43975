"""The attention layers of a model: where they are, how many heads they have, what mixes their heads.

Letters: H query heads, G key/value heads, V width of a value, D width of the layer's output.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from headwise.attention import MultiHeadAttention


@dataclass(frozen=True, eq=False)
class AttentionLayer:
    """One layer of attention in a model."""

    index: int
    """Counted from 0, in the order in which the model runs them."""
    name: str
    """Where the module is in the model, as `model.get_submodule(name)` takes it."""
    module: nn.Module
    """What computes the attention of the layer."""
    n_head: int
    n_kv_head: int
    cross: bool
    """Whether keys and values come from another sequence."""
    o_proj: nn.Module
    """The output projection, or `nn.Identity` where there is none."""

    @property
    def output_weight(self) -> Tensor | None:
        """The weight W_O of the output projection as (D, H·V), as `nn.Linear` keeps it; None for none."""
        return self.o_proj.weight if isinstance(self.o_proj, nn.Linear) else None


def attention_layers(model: nn.Module) -> list[AttentionLayer]:
    """Return the attention layers of a model.

    Raises:
        ValueError: it has none that can be observed.
    """
    own = [(name, module) for name, module in model.named_modules() if isinstance(module, MultiHeadAttention)]
    if not own:
        raise ValueError(
            f"{type(model).__name__} has no attention that can be observed: neither headwise's nor that of a "
            "transformers model that goes through its attention interface"
        )
    return [
        AttentionLayer(
            index=index,
            name=name,
            module=module,
            n_head=module.n_head,
            n_kv_head=module.n_kv_head,
            cross=module.d_context != module.d_model,
            o_proj=module.o_proj,
        )
        for index, (name, module) in enumerate(own)
    ]
