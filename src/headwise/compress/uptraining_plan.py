"""What an uptraining is made of: what the user says, what fits where nothing is said, and the text.

Letters: T tokens of a window.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, cast

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from headwise.compress.uptraining import RATE_SHARE, uptraining_recipe
from headwise.files import replacing_folder, write_text
from headwise.hub.origin import origin_of
from headwise.hub.subject import OwnSubject, Subject
from headwise.text import Corpus, TokenFile, open_corpus, open_prepared, write_tokens
from headwise.text.tokenizer import Unknown
from headwise.training.checkpoint import file_hash
from headwise.training.config import LEARNING_RATES, MATRIX_LEARNING_RATE, TrainingConfig
from headwise.training.config_file import described
from headwise.training.run_folder import RunFolder
from headwise.training.trainer import Material

Control = Literal["parent", "scratch"]

SHARE = 0.05
ROW = 512
STOCK_BATCH = 4
STOCK_RATE = 6e-4
"""Peak rate of AdamW from a random start, for models of transformers."""

SETTINGS, TEXT = "uptrain.json", "text"

_MAY_CHANGE = frozenset({"parent", "device", "controls"})
_KEPT_OF_THE_PARENT = (
    "batch_size",
    "grad_accumulation",
    "beta1",
    "beta2",
    "weight_decay",
    "grad_clip",
)


class UptrainConfig(BaseModel):
    """What a user says about an uptraining; None is what fits.

    Raises:
        pydantic.ValidationError: (a ValueError) listing every problem.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    parent: str | None = None
    """Folder or name of the model that the child was made of."""
    share: float | None = Field(None, gt=0, le=1)
    """Of the tokens that the parent was trained on."""
    tokens: int | None = Field(None, ge=1)
    kl: float = Field(1.0, ge=0)
    data: str | None = None
    unknown: Unknown = "error"
    held_out: int = Field(20_000, ge=2)
    """Most tokens of `data`, at its end, to measure on; never more than a tenth."""
    length: int | None = Field(None, ge=1)
    evaluations: int = Field(10, ge=1)
    controls: frozenset[Control] = frozenset()
    """`parent`: the parent trained on by cross-entropy with the same recipe; `scratch`: the child's shape
    from random weights by cross-entropy at the parent's own rate. Both on as many tokens."""
    optimizer: Literal["muon", "adamw"] | None = None
    learning_rate: float | None = Field(None, gt=0)
    matrix_learning_rate: float | None = Field(None, gt=0)
    warmup_steps: int | None = Field(None, ge=0)
    batch_size: int | None = Field(None, ge=1)
    grad_accumulation: int | None = Field(None, ge=1)
    seed: int = Field(0, ge=0, lt=2**63)
    device: str = "auto"

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.share is not None and self.tokens is not None:
            raise ValueError(f"give either share or tokens, got {self.share} and {self.tokens}")
        return self

    @classmethod
    def of(cls, values: dict[str, Any]) -> Self:
        """Make one of what is given; raises ValueError in one sentence for each problem."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise ValueError("; ".join(described(detail) for detail in error.errors())) from None

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Return what the uptraining in a folder was begun with.

        Raises:
            FileNotFoundError: there is none.
            ValueError: it is damaged.
        """
        path = folder / SETTINGS
        if not path.is_file():
            raise FileNotFoundError(f"there is no uptraining to resume in {folder} (it has no {SETTINGS})")
        try:
            return cls.model_validate_json(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path} is damaged: {error}") from error

    def write(self, folder: Path) -> None:
        """Keep this in a folder."""
        write_text(folder / SETTINGS, self.model_dump_json(indent=2) + "\n")

    def resumed_with(self, given: UptrainConfig) -> UptrainConfig:
        """Return these settings with what may change taken over from `given`; controls are added.

        Raises:
            ValueError: something else is given that differs; names all of it.
        """
        changed = [
            f"{name} from {getattr(self, name)} to {getattr(given, name)}"
            for name in sorted(given.model_fields_set - _MAY_CHANGE)
            if getattr(given, name) != getattr(self, name)
        ]
        if changed:
            raise ValueError(
                f"a resumed uptraining cannot change {', '.join(changed)}; leave it as it was, or begin a "
                "new one in another folder"
            )
        free = {name: getattr(given, name) for name in given.model_fields_set & _MAY_CHANGE}
        return self.model_copy(update=free | {"controls": self.controls | given.controls})


