"""A model under study: the model, its tokenizer, and how to run it on texts.

Letters: B texts, T tokens, D width of the model.
"""

from __future__ import annotations

import json
import operator
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from headwise.hub.dtypes import stored_dtype
from headwise.hub.layers import AttentionLayer, attention_layers
from headwise.hub.library import pretrained_parts
from headwise.hub.modes import evaluating
from headwise.hub.tokens import TokenBatch
from headwise.model import GPT, load_model
from headwise.model.folder import FORMAT
from headwise.text import Tokenizer
from headwise.text.tokenizer import Unknown, UnknownCharactersError, describe_unknown

Side = Literal["right", "left"]
Predicts = Literal["next token", "masked token", "nothing"]


class Subject(ABC):
    """A model under study with its tokenizer.

    `run` puts the model into eval mode and afterwards back into the mode it was in; whoever runs it without
    `run` does the same with `hub.evaluating(model)`.
    """

    name: str
    model: nn.Module
    tokenizer: Any
    predicts: Predicts
    """What `run` gives scores for; with "nothing" it gives the hidden states of a model without a head."""
    max_tokens: int | None
    """The most tokens it can read at once, None where there is no limit."""
    vocab_size: int
    """How many ids there are: those with a token and an embedding."""
    special_ids: frozenset[int]
    """The ids of special tokens such as <s>, [CLS] and [SEP]."""
    stored_dtype: torch.dtype
    """Of the weights where it came from, whatever it computes in; what is made of it is written in this."""
    pad_id: int
    """What stands where a text is padded; the model never sees it."""

    @staticmethod
    def of(model: nn.Module, tokenizer: Any, name: str | None = None) -> Subject:
        """Return a model in memory as a subject: a `GPT` with its `Tokenizer`, or both from transformers.

        Raises:
            TypeError: the two do not go together, or the model is neither.
            ValueError: an encoder–decoder, whose two texts `run` could not tell apart.
        """
        if isinstance(model, GPT):
            if not isinstance(tokenizer, Tokenizer):
                raise TypeError(
                    f"a GPT needs the Tokenizer it was trained with, got {type(tokenizer).__name__}"
                )
            return OwnSubject(model, tokenizer, name or "GPT")
        if pretrained_parts(model) != [model]:
            raise TypeError(
                f"a subject is a GPT or a model of transformers, got {type(model).__name__}; "
                "heads.observe(model) works with any module that has such attention"
            )
        from headwise.hub.pretrained import PretrainedSubject

        return PretrainedSubject(model, tokenizer, name)

    def with_model(self, model: nn.Module) -> Subject:
        """Return another model with this one's tokenizer and name, such as a smaller one made of it."""
        made = Subject.of(model, self.tokenizer, self.name)
        made.stored_dtype = self.stored_dtype
        return made

    @property
    def causal(self) -> bool:
        """Whether it predicts the next token of each position."""
        return self.predicts == "next token"

    @cached_property
    def layers(self) -> list[AttentionLayer]:
        """Its layers of attention, in the order in which they run."""
        return attention_layers(self.model)

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, with the special tokens that its tokenizer adds; none for no text."""

    def encode_pair(self, first: str, second: str) -> tuple[list[int], int]:
        """Return the ids of two texts that are read together, and where the second begins."""
        ids = self.encode(first)
        return ids + self.encode(second), len(ids)

    def plain_ids(self, text: str) -> list[int]:
        """Return the ids of a text without special tokens."""
        return [index for index in self.encode(text) if index not in self.special_ids]

    def opening_ids(self) -> list[int]:
        """Return the special tokens that the tokenizer puts in front of a text."""
        ids = self.encode("a") if self.special_ids else []
        return list(takewhile(lambda index: index in self.special_ids, ids))

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""

    @abstractmethod
    def labels(self, ids: Sequence[int]) -> list[str]:
        """Return one readable label per token."""

    @abstractmethod
    def token_bytes(self, index: int) -> bytes:
        """Return the UTF-8 bytes of one token, perhaps only a part of a character."""

    @abstractmethod
    def token_text(self, index: int) -> str:
        """Return the text of one token; what is only a part of a character becomes U+FFFD."""

    @abstractmethod
    def forward(self, batch: TokenBatch) -> Tensor:
        """Do what `run` does, in the mode in which the model is."""

    def run(self, batch: TokenBatch) -> Tensor:
        """Return the logits (B, T, vocabulary) of a batch, or hidden states (B, T, D): see `predicts`.

        The model runs in eval mode. Gradients are recorded unless the caller switches them off.
        """
        with evaluating(self.model):
            return self.forward(batch)

    @property
    def pads_left(self) -> bool:
        """Whether texts may be padded on the left without changing what the model makes of them."""
        return True

    def batch(self, texts: Sequence[Sequence[int]], padding: Side = "right") -> TokenBatch:
        """Put token ids of texts side by side.

        padding: the side on which shorter texts are filled up. What the model makes of a text does not
            depend on it.

        Raises:
            TypeError: ids that are no whole numbers.
            ValueError: no text, an empty one, one with more tokens than the model can read or with an id that
                it does not know; or a side that the model cannot be padded on.
        """
        if padding not in get_args(Side):
            raise ValueError(f"padding must be 'right' or 'left', got {padding!r}")
        if not texts:
            raise ValueError("there are no texts; give at least one")
        for number, text in enumerate(texts):
            self._check(number, text)
        longest = max(map(len, texts))
        if padding == "left" and not self.pads_left and min(map(len, texts)) < longest:
            raise ValueError(
                f"{self.name} counts positions from the left end whatever stands there, so it cannot be "
                "padded on the left; use padding='right'"
            )
        left = padding == "left"
        rows = []
        for text in texts:
            fill = [self.pad_id] * (longest - len(text))
            rows.append([*fill, *text] if left else [*text, *fill])
        ids = torch.tensor(rows, dtype=torch.int64, device=self.device)
        missing = torch.tensor([longest - len(text) for text in texts], device=self.device).unsqueeze(1)
        position = torch.arange(longest, device=self.device)
        real = position >= missing if left else position < longest - missing
        return TokenBatch(
            ids, real, real & _among(ids, self.special_ids), real & _among(ids, self.punctuation_ids)
        )

    def _check(self, number: int, text: Sequence[int]) -> None:
        if not text:
            raise ValueError(f"text {number} is empty; give each text at least one token")
        whole_numbers(number, text)
        if self.max_tokens is not None and len(text) > self.max_tokens:
            raise ValueError(
                f"text {number} has {len(text)} tokens but {self.name} reads at most {self.max_tokens}; "
                "cut it into shorter texts"
            )
        if not 0 <= min(text) <= max(text) < self.vocab_size:
            raise ValueError(
                f"text {number} holds ids from {min(text)} to {max(text)}, but those of {self.name} run from "
                f"0 to {self.vocab_size - 1}; encode it with the model's own tokenizer"
            )

    @cached_property
    def punctuation_ids(self) -> frozenset[int]:
        """The ids of tokens that hold punctuation and white space only, and some punctuation."""
        return frozenset(
            index
            for index in range(self.vocab_size)
            if index not in self.special_ids and _is_punctuation(self.token_text(index))
        )


def whole_numbers(number: int, ids: Sequence[int]) -> list[int]:
    """Return the ids of a text as Python's own numbers; raise TypeError for what is no whole number."""
    found = []
    for index in ids:
        try:
            found.append(operator.index(index))
        except TypeError as error:
            raise TypeError(f"text {number} holds {index!r}; ids of tokens are whole numbers") from error
    return found


