"""A model under study: the model, its tokenizer, and how to run it on texts.

Letters: B texts, T tokens.
"""

from __future__ import annotations

import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from headwise.hub.layers import AttentionLayer, attention_layers
from headwise.hub.tokens import TokenBatch
from headwise.model import GPT, load_model
from headwise.text import Tokenizer


class Subject(ABC):
    """A model under study. It is in eval mode."""

    name: str
    model: nn.Module
    causal: bool
    """Whether it predicts the next token of each position."""
    max_tokens: int | None
    """The most tokens it can read at once, None where there is no limit."""

    @cached_property
    def layers(self) -> list[AttentionLayer]:
        """Its layers of attention, in the order in which they run."""
        return attention_layers(self.model)

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, with the special tokens that its tokenizer adds."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""

    @abstractmethod
    def labels(self, ids: Sequence[int]) -> list[str]:
        """Return one readable label per token."""

    @property
    @abstractmethod
    def special_ids(self) -> frozenset[int]:
        """The ids of special tokens such as <s>, [CLS] and [SEP]."""

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """How many ids there are."""

    @abstractmethod
    def run(self, batch: TokenBatch) -> Tensor:
        """Return the logits (B, T, vocab) of a batch."""

    def batch(self, texts: Sequence[Sequence[int]]) -> TokenBatch:
        """Put token ids of texts side by side, padded on the right.

        Raises:
            ValueError: a text is empty or has more tokens than the model can read.
        """
        for number, text in enumerate(texts):
            if not text:
                raise ValueError(f"text {number} is empty; give each text at least one token")
            if self.max_tokens is not None and len(text) > self.max_tokens:
                raise ValueError(
                    f"text {number} has {len(text)} tokens but {self.name} reads at most {self.max_tokens}; "
                    "cut it into shorter texts"
                )
        longest = max(map(len, texts), default=0)
        rows = [[*text, *[0] * (longest - len(text))] for text in texts]
        ids = torch.tensor(rows, dtype=torch.int64, device=self.device).view(len(texts), longest)
        lengths = torch.tensor([len(text) for text in texts], device=self.device)
        real = torch.arange(longest, device=self.device) < lengths.unsqueeze(1)
        return TokenBatch(
            ids, real, self._among(ids, self.special_ids), self._among(ids, self.punctuation_ids)
        )

    def _among(self, ids: Tensor, which: frozenset[int]) -> Tensor:
        return torch.isin(ids, torch.tensor(sorted(which), dtype=torch.int64, device=ids.device))

    @cached_property
    def punctuation_ids(self) -> frozenset[int]:
        """The ids of tokens that hold punctuation and white space only, and some punctuation."""
        return frozenset(
            index
            for index in range(self.vocab_size)
            if index not in self.special_ids and _is_punctuation(self.decode([index]))
        )


def _is_punctuation(text: str) -> bool:
    return bool(text.strip()) and all(
        unicodedata.category(c).startswith("P") for c in text if not c.isspace()
    )


class OwnSubject(Subject):
    """A GPT of ours with its tokenizer."""

    causal = True

    def __init__(self, model: GPT, tokenizer: Tokenizer, name: str = "GPT") -> None:
        self.name = name
        self.gpt = model.eval()
        self.model = model
        self.tokenizer = tokenizer
        self.max_tokens = model.config.block_size
        self.vocab_size = model.config.vocab_size

    # values, so that they count as overriding the abstract properties
    special_ids: frozenset[int] = frozenset()
    vocab_size: int = 0

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(ids)

    def labels(self, ids: Sequence[int]) -> list[str]:
        return self.tokenizer.labels(ids)

    def run(self, batch: TokenBatch) -> Tensor:
        # padding stands after the last real token, and no query sees what comes after it
        logits: Tensor = self.gpt(batch.ids)
        return logits


def open_subject(source: Path | str, device: str | torch.device = "cpu") -> Subject:
    """Open a model folder of ours, or a Hugging Face folder or name.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: it holds no model that can be read.
    """
    model, tokenizer = load_model(source, device)
    return OwnSubject(model, tokenizer, str(source))
