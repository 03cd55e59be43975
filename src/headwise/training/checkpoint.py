"""Checkpoints: all that exact resume needs, written whole or not at all, checked when read.

`checkpoints/step-000123/` holds `model.safetensors`, `optimizer.safetensors` and `state.json`; the latter
carries the checksums of the others and of itself.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from headwise.files import replacing_folder, write_json
from headwise.model.folder import save_weights, write_tensors
from headwise.training.optimizer import Optimizer

FORMAT = "headwise-checkpoint"
VERSION = 1
MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"


class NonFiniteError(ValueError):
    """A loss, gradient or weight became infinite or not a number."""


@dataclass
class TrainingState:
    """How far a run has come: with weights and optimizer, all that its next step depends on."""

    step: int = 0
    """Optimizer steps done."""
    position: int = 0
    """Training windows consumed."""
    best_step: int = 0
    best_loss: float | None = None
    """Lowest loss on the fixed validation batches; None before the first evaluation."""
    stale: int = 0
    """Evaluations since the best one."""
    loss_sum: float = 0.0
    loss_count: int = 0
    """Training losses since the last evaluation."""
    overfit_told: bool = False
    """The warning is given once."""
    seconds: float = 0.0
    """Time spent in steps."""
    random: dict[str, str] = field(default_factory=dict)
    """States of the random generators, base64, as of this step."""
    identity: dict[str, str] = field(default_factory=dict)
    """Hashes of tokenizer and token files, which must not change under a run."""


def save_checkpoint(
    folder: Path, progress: TrainingState, model: nn.Module, optimizer: Optimizer, *, keep: int
) -> Path:
    """Write `folder/step-…` and drop all but the newest `keep`.

    Raises:
        OSError: it could not be written; what was there before is untouched.
        NonFiniteError: a weight is not finite; such a model is not worth keeping.
    """
    if not all(bool(parameter.isfinite().all()) for parameter in model.parameters()):
        raise NonFiniteError(f"the weights after step {progress.step} are not finite")
    path = folder / f"step-{progress.step:06d}"
    with replacing_folder(path) as temporary:
        save_weights(temporary / MODEL, model)
        write_tensors(temporary / OPTIMIZER, optimizer.state())
        content = {"format": FORMAT, "version": VERSION, "progress": asdict(progress)}
        content["files"] = {name: file_hash(temporary / name) for name in (MODEL, OPTIMIZER)}
        write_json(temporary / STATE, content | {"sha256": _content_hash(content)})
    for old in _numbered(folder)[:-keep]:
        shutil.rmtree(old)
    return path


def newest_checkpoint(folder: Path, tell: Callable[[str], None]) -> tuple[Path, TrainingState] | None:
    """The newest checkpoint that is whole; None if there is none at all.

    A damaged one is told of and put aside as `step-….damaged`.

    Raises:
        ValueError: there are checkpoints but none is whole.
    """
    problems = []
    for path in reversed(_numbered(folder)):
        try:
            progress = _read_progress(path)
        except (ValueError, OSError) as error:
            problems.append(f"{path.name}: {error}")
            continue
        for problem in problems:
            tell(f"checkpoint {problem}; it is put aside and the run goes on from {path.name}")
            _put_aside(folder / problem.partition(":")[0])
        return path, progress
    if problems:
        raise ValueError(f"no checkpoint in {folder} can be used ({'; '.join(problems)}); start a new run")
    return None


def load_optimizer(checkpoint: Path, optimizer: Optimizer) -> None:
    """Fill `optimizer` with the state in a checkpoint that `newest_checkpoint` found.

    Raises:
        ValueError: the state of another model or optimizer.
    """
    optimizer.load_state(load_file(checkpoint / OPTIMIZER))


def random_state(device: torch.device) -> dict[str, str]:
    """The states of the generators that dropout draws from."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    if device.type == "mps":
        states["mps"] = torch.mps.get_rng_state()
    return {name: base64.b64encode(state.numpy().tobytes()).decode() for name, state in states.items()}


def restore_random_state(states: Mapping[str, str], device: torch.device) -> None:
    """Undo what has been drawn since `random_state`; a device that was not in use then keeps its own."""
    tensors = {
        name: torch.frombuffer(bytearray(base64.b64decode(state)), dtype=torch.uint8)
        for name, state in states.items()
    }
    torch.set_rng_state(tensors["cpu"])
    if device.type == "cuda" and "cuda" in tensors:
        torch.cuda.set_rng_state(tensors["cuda"], device)
    if device.type == "mps" and "mps" in tensors:
        torch.mps.set_rng_state(tensors["mps"])


def file_hash(path: Path) -> str:
    """The sha256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _numbered(folder: Path) -> list[Path]:
    """The checkpoint folders, oldest first; half-written ones have other names."""
    found = [path for path in folder.glob("step-*") if re.fullmatch(r"step-\d+", path.name)]
    return sorted(found, key=lambda path: int(path.name.removeprefix("step-")))


def _put_aside(path: Path) -> None:
    aside = path.with_name(f"{path.name}.damaged")
    shutil.rmtree(aside, ignore_errors=True)
    path.rename(aside)


def _read_progress(path: Path) -> TrainingState:
    try:
        content: dict[str, Any] = json.loads((path / STATE).read_text(encoding="utf-8"))
    except ValueError:  # not UTF-8 or not JSON
        raise ValueError(f"{STATE} is damaged") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{STATE} is not that of a headwise checkpoint")
    if content.get("version") != VERSION:
        raise ValueError(f"it has version {content.get('version')}; this headwise reads version {VERSION}")
    if content.pop("sha256", None) != _content_hash(content):
        raise ValueError(f"{STATE} does not match its own checksum")
    for name, expected in content["files"].items():
        if not (path / name).is_file():
            raise ValueError(f"{name} is missing")
        if file_hash(path / name) != expected:
            raise ValueError(f"{name} does not match its checksum")
    return TrainingState(**content["progress"])


def _content_hash(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