def _among(ids: Tensor, which: frozenset[int]) -> Tensor:
    return torch.isin(ids, torch.tensor(sorted(which), dtype=torch.int64, device=ids.device))


def _is_punctuation(text: str) -> bool:
    return bool(text.strip()) and all(
        unicodedata.category(c).startswith("P") for c in text if not c.isspace()
    )


class OwnSubject(Subject):
    """A GPT of ours with its tokenizer."""

    tokenizer: Tokenizer
    predicts: Predicts = "next token"

    def __init__(self, model: GPT, tokenizer: Tokenizer, name: str = "GPT") -> None:
        if tokenizer.vocab_size != model.config.vocab_size:
            raise ValueError(
                f"the tokenizer has {tokenizer.vocab_size} tokens but the model {model.config.vocab_size}; "
                "give the one it was trained with"
            )
        self.name = name
        self.gpt = model
        self.model = model
        self.stored_dtype = next(model.parameters()).dtype
        self.tokenizer = tokenizer
        self.max_tokens = model.config.block_size
        self.special_ids = frozenset()
        self.vocab_size = model.config.vocab_size
        self.pad_id = 0
        self.unknown: Unknown = "error"
        """What `encode` does with characters that the tokenizer does not know."""

    def encode(self, text: str) -> list[int]:
        try:
            return self.tokenizer.encode(text, unknown=self.unknown)
        except UnknownCharactersError as error:
            raise ValueError(
                f"{describe_unknown(error.places)}; {self.name} never saw them in training: give text of the "
                "kind that it was trained on, or leave them out with unknown='skip' (--unknown skip)"
            ) from error

    def with_model(self, model: nn.Module) -> Subject:
        made = super().with_model(model)
        if isinstance(made, OwnSubject):
            made.unknown = self.unknown
        return made

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(ids)

    def labels(self, ids: Sequence[int]) -> list[str]:
        return self.tokenizer.labels(ids)

    def token_bytes(self, index: int) -> bytes:
        return self.tokenizer.token_bytes(index)

    def token_text(self, index: int) -> str:
        return self.tokenizer.decode([index])

    @property
    def pads_left(self) -> bool:
        return False  # its mask hides what comes later, and nothing else

    def forward(self, batch: TokenBatch) -> Tensor:
        # padding stands after the last real token, and no query sees what comes after it
        logits: Tensor = self.gpt(batch.ids)
        return logits


