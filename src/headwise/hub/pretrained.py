"""Models of transformers as subjects: opened without running foreign code, run with padding done right.

Letters: B texts, T tokens.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headwise.hub.library import transformers
from headwise.hub.subject import Predicts, Subject
from headwise.hub.token_text import marks_continuation, token_bytes, token_text
from headwise.hub.tokens import TokenBatch
from headwise.text.labels import label

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.txt",
    "vocab.json",
    "spiece.model",
    "sentencepiece.bpe.model",
    "source.spm",
    "tekken.json",
)


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
                f"{kind} reads two texts, so it cannot be run on one; study its encoder with "
                "Subject.of(model.get_encoder(), tokenizer), or both parts with heads.observe(model) while "
                "you run it yourself"
            )
        self.model = model
        self.pretrained = model
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

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))

    def labels(self, ids: Sequence[int]) -> list[str]:
        return [label(self._pieces[index]) for index in ids]

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

    @property
    def pads_left(self) -> bool:
        # positions can be given, or are read off the padding, or only distances count
        return (
            "position_ids" in self._accepted
            or self._padding_position is not None
            or (self.max_tokens is None)
        )

    def forward(self, batch: TokenBatch) -> Tensor:
        inputs = {"input_ids": batch.ids}
        if not bool(batch.real.all()):
            inputs["attention_mask"] = batch.real.long()
            if "position_ids" in self._accepted and self._padding_position is None:
                inputs["position_ids"] = (batch.real.cumsum(dim=1) - 1).clamp(min=0)
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


def open_pretrained(source: str, device: str | torch.device, dtype: torch.dtype | None) -> Subject:
    """Open a Hugging Face folder or name; raises as `open_subject`."""
    library = transformers()
    here = Path(source).is_dir()
    with _quietly(library):
        config, cached = _config(library, source, here)
        _refuse_quantised(config, source)
        kind = _model_class(library, config, source)
        options = {"local_files_only": here or cached}
        try:
            model, loaded = kind.from_pretrained(
                source,
                config=config,
                dtype="auto" if dtype is None else dtype,
                use_safetensors=True,
                output_loading_info=True,
                **options,
            )
        except OSError as error:
            raise ValueError(
                f"{source} has no weights in safetensors files that can be read ({_line(error)}); other "
                "formats run code when they are read, so convert them first"
            ) from error
        missing = sorted(name for name in loaded["missing_keys"] if "pooler" not in name)
        if missing:
            raise ValueError(
                f"the weights of {source} lack {', '.join(missing[:3])}{' and more' * (len(missing) > 3)}, "
                f"which {kind.__name__} has; config.json and weights must come from the same model"
            )
        tokenizer = _tokenizer(library, source, here, options)
    return PretrainedSubject(model.to(device).eval(), tokenizer, source)


def _config(library: Any, source: str, here: bool) -> tuple[Any, bool]:
    """Return the configuration, and whether it was in the cache."""
    for cached in (True,) if here else (True, False):
        try:
            config = library.AutoConfig.from_pretrained(
                source, trust_remote_code=False, local_files_only=cached
            )
        except OSError as error:
            problem = error
        except (ValueError, KeyError) as error:
            if "remote_code" in str(error) or "auto_map" in _raw_config(source):
                raise ValueError(
                    f"{source} needs code from its repository, which headwise does not run; load it yourself "
                    "with trust_remote_code=True and use hub.Subject.of(model, tokenizer)"
                ) from error
            raise ValueError(f"{source} cannot be read by transformers: {_line(error)}") from error
        else:
            return config, cached
    raise FileNotFoundError(
        f"there is no folder {source}, and no model of that name could be had from Hugging Face "
        f"({_line(problem)}); check the name and the connection"
    ) from problem


def _raw_config(source: str) -> dict[str, Any]:
    path = Path(source) / "config.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found if isinstance(found, dict) else {}


def _refuse_quantised(config: Any, source: str) -> None:
    quantised = getattr(config, "quantization_config", None)
    if quantised is None:
        return
    method = quantised.get("quant_method") if isinstance(quantised, dict) else quantised.quant_method
    raise ValueError(
        f"{source} holds weights quantised with {method}, in which no head has a W_O that could be read; "
        "open the original model, or load it yourself and look at its attention with heads.observe(model)"
    )


def _model_class(library: Any, config: Any, source: str) -> Any:
    """Return the class that the checkpoint was saved from."""
    for name in config.architectures or ():
        kind = getattr(library, name, None)
        if isinstance(kind, type) and issubclass(kind, library.PreTrainedModel):
            return kind
    if config.architectures:
        raise ValueError(
            f"{source} is a {config.architectures[0]}, which transformers {library.__version__} does not "
            "know; install a newer one, or load it yourself and use hub.Subject.of(model, tokenizer)"
        )
    return library.AutoModel


def _tokenizer(library: Any, source: str, here: bool, options: dict[str, Any]) -> Any:
    advice = "put its tokenizer.json there, or load one yourself and use hub.Subject.of(model, tokenizer)"
    if here and not any((Path(source) / name).is_file() for name in _TOKENIZER_FILES):
        raise ValueError(f"{source} has no tokenizer; {advice}")
    try:
        tokenizer = library.AutoTokenizer.from_pretrained(source, trust_remote_code=False, **options)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ValueError(f"the tokenizer of {source} cannot be read ({_line(error)}); {advice}") from error
    return tokenizer


@contextmanager
def _quietly(library: Any) -> Iterator[None]:
    """Keep the library from drawing progress bars over ours."""
    logging = library.utils.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _line(error: BaseException) -> str:
    """Return the first line of what an error says."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
