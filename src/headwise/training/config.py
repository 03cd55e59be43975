"""What a run is made of: data, model and training, one documented field per decision.

Fields that act only beside another choice (`bpe_vocab_size`, `matrix_learning_rate`, …) default to None,
"what fits"; giving one where it would do nothing is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from headwise.model import PRESETS, ModelSettings

DEFAULT_PRESET = "gpt"

# What fits where a field is None.
BPE_VOCAB_SIZE = 1024
LEARNING_RATES = {"muon": 5e-3, "adamw": 3e-3}
MATRIX_LEARNING_RATE = 0.02
MATRIX_MOMENTUM = 0.95
WARMUP_STEPS = 50

_STRICT = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())


class DataConfig(BaseModel):
    """The text and how it becomes tokens."""

    model_config = _STRICT

    data: str = Field(
        "python-docs",
        min_length=1,
        description="Text to learn: a file, a folder, a glob, - for standard input, or one of the built-in "
        "python-docs, python-source, shakespeare.",
    )
    tokenizer: Literal["char", "bpe"] = Field(
        "char", description="One token per character, or byte-level BPE trained on the text."
    )
    bpe_vocab_size: int | None = Field(
        None,
        ge=256,
        description=f"Number of tokens that BPE training aims at; bpe only ({BPE_VOCAB_SIZE} if not given).",
    )
    validation_fraction: float | None = Field(
        None,
        ge=0.0,
        lt=1.0,
        description="Share of the text, at its end, kept from training; 0 for none (if not given a tenth, or "
        "none of a text too short for two parts).",
    )

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.bpe_vocab_size is not None and self.tokenizer != "bpe":
            raise ValueError(f"bpe_vocab_size={self.bpe_vocab_size} has no effect with tokenizer=char")
        return self

    @property
    def vocab_size(self) -> int:
        """The vocabulary that BPE training aims at (`char` takes what the text holds)."""
        return BPE_VOCAB_SIZE if self.bpe_vocab_size is None else self.bpe_vocab_size


class TrainingConfig(BaseModel):
    """The recipe: steps, optimizer, evaluation, checkpoints."""

    model_config = _STRICT

    batch_size: int = Field(12, ge=1, description="Windows of block_size tokens in one forward pass.")
    grad_accumulation: int = Field(
        1, ge=1, description="Forward passes whose gradients make one step; the step sees this many batches."
    )
    max_steps: int = Field(2000, ge=1, description="Optimizer steps; the schedule spans them.")
    optimizer: Literal["muon", "adamw"] = Field(
        "muon", description="muon: Muon for the layers' matrices, AdamW for the rest. adamw: AdamW for all."
    )
    learning_rate: float | None = Field(
        None,
        gt=0.0,
        description="Peak rate of AdamW; with muon that of embeddings, output layer, norms, biases "
        f"(if not given {' and '.join(f'{rate} with {name}' for name, rate in LEARNING_RATES.items())}).",
    )
    matrix_learning_rate: float | None = Field(
        None,
        gt=0.0,
        description="Peak rate of Muon for the layers' matrices; muon only "
        f"({MATRIX_LEARNING_RATE} if not given).",
    )
    matrix_momentum: float | None = Field(
        None,
        ge=0.0,
        lt=1.0,
        description=f"Nesterov momentum of Muon; muon only ({MATRIX_MOMENTUM} if not given).",
    )
    beta1: float = Field(0.9, ge=0.0, lt=1.0, description="AdamW's decay of the mean gradient.")
    beta2: float = Field(0.99, ge=0.0, lt=1.0, description="AdamW's decay of the mean squared gradient.")
    weight_decay: float = Field(
        0.1,
        ge=0.0,
        description="Decoupled decay of matrices, embeddings included; norms and biases have none.",
    )
    schedule: Literal["cosine", "linear", "constant"] = Field(
        "linear",
        description="Way of the learning rate from its peak, after warm-up, to its end at max_steps.",
    )
    final_learning_rate_ratio: float | None = Field(
        None, ge=0.0, le=1.0, description="Last rate over peak rate; not with constant (0 if not given)."
    )
    warmup_steps: int | None = Field(
        None,
        ge=0,
        description=f"Steps of linear rise to the peak rate (if not given {WARMUP_STEPS}, or a tenth of a "
        "shorter run).",
    )
    grad_clip: float = Field(1.0, ge=0.0, description="Largest norm of the whole gradient; 0 for no limit.")
    eval_every: int = Field(
        250, ge=1, description="Steps between evaluations on fixed validation batches; the best is kept."
    )
    eval_batches: int = Field(20, ge=1, description="Batches in such an evaluation.")
    checkpoint_every: int = Field(
        500, ge=1, description="Steps between checkpoints; a new best evaluation makes one as well."
    )
    keep_checkpoints: int = Field(2, ge=1, description="Newest checkpoints to keep.")
    early_stop_patience: int = Field(
        0, ge=0, description="Stop after this many evaluations in a row without a new best; 0 never."
    )
    seed: int = Field(0, ge=0, lt=2**63, description="Decides initial weights, order of the data, dropout.")
    device: str = Field(
        "auto", min_length=1, description="auto (CUDA, then MPS, then CPU), cpu, cuda, cuda:N or mps."
    )
    compile: bool = Field(False, description="Use torch.compile; where it fails, say why and go on without.")
    tensorboard: bool = Field(
        False, description="Also log for TensorBoard, to tensorboard/ in the run folder."
    )

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        problems = []
        if self.optimizer != "muon":
            problems += [
                f"{name}={getattr(self, name)} has no effect with optimizer={self.optimizer}"
                for name in ("matrix_learning_rate", "matrix_momentum")
                if getattr(self, name) is not None
            ]
        if self.schedule == "constant" and self.final_learning_rate_ratio is not None:
            problems.append(
                f"final_learning_rate_ratio={self.final_learning_rate_ratio} has no effect with "
                "schedule=constant"
            )
        if self.warmup_steps is not None and self.warmup_steps >= self.max_steps:
            problems.append(
                f"warmup_steps={self.warmup_steps} must be less than max_steps={self.max_steps}, "
                "or the peak rate is never reached"
            )
        if problems:
            raise ValueError("; ".join(problems))
        return self

    @property
    def about_evaluations(self) -> list[str]:
        """What is given, as `field=value`, for evaluations on held-out text; without such text it is idle."""
        names = ("eval_every", "eval_batches", "early_stop_patience")
        defaults = type(self).model_fields
        return [
            f"{name}={getattr(self, name)}" for name in names if getattr(self, name) != defaults[name].default
        ]

    @property
    def windows_per_step(self) -> int:
        """Windows of `block_size` tokens that one step learns from."""
        return self.batch_size * self.grad_accumulation

    @property
    def warmup(self) -> int:
        """`warmup_steps`, or what suits the length of the run."""
        return min(WARMUP_STEPS, self.max_steps // 10) if self.warmup_steps is None else self.warmup_steps

    @property
    def final_ratio(self) -> float:
        """`final_learning_rate_ratio`, or 0."""
        return 0.0 if self.final_learning_rate_ratio is None else self.final_learning_rate_ratio

    @property
    def peak_rate(self) -> float:
        """`learning_rate`, or what suits the optimizer."""
        return LEARNING_RATES[self.optimizer] if self.learning_rate is None else self.learning_rate

    @property
    def matrix_rate(self) -> float:
        """`matrix_learning_rate`, or its default."""
        return MATRIX_LEARNING_RATE if self.matrix_learning_rate is None else self.matrix_learning_rate

    @property
    def momentum(self) -> float:
        """`matrix_momentum`, or its default."""
        return MATRIX_MOMENTUM if self.matrix_momentum is None else self.matrix_momentum


class RunConfig(BaseModel):
    """All of a run. `model` starts from the preset; what is given for it replaces single fields.

    Raises:
        pydantic.ValidationError: (a ValueError) listing every problem in every section.
    """

    model_config = _STRICT

    preset: str = Field(
        DEFAULT_PRESET,
        description=f"Model to start from, one more idea each: {', '.join(PRESETS)}. "
        "The model options change single fields of it.",
    )
    data: DataConfig = DataConfig()
    model: ModelSettings = ModelSettings()
    training: TrainingConfig = TrainingConfig()

    @model_validator(mode="before")
    @classmethod
    def _start_from_preset(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        preset = values.get("preset", DEFAULT_PRESET)
        given = values.get("model", {})
        if preset in PRESETS and isinstance(given, Mapping):
            return {**values, "model": {**PRESETS[preset].model_dump(), **given}}
        return values

    @field_validator("preset")
    @classmethod
    def _known_preset(cls, preset: str) -> str:
        if preset not in PRESETS:
            raise ValueError(f"preset must be one of {', '.join(PRESETS)}; got {preset!r}")
        return preset

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        problems = []
        if self.data.validation_fraction == 0:
            problems += [
                f"{given} has no effect with validation_fraction=0"
                for given in self.training.about_evaluations
            ]
        if self.model.n_layer == 0:
            problems += [
                f"{name}={getattr(self.training, name)} has no effect with n_layer=0"
                for name in ("matrix_learning_rate", "matrix_momentum")
                if getattr(self.training, name) is not None
            ]
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def values(self) -> dict[str, Any]:
        """Field → value over all sections; the preset does not count, only the model it led to."""
        return {name: value for part in (self.data, self.model, self.training) for name, value in part}

    @classmethod
    def from_toml(cls, path: Path | str | None = None, overrides: Mapping[str, Any] | None = None) -> Self:
        """Read a TOML file (sections `[data]`, `[model]`, `[training]`; `preset` above them).

        Args:
            path: the file; None starts from the defaults.
            overrides: field name → value, replacing what the file says; names need no section.

        Raises:
            FileNotFoundError: no such file.
            ValueError: not TOML, or one text that lists every unknown field, wrong type, value out of range
                and contradiction.
        """
        from headwise.training.config_file import read_config

        return read_config(cls, path, overrides or {})

    def to_toml(self) -> str:
        """This configuration as TOML; of the model only what differs from the preset."""
        from headwise.training.config_file import write_config

        return write_config(self)
