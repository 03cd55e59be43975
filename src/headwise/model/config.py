"""What a model is made of: one field per decision, checked together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from headwise.attention.counts import counts_that_fit


class ModelSettings(BaseModel):
    """The shape of a GPT, except its vocabulary, which the tokenizer decides.

    Raises:
        pydantic.ValidationError: (a ValueError) listing every field that is unknown, out of range or at
            odds with another.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    block_size: int = Field(64, ge=1, description="Longest context, in tokens.")
    n_layer: int = Field(4, ge=0, le=10_000, description="Number of layers; 0 leaves a bigram model.")
    n_head: int = Field(4, ge=1, description="Number of query heads in each layer.")
    n_kv_head: int | None = Field(
        None, ge=1, description="Number of key/value heads (GQA; 1 is MQA). Default: as many as query heads."
    )
    d_model: int = Field(128, ge=1, description="Width of the model.")
    d_head: int | None = Field(None, ge=1, description="Width of a head. Default: d_model / n_head.")
    d_ff: int | None = Field(
        None,
        ge=1,
        description="Hidden width of the feed-forward part. Default: 4·d_model for gelu; 8/3·d_model, "
        "rounded up to a multiple of 8, for swiglu, which costs the same.",
    )
    position: Literal["none", "learned", "rotary"] = Field("rotary", description="How order is told.")
    rope_base: float = Field(
        10_000.0, gt=0.0, description="How slowly the slowest rotary angles turn; longer contexts need more."
    )
    norm: Literal["none", "layer", "rms"] = Field("rms", description="Normalisation before each part.")
    norm_eps: float = Field(1e-5, gt=0.0, description="What norms add to the variance.")
    mlp: Literal["none", "gelu", "swiglu"] = Field("swiglu", description="Feed-forward part of each layer.")
    residual: bool = Field(True, description="Add each part to its input instead of replacing it.")
    bias: bool = Field(False, description="Biases in projections, feed-forward and layer norms.")
    output_projection: Literal["learned", "identity"] = Field(
        "learned", description="W_O, which mixes the heads; identity leaves them side by side."
    )
    tied_embeddings: bool = Field(True, description="The output layer reuses the token embedding.")
    dropout: float = Field(0.0, ge=0.0, lt=1.0, description="Dropout probability.")

    @property
    def head_width(self) -> int:
        """`d_head`, or what `d_model` and `n_head` make of it."""
        return self.d_head or self.d_model // self.n_head

    @property
    def kv_heads(self) -> int:
        """`n_kv_head`, or as many as query heads."""
        return self.n_kv_head or self.n_head

    @property
    def hidden_width(self) -> int:
        """`d_ff`, or the default of the chosen feed-forward part."""
        if self.d_ff is not None:
            return self.d_ff
        return 4 * self.d_model if self.mlp == "gelu" else -(-8 * self.d_model // (3 * 8)) * 8

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        problems = []
        if self.d_head is None and self.d_model % self.n_head:
            problems.append(
                f"d_model={self.d_model} cannot be divided among n_head={self.n_head} heads; "
                f"head counts that fit: {counts_that_fit(self.d_model, self.n_head)} (or set d_head)"
            )
        if self.n_head % self.kv_heads:
            problems.append(
                f"n_head={self.n_head} query heads cannot share n_kv_head={self.n_kv_head} key/value heads "
                f"evenly; counts that fit: {counts_that_fit(self.n_head, self.kv_heads)}"
            )
        if self.output_projection == "identity" and self.n_head * self.head_width != self.d_model:
            problems.append(
                f"output_projection=identity needs n_head·d_head = d_model, "
                f"got {self.n_head}·{self.head_width} and {self.d_model}"
            )
        if self.position != "rotary" and self.rope_base != 10_000.0:
            problems.append(f"rope_base={self.rope_base:g} has no effect with position={self.position}")
        if self.norm == "none" and self.norm_eps != 1e-5:
            problems.append(f"norm_eps={self.norm_eps:g} has no effect with norm=none")
        if self.n_layer == 0:
            problems += self._idle_without_layers()
        else:
            if self.position == "rotary" and self.head_width % 2 and not problems:
                problems.append(f"rotary positions need an even d_head, got {self.head_width}")
            if self.mlp == "none" and self.d_ff is not None:
                problems.append(f"d_ff={self.d_ff} has no effect with mlp=none")
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def _idle_without_layers(self) -> list[str]:
        fields = ["n_head", "n_kv_head", "d_head", "d_ff", "mlp", "residual", "output_projection"]
        if self.norm != "layer":  # the last norm is there without layers too
            fields.append("bias")
        idle = [n for n in fields if getattr(self, n) != type(self).model_fields[n].default]
        if self.position == "rotary":
            idle.append("position=rotary")
        return [f"n_layer=0 leaves nothing for {', '.join(idle)} to act on"] if idle else []


class GPTConfig(ModelSettings):
    """`ModelSettings` and the number of tokens in the vocabulary."""

    vocab_size: int = Field(ge=1, description="Number of different tokens.")
    layer_heads: tuple[tuple[int, int], ...] | None = Field(
        None,
        description="Query heads and key/value heads of each layer, where surgery made the layers differ; "
        "0, 0 for a layer without any. They stand in place of n_head and n_kv_head, which then say what the "
        "model had before.",
    )

    def heads_of(self, layer: int) -> tuple[int, int]:
        """Return the numbers of query heads and of key/value heads of a layer, counted from 0."""
        return (self.n_head, self.kv_heads) if self.layer_heads is None else self.layer_heads[layer]

    def with_heads(self, counts: Sequence[tuple[int, int]]) -> GPTConfig:
        """Return the config of this model with so many query heads and key/value heads in each layer."""
        if list(counts) == [self.heads_of(layer) for layer in range(self.n_layer)]:
            return self
        values = self.model_dump() | {"d_head": self.head_width, "layer_heads": None}
        first = counts[0]
        if all(pair == first for pair in counts) and first[0]:
            values |= {"n_head": first[0], "n_kv_head": first[1] if first[1] != first[0] else None}
        else:
            values["layer_heads"] = tuple(counts)
        return GPTConfig.model_validate(values)

    @model_validator(mode="after")
    def _check_layer_heads(self) -> Self:
        if self.layer_heads is None:
            return self
        problems = []
        if len(self.layer_heads) != self.n_layer:
            problems.append(f"layer_heads names {len(self.layer_heads)} layers of n_layer={self.n_layer}")
        problems += [
            f"layer_heads gives layer {layer} {h} query heads and {g} key/value heads, "
            "wanted are a multiple of them, or 0 and 0"
            for layer, (h, g) in enumerate(self.layer_heads)
            if min(h, g) < 0 or (h == 0) != (g == 0) or (g and h % g)
        ]
        if self.d_head is None:
            problems.append("layer_heads needs d_head, which no number of heads tells")
        if self.output_projection == "identity":
            problems.append("layer_heads needs output_projection=learned")
        if problems:
            raise ValueError("; ".join(problems))
        return self


# Each rung adds one idea to the one before; the last two are the modern and the classic whole.
PRESETS: dict[str, ModelSettings] = {
    # The next token from this token alone.
    "bigram": ModelSettings(n_layer=0, position="none", norm="none", tied_embeddings=False),
    # One head looks back; its output replaces the token.
    "single-head": ModelSettings(
        n_layer=1,
        n_head=1,
        position="learned",
        norm="none",
        mlp="none",
        residual=False,
        tied_embeddings=False,
    ),
    # Several narrower heads look at several places; W_O mixes them.
    "multi-head": ModelSettings(
        n_layer=1, position="learned", norm="none", mlp="none", residual=False, tied_embeddings=False
    ),
    # What heads find is added to the token instead of replacing it, so layers can be stacked.
    "residual": ModelSettings(position="learned", norm="none", mlp="none", tied_embeddings=False),
    # Norms keep the sums in range; a feed-forward part works on what the heads brought.
    "block": ModelSettings(position="learned", norm="layer", mlp="gelu", tied_embeddings=False),
    # Rotary positions, RMS norm, SwiGLU, tied embeddings: what Llama-shaped classes hold.
    "gpt": ModelSettings(),
    # Learned positions, layer norm, GELU, biases, tied embeddings: what GPT-2 classes hold.
    "gpt2": ModelSettings(position="learned", norm="layer", mlp="gelu", bias=True),
}