@dataclass(frozen=True)
class Vocabulary:
    """The tokenizer of a model of any make, as token files know it."""

    vocab_size: int
    hash: str

    @classmethod
    def of(cls, subject: Subject) -> Vocabulary:
        """Return what tells the tokenizer of a model from others."""
        if isinstance(subject, OwnSubject):
            return cls(subject.vocab_size, subject.tokenizer.hash)
        entries = sorted(cast(Any, subject).tokenizer.get_vocab().items())
        return cls(subject.vocab_size, hashlib.sha256(json.dumps(entries).encode()).hexdigest())


def parent_of(child: str, config: UptrainConfig) -> str:
    """Return the folder or name of the parent.

    Raises:
        ValueError: nobody says it; it is the child.
    """
    parent = config.parent or origin_of(child)
    if parent is None:
        raise ValueError(
            f"{child} does not say which model it was made of; give it with --parent (headwise group and "
            "headwise prune keep it)"
        )
    if parent == child or (Path(parent).exists() and Path(child).exists() and Path(parent).samefile(child)):
        raise ValueError(
            f"{parent} is both child and parent; give the model that the child was made of as --parent"
        )
    return parent


def wanted_tokens(parent: str, config: UptrainConfig) -> tuple[int, int | None]:
    """Return how many tokens to learn from, and how many the parent did, if that is known.

    Raises:
        ValueError: a share of a number that is not known.
    """
    original = RunFolder(parent).tokens_trained()
    if config.tokens is not None:
        return config.tokens, original
    if original is None:
        raise ValueError(
            f"{parent} does not say how many tokens it was trained on, as a run of headwise does, so a share "
            "of them is not known; give --tokens N"
        )
    return max(1, round((SHARE if config.share is None else config.share) * original)), original


def window(subject: Subject, config: UptrainConfig) -> int:
    """Return the tokens of a window.

    Raises:
        ValueError: more than the model can read.
    """
    limit = subject.max_tokens
    usual = limit if isinstance(subject, OwnSubject) and limit else min(ROW, limit or ROW)
    length = usual if config.length is None else config.length
    if limit is not None and length > limit:
        raise ValueError(f"length must be at most {limit}, which {subject.name} can read, got {length}")
    return length


