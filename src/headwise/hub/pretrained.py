"""Models of transformers as subjects: texts encoded once, padding done right.

Letters: B texts, T tokens.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from headwise.hub.library import transformers
from headwise.hub.subject import Predicts, Subject
from headwise.hub.token_text import marks_continuation, token_bytes, token_text
from headwise.hub.tokens import TokenBatch
from headwise.text.labels import label


class PretrainedSubject(Subject):
    """A model of transformers with its tokenizer.

    A model with a head over the vocabulary gives logits; of any other, the bare model beneath it is run, and
    its last hidden states are given.
    """

    def __init__(self, model: Any, tokenizer: Any, name: str | None = None) -> None:
        """Raises as `Subject.of`."""
        library = transformers()
        kind = type(model).__name__
        if not isinstance(tokenizer, library.PreTrainedTokenizerBase):
            raise TypeError(
                f"{kind} needs a tokenizer of transformers, got {type(tokenizer).__name__}; "
                "load it with AutoTokenizer.from_pretrained"
            )
        if "decoder_input_ids" in inspect.signature(model.forward).parameters:
            raise ValueError(
                f"{kind} reads two texts, so it cannot be run on one; in Python, look at all of it with "
                "heads.pair_statistics(model, tokenizer, [(source, target)]), or study its encoder with "
                "Subject.of(model.get_encoder(), tokenizer)"
            )
        self.model = model
        self.pretrained = model
        self.stored_dtype = model.dtype
        self.tokenizer = tokenizer
        self.name = name or model.config.name_or_path or kind
        rows = model.get_input_embeddings().weight.shape[0]
        self.vocab_size = min(rows, len(tokenizer))
        self.special_ids = frozenset(tokenizer.all_special_ids) | {
            index for index, token in tokenizer.added_tokens_decoder.items() if token.special
        }
        self._padding_position = _padding_position(model)
        self.max_tokens = _max_tokens(model, self._padding_position)
        pad = self._padding_position if self._padding_position is not None else tokenizer.pad_token_id
        self.pad_id = pad if pad is not None and 0 <= pad < rows else 0

    @cached_property
    def predicts(self) -> Predicts:  # type: ignore[override]
        if self.pretrained.get_output_embeddings() is None:
            return "nothing"
        own = [layer for layer in self.layers if not layer.cross]
        return "next token" if all(layer.causal for layer in own) else "masked token"

    def encode(self, text: str) -> list[int]:
        if not text:
            return []
        ids = list(self.tokenizer(text, truncation=False, padding=False, verbose=False)["input_ids"])
        first = self.tokenizer.bos_token_id
        while first is not None and ids[:2] == [first, first]:  # the text brought its own
            del ids[0]
        return ids

    def encode_pair(self, first: str, second: str) -> tuple[list[int], int]:
        pair = self.tokenizer(first, second, truncation=False, padding=False, verbose=False)
        ids = list(pair["input_ids"])
        alone = len(self.encode(second))
        sides = pair.sequence_ids() if self.tokenizer.is_fast else [None] * (len(ids) - alone) + [1] * alone
        return ids, sides.index(1) if 1 in sides else len(ids)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))

    def labels(self, ids: Sequence[int]) -> list[str]:
        return [label(self._pieces[index]) for index in ids]

    def token_bytes(self, index: int) -> bytes:
        return self._pieces[index]

    def token_text(self, index: int) -> str:
        return token_text(self._pieces[index], self._continued)

    @cached_property
    def _pieces(self) -> list[bytes]:
        return token_bytes(self.tokenizer, self.vocab_size)

    @cached_property
    def _continued(self) -> bool:
        return marks_continuation(self.tokenizer)

    @cached_property
    def _runner(self) -> Any:
        return self.pretrained.base_model if self.predicts == "nothing" else self.pretrained

    @cached_property
    def _accepted(self) -> frozenset[str]:
        return frozenset(inspect.signature(self._runner.forward).parameters)

    @cached_property
    def _separator(self) -> int | None:
        """The token after which the second of two texts begins, for a model that is told which is which."""
        if "token_type_ids" not in self._accepted or getattr(self.model.config, "type_vocab_size", 1) < 2:
            return None
        pair = self.tokenizer("a", "a", truncation=False, padding=False, return_token_type_ids=True)
        types = list(pair.get("token_type_ids") or [])
        start = types.index(1) if 1 in types else 0
        if not start or types != [0] * start + [1] * (len(types) - start):
            return None
        before = int(pair["input_ids"][start - 1])
        return before if before in self.special_ids else None

    @property
    def pads_left(self) -> bool:
        # positions can be given, or are read off the padding, or only distances count
        return (
            "position_ids" in self._accepted
            or self._padding_position is not None
            or (self.max_tokens is None)
        )

    def forward(self, batch: TokenBatch) -> Tensor:
        inputs: dict[str, Any] = {"input_ids": batch.ids}
        if "use_cache" in self._accepted:
            inputs["use_cache"] = False  # nothing is generated, and keys and values of all layers are large
        if not bool(batch.real.all()):
            inputs["attention_mask"] = batch.real.long()
            if "position_ids" in self._accepted and self._padding_position is None:
                inputs["position_ids"] = (batch.real.cumsum(dim=1) - 1).clamp(min=0)
        if self._separator is not None:
            ends = batch.real & (batch.ids == self._separator)
            inputs["token_type_ids"] = (batch.real & (ends.cumsum(dim=1) > ends.long())).long()
        output = self._runner(**inputs)
        for name in ("logits", "prediction_logits", "last_hidden_state"):
            if name in output:
                given: Tensor = output[name]
                return given
        raise ValueError(f"{self.name} gives neither logits nor hidden states, but {', '.join(output)}")


def _padding_position(model: nn.Module) -> int | None:
    """Return the padding id from which models such as RoBERTa count their positions, None for the others."""
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            return module.padding_idx
    return None


def _max_tokens(model: Any, padding_position: int | None) -> int | None:
    most = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if not isinstance(most, int) or most <= 0:
        return None
    return most if padding_position is None else most - padding_position - 1
