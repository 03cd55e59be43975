"""headwise's own models as architectures, and back."""

from __future__ import annotations

from headwise.cost.architecture import Architecture, from_sizes
from headwise.model import GPTConfig


def from_config(config: GPTConfig, *, name: str = "headwise GPT") -> Architecture:
    """Return the architecture of a `GPT` with this configuration.

    Raises:
        ValueError: a layer has no heads left, which costs are not computed for.
    """
    c = config
    pairs = [c.heads_of(layer) for layer in range(c.n_layer)]
    if (0, 0) in pairs:
        raise ValueError(
            f"layer {pairs.index((0, 0))} of {name} has no heads left; costs are computed for layers of "
            "attention with at least one"
        )
    same = len(set(pairs)) < 2
    return from_sizes(
        c.d_model,
        c.n_head if same else [h for h, _ in pairs],
        n_layer=c.n_layer,
        n_kv_head=c.kv_heads if same else [g for _, g in pairs],
        d_head=c.head_width,
        d_ff=None if c.mlp == "none" else c.hidden_width,
        gated=c.mlp == "swiglu",
        vocab_size=c.vocab_size,
        tied=c.tied_embeddings,
        norm=c.norm,
        bias=c.bias,
        positions=c.block_size if c.position == "learned" else 0,
        output_projection=c.output_projection == "learned",
        rotary=c.position == "rotary",
        residual=c.residual,
        context=c.block_size,
        name=name,
    )


def to_config(architecture: Architecture) -> GPTConfig:
    """Return the configuration of a `GPT` of these sizes, so that it can be built and measured.

    Raises:
        ValueError: naming what headwise's own GPT has no counterpart for.
    """
    a = architecture
    problems = []
    kinds = {(layer.attention, layer.feed_forward) for layer in a.layers}
    if len(kinds) > 1:
        problems.append("layers that differ")
    if not a.layers:
        problems.append("no layers")
    for attention, part in kinds:
        problems += ["latent attention"] * (attention.latent is not None)
        problems += ["a sliding window"] * (attention.window is not None)
        problems += ["norms or sinks inside attention"] * (attention.extra > 0)
        problems += ["values of another width than keys"] * (attention.d_head != attention.d_value)
        problems += ["a mixture of experts"] * (part is not None and part.routed)
        biased = "qkvo" if attention.output_projection else "qkv"
        uniform = attention.biases in (frozenset(), frozenset(biased))
        same = part is None or part.bias == bool(attention.biases)
        problems += ["biases in some matrices only"] * (not (uniform and same))
    if problems:
        raise ValueError(_cannot_build(a.name, problems))
    (attention, part) = next(iter(kinds))
    config = GPTConfig(
        block_size=a.positions or a.context or 1024,
        n_layer=a.n_layer,
        n_head=attention.n_head,
        n_kv_head=attention.n_kv_head,
        d_model=a.d_model,
        d_head=attention.d_head,
        d_ff=None if part is None else part.d_ff,
        position="learned" if a.positions else "rotary" if a.rotary else "none",
        norm=a.norm,
        mlp="none" if part is None else "swiglu" if part.gated else "gelu",
        bias=bool(attention.biases),
        residual=a.residual,
        output_projection="learned" if attention.output_projection else "identity",
        tied_embeddings=a.tied,
        vocab_size=a.vocab_size or 256,
    )
    built = from_config(config)
    alike = (built.layers, built.final_norm_parameters, built.head_bias) == (
        a.layers,
        a.final_norm_parameters,
        a.head_bias,
    )
    if not alike:
        raise ValueError(_cannot_build(a.name, ["norms or biases of its own"]))
    return config


def _cannot_build(name: str, problems: list[str]) -> str:
    return (
        f"{name} has {', '.join(dict.fromkeys(problems))}, which headwise's own GPT cannot be built with; "
        "its costs are predicted without a measurement"
    )