def most_tokens(subjects: Iterable[Subject]) -> int | None:
    """Return the most tokens that each of several models can read at once, None where there is no limit."""
    return min((s.max_tokens for s in subjects if s.max_tokens is not None), default=None)


def require_subject(given: object, name: str = "subject") -> None:
    """Raise TypeError unless this is a subject; name: of the argument."""
    if not isinstance(given, Subject):
        raise TypeError(
            f"{name} must be a hub.Subject, got {type(given).__name__}; open one with "
            "hub.open_subject(folder), or put a model and its tokenizer together with "
            "hub.Subject.of(model, tokenizer)"
        )


def require_causal(subject: Subject, why: str) -> None:
    """Raise ValueError for a model that does not predict the next token, such as an encoder; why: what that
    hinders, as the end of the sentence."""
    if not subject.causal:
        raise ValueError(f"{subject.name} does not predict the next token, {why}")


def open_subject(
    source: Path | str, device: str | torch.device = "cpu", dtype: torch.dtype | None = None
) -> Subject:
    """Open a model folder of ours, or a Hugging Face folder or name.

    A name such as "openai-community/gpt2" is looked for in Hugging Face's cache first and downloaded if it is
    not there. Nothing but safetensors weights is read, and no code from a repository is run.

    dtype: of the weights; default float32 on the CPU, elsewhere that in which they are stored.

    Raises:
        FileNotFoundError: there is no such folder, and no such name in reach.
        ValueError: it holds no model that can be read; the text says why and what to do.
    """
    if not str(source).strip():
        raise ValueError(
            "a model is named by a folder or a name of Hugging Face, got ''; give . for this folder"
        )
    folder = Path(source)
    if not _is_hugging_face(folder, str(source)):
        model, tokenizer = load_model(folder, device)
        subject = OwnSubject(model if dtype is None else model.to(dtype), tokenizer, str(source))
        subject.stored_dtype = stored_dtype(folder) or subject.stored_dtype
        return subject
    from headwise.hub.opening import open_pretrained

    if dtype is None and torch.device(device).type == "cpu":
        dtype = torch.float32
    return open_pretrained(str(source), device, dtype)


def _is_hugging_face(folder: Path, source: str) -> bool:
    """Whether this is to be read by transformers; what is neither is left to `load_model` to complain of."""
    config = folder / "config.json"
    if folder.exists():
        try:
            found = json.loads(config.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        return isinstance(found, dict) and found.get("format") != FORMAT and "model_type" in found
    parts = source.split("/")
    return len(parts) <= 2 and all(parts) and not source.startswith((".", "~")) and "\\" not in source
