"""The language model: token embedding → layers of attention → scores for the next token."""

from __future__ import annotations

from typing import Literal, overload

import torch
from torch import Tensor, nn

from headwise.attention import KVCache, Mask, Rotary
from headwise.model.blocks import Block, make_norm
from headwise.model.config import GPTConfig


class GPT(nn.Module):
    """A decoder-only transformer; which ideas it is made of is `config`'s choice.

    Weights start as in GPT-2 (Radford et al. 2019): normal with deviation 0.02, and projections that
    write into the residual stream divided by sqrt(2·n_layer). Without a residual stream the signal has to
    pass through every matrix, so each keeps its variance: deviation 1/sqrt(inputs) (LeCun et al. 1998).
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.position_embedding = (
            nn.Embedding(config.block_size, config.d_model) if config.position == "learned" else None
        )
        self.embedding_dropout = nn.Dropout(config.dropout)
        rotary = Rotary(config.head_width, config.rope_base) if config.position == "rotary" else None
        self.blocks = nn.ModuleList(
            Block(config, rotary, config.heads_of(layer)) for layer in range(config.n_layer)
        )
        self.final_norm = make_norm(config)
        self.head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self._initialise()
        if config.tied_embeddings:
            self.head.weight = self.token_embedding.weight

    def _initialise(self) -> None:
        residual = self.config.residual
        for module in self.modules():
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=0.02 if residual else 1.0)
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02 if residual else module.in_features**-0.5)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        if residual:
            for name, parameter in self.named_parameters():
                if name.endswith(("o_proj.weight", "down_proj.weight")):
                    nn.init.normal_(parameter, std=0.02 / (2 * self.config.n_layer) ** 0.5)

    @overload
    def forward(
        self, ids: Tensor, *, cache: KVCache | None = None, return_weights: Literal[False] = False
    ) -> Tensor: ...
    @overload
    def forward(
        self, ids: Tensor, *, cache: KVCache | None = None, return_weights: Literal[True]
    ) -> tuple[Tensor, list[Tensor]]: ...
    def forward(
        self, ids: Tensor, *, cache: KVCache | None = None, return_weights: bool = False
    ) -> Tensor | tuple[Tensor, list[Tensor]]:
        """Scores for the token after each position.

        Args:
            ids: `(B, T)` int64 token ids.
            cache: keys and values of the tokens before `ids`; appended to.
            return_weights: also return each layer's attention weights, `(B, H, T, S)`.

        Returns:
            Logits `(B, T, vocab_size)`; with `return_weights` a pair of logits and a list, one per layer.

        Raises:
            ValueError: ids on another device, outside the vocabulary, or more than `block_size`; a cache of
                another number of layers or sequences.
            TypeError: ids that are not whole numbers.
        """
        past = 0 if cache is None else cache.length
        self._check(ids, cache)
        x = self.token_embedding(ids)  # (B, T, D)
        if self.position_embedding is not None:
            x = x + self.position_embedding.weight[past : past + ids.shape[1]]
        x = self.embedding_dropout(x)
        mask = Mask.causal()
        all_weights: list[Tensor] = []
        for index, block in enumerate(self.blocks):
            x, weights = block(x, mask, None if cache is None else cache.layer(index), return_weights)
            if weights is not None:
                all_weights.append(weights)
        logits: Tensor = self.head(self.final_norm(x))  # (B, T, vocab)
        return (logits, all_weights) if return_weights else logits

    def _check(self, ids: Tensor, cache: KVCache | None) -> None:
        if ids.dtype != torch.int64:
            raise TypeError(f"ids must be int64 token ids, got {ids.dtype}; convert with ids.long()")
        if ids.ndim != 2:
            raise ValueError(f"ids must have shape (B, T), got {tuple(ids.shape)}")
        if cache is not None:
            self._check_cache(ids, cache)
        past = 0 if cache is None else cache.length
        if past + ids.shape[1] > self.config.block_size:
            held = f" after {past} cached" if past else ""
            raise ValueError(
                f"{ids.shape[1]} tokens{held} exceed block_size={self.config.block_size}; "
                "give the model at most that many (generate() keeps the last block_size by itself)"
            )
        device = self.token_embedding.weight.device
        if ids.device != device:
            raise ValueError(f"ids are on {ids.device} but the model is on {device}; move one with .to(...)")
        if torch.compiler.is_compiling() or ids.numel() == 0 or device.type == "meta":
            return
        low, high = (int(v) for v in torch.aminmax(ids))
        if low < 0 or high >= self.config.vocab_size:
            raise ValueError(
                f"ids must lie in 0 … {self.config.vocab_size - 1} (the vocabulary), got {low} … {high}; "
                "encode the text with the model's own tokenizer"
            )

    def _check_cache(self, ids: Tensor, cache: KVCache) -> None:
        """Raise before any layer is written, so that a cache that does not fit stays as it is."""
        if len(cache.layers) != self.config.n_layer:
            raise ValueError(
                f"cache has {len(cache.layers)} layers and the model {self.config.n_layer}; "
                "make it with model.new_cache()"
            )
        if cache.batch != ids.shape[0]:
            swapped = "; ids look time first, (T, B): give ids.T" if cache.batch == ids.shape[1] else ""
            raise ValueError(f"ids hold {ids.shape[0]} sequences and cache {cache.batch}{swapped}")
        lengths = [layer.length for layer in cache.layers]
        if min(lengths) != max(lengths):
            raise ValueError(
                f"the layers of cache hold {min(lengths)} … {max(lengths)} positions, as after a call that "
                "was broken off; reset() it and read the text again"
            )

    def new_cache(self, batch: int = 1, capacity: int | None = None) -> KVCache:
        """An empty cache for `batch` sequences of up to `capacity` tokens (default: `block_size`)."""
        weight = self.token_embedding.weight
        return KVCache(
            self.config.n_layer,
            batch,
            [self.config.heads_of(layer)[1] for layer in range(self.config.n_layer)],
            self.config.block_size if capacity is None else capacity,
            self.config.head_width,
            dtype=weight.dtype,
            device=weight.device,
        )

    def num_parameters(self) -> int:
        """Number of different parameters; tied embeddings count once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def parameters_by_part(self) -> dict[str, int]:
        """Parameters of each kind of part; the values add up to `num_parameters()`."""

        def count(*modules: nn.Module | None) -> int:
            return sum(p.numel() for m in modules if m is not None for p in m.parameters())

        blocks = [block for block in self.blocks if isinstance(block, Block)]
        norms = [m for m in self.modules() if isinstance(m, nn.LayerNorm | nn.RMSNorm)]
        parts = {
            "token embedding": count(self.token_embedding),
            "position embedding": count(self.position_embedding),
            "attention": count(*(block.attention for block in blocks)),
            "feed-forward": count(*(block.mlp for block in blocks)),
            "norms": count(*norms),
            "output layer": 0 if self.config.tied_embeddings else count(self.head),
        }
        return {part: number for part, number in parts.items() if number}