def recipes(
    config: UptrainConfig, parent: str, own: bool, tokens: int, length: int
) -> tuple[TrainingConfig, TrainingConfig]:
    """Return the recipe of the uptraining, and that of the control from random weights.

    Both are the parent's own where it is a run. Uptraining has a lower peak rate and takes over what the
    user says of rates.

    Raises:
        ValueError: a field out of range.
    """
    folder = RunFolder(parent)
    before = folder.read_config().training if folder.config.is_file() else None
    values: dict[str, Any] = {}
    if before is not None:
        values = {name: getattr(before, name) for name in _KEPT_OF_THE_PARENT}
    optimizer = config.optimizer or (before.optimizer if before else "muon" if own else "adamw")
    values["optimizer"] = optimizer
    if before is not None and before.optimizer == optimizer:
        peak, matrix = before.peak_rate, before.matrix_rate
        values["matrix_momentum"] = before.matrix_momentum
    else:
        peak = LEARNING_RATES[optimizer] if own else STOCK_RATE
        matrix = MATRIX_LEARNING_RATE
    if before is None and not own:
        values["batch_size"] = STOCK_BATCH
    values |= {
        name: value
        for name in ("batch_size", "grad_accumulation")
        if (value := getattr(config, name)) is not None
    }
    size = int(values.get("batch_size", TrainingConfig().batch_size)) * int(
        values.get("grad_accumulation", 1)
    )
    values |= {"seed": config.seed, "warmup_steps": config.warmup_steps, "keep_checkpoints": 1}
    steps = uptraining_recipe(tokens, size * length).max_steps
    every = max(1, steps // config.evaluations)
    values |= {"eval_every": every, "checkpoint_every": every}

    def recipe(factor: float, given: UptrainConfig) -> TrainingConfig:
        rates = {"learning_rate": given.learning_rate or factor * peak}
        matrix_rate = given.matrix_learning_rate
        if optimizer == "muon":
            matrix_rate = matrix_rate or factor * matrix
        return uptraining_recipe(
            tokens, size * length, **values | rates | {"matrix_learning_rate": matrix_rate}
        )

    return recipe(RATE_SHARE, config), recipe(1.0, UptrainConfig())


def own_text(parent: str, vocabulary: Vocabulary, length: int) -> Material | None:
    """Return the tokens that the parent was trained on and those it was measured on, None if it is no run.

    Raises:
        ValueError: they are damaged or of another tokenizer; nothing was held out.
    """
    folder = RunFolder(parent).tokens
    if not folder.is_dir():
        return None
    prepared = open_prepared(folder)
    if prepared.tokenizer.hash != vocabulary.hash:
        raise ValueError(f"the tokens in {folder} are of another tokenizer; give a text with --data")
    if prepared.validation is None:
        raise ValueError(f"the run in {parent} held out no text to measure on; give a text with --data")
    return _material(prepared.train, prepared.validation, length)


def read_text(subject: Subject, corpus: Corpus, config: UptrainConfig, length: int) -> tuple[_Ids, _Ids]:
    """Return the tokens of a text to learn from, and those at its end to measure on.

    Raises:
        ValueError: as `Corpus.chunks` and `Subject.encode`; too few tokens for a window of each.
    """
    parts = [np.asarray(subject.encode(chunk), dtype=np.int64) for chunk in corpus.chunks()]
    ids = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
    held_out = min(config.held_out, len(ids) // 10)
    if len(ids) - held_out < length + 1 or held_out < 2:
        raise ValueError(
            f"{corpus.name} has {len(ids):,} tokens, of which {held_out:,} are held out to measure on; a "
            f"window takes {length + 1} and measuring 2, so give more text"
        )
    return ids[:-held_out], ids[-held_out:]


_Ids = npt.NDArray[np.int64]


def write_material(folder: Path, parts: tuple[_Ids, _Ids], vocabulary: Vocabulary) -> None:
    """Keep the tokens of a text in the folder of an uptraining, all or nothing."""
    with replacing_folder(folder / TEXT) as temporary:
        for name, ids in zip(("train", "validation"), parts, strict=True):
            write_tokens(temporary / f"{name}.tokens", [ids], vocabulary)


def kept_material(folder: Path, vocabulary: Vocabulary, length: int) -> Material | None:
    """Return what `write_material` kept, None if there is nothing.

    Raises:
        ValueError: it is damaged or of another tokenizer.
    """
    if not (folder / TEXT).is_dir():
        return None
    files = [TokenFile(folder / TEXT / f"{name}.tokens", vocabulary) for name in ("train", "validation")]
    return _material(files[0], files[1], length)


def open_text(config: UptrainConfig) -> Corpus:
    """Return the text that the user names.

    Raises:
        ValueError: none is named; as `open_corpus`.
    """
    if config.data is None:
        raise ValueError(
            "there is no text to learn from, as the parent's folder does not hold the tokens that it was "
            "trained on; give the text that it learned, or some like it, with --data"
        )
    return open_corpus(config.data)


def _material(train: TokenFile, validation: TokenFile, length: int) -> Material:
    if train.count < length + 1:
        raise ValueError(f"{train.path} has {train.count} tokens, and a window takes {length + 1}")
    hashes = {"training tokens": file_hash(train.path), "validation tokens": file_hash(validation.path)}
    return Material(train, validation, length, hashes)
