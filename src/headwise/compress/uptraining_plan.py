"""What fits an uptraining where its config says nothing: parent, tokens, window and recipes.

Letters: T tokens of a window.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headwise.compress.rows import ROW
from headwise.compress.uptraining import RATE_SHARE, uptraining_recipe
from headwise.compress.uptraining_config import UptrainConfig
from headwise.hub.origin import is_gone, teacher_of
from headwise.hub.subject import OwnSubject, Subject
from headwise.training.config import LEARNING_RATES, MATRIX_LEARNING_RATE, TrainingConfig
from headwise.training.run_folder import RunFolder

SHARE = 0.05
STOCK_BATCH = 4
STOCK_RATE = 6e-4
"""Peak rate of AdamW from a random start, for models of transformers."""

_KEPT_OF_THE_PARENT = (
    "batch_size",
    "grad_accumulation",
    "beta1",
    "beta2",
    "weight_decay",
    "grad_clip",
)


def parent_of(child: str, config: UptrainConfig) -> str:
    """Return the folder or name of the parent.

    Raises:
        ValueError: nobody says it; it is the child.
    """
    parent = teacher_of(child) if config.parent is None else config.parent
    if parent is None:
        what = child if Path(child).exists() else f"there is no folder {child}, and a model of that name"
        raise ValueError(
            f"{what} does not say which model it was made of; give it with --parent (headwise group and "
            "headwise prune keep it)"
        )
    if config.parent is None and is_gone(child):
        raise ValueError(
            f"{child} was made of {parent}, and there is no such folder any more; give the model that it was "
            "made of as --parent"
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
