"""The folder of a run: what lies where, who may begin or resume in it, and its result.

| name | what |
| --- | --- |
| `config.json`, `model.safetensors`, `tokenizer.json` | the model with the best validation loss so far |
| `config.toml` | the run's configuration |
| `metrics.jsonl` | every step and evaluation |
| `result.json` | the outcome, once finished |
| `checkpoints/`, `tokens/` | what resume needs |
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwise.files import write_json, write_text
from headwise.training.config import RunConfig
from headwise.training.metrics import read_metrics

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# These may change between the parts of a run; all others decide what is computed from the first step on.
CHANGEABLE = frozenset(
    {
        "max_steps",
        "eval_every",
        "checkpoint_every",
        "keep_checkpoints",
        "early_stop_patience",
        "device",
        "compile",
        "tensorboard",
    }
)


@dataclass(frozen=True)
class TrainResult:
    """The outcome of a run."""

    folder: Path
    val_loss: float | None
    """Of the best weights over the whole validation split, in nats per token; None without a split."""
    bits_per_byte: float | None
    """The same per byte of text, which compares across tokenizers."""
    validation_tokens: int
    best_step: int
    steps: int
    stopped_early: bool
    parameters: int
    tokens: int
    """Tokens learned from."""
    seconds: float
    """Time spent in steps, evaluations and checkpoints not counted."""
    tokens_per_second: float | None
    device: str
    text_hash: str
    """The sha256 of the whole text."""

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return dataclasses.asdict(self) | {"folder": str(self.folder)}


class RunFolder:
    """The paths of a run in `path`."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.config = self.path / "config.toml"
        self.tokens = self.path / "tokens"
        self.checkpoints = self.path / "checkpoints"
        self.result = self.path / "result.json"

    def check_free(self) -> None:
        """Refuse a folder in which a new run would overwrite something.

        Raises:
            ValueError: it already holds a run or a model, or is a file.
        """
        taken = ("config.toml", "config.json", "model.safetensors", "checkpoints", "metrics.jsonl")
        found = [name for name in taken if (self.path / name).exists()]
        if "config.toml" in found:
            raise ValueError(
                f"{self.path} already holds a run; continue it with --resume or choose another --out"
            )
        if found:
            raise ValueError(f"{self.path} already holds {found[0]}; choose another --out")
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{self.path} is a file; --out names a folder")

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other processes from training in the folder, where the system has locks; none outlives us.

        Raises:
            ValueError: another process trains in it.
        """
        if fcntl is None:
            yield
            return
        self.path.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(
                    f"another process is training in {self.path}; wait for it or choose another --out"
                ) from None
            except OSError:  # a file system without locks
                pass
            yield
        finally:
            os.close(handle)

    def check_resumable(self, config: RunConfig) -> list[str]:
        """Compare `config` with that of the run; returns a sentence for each allowed change.

        Raises:
            FileNotFoundError: no run here.
            ValueError: a field is changed that must stay; names all of them.
        """
        before, after = self.read_config().values(), config.values()
        changed = {
            name: f"{name} from {old} to {after[name]}" for name, old in before.items() if old != after[name]
        }
        fixed = [text for name, text in changed.items() if name not in CHANGEABLE]
        if fixed:
            raise ValueError(
                f"a resumed run cannot change {', '.join(fixed)} (only {', '.join(sorted(CHANGEABLE))}); "
                "leave it as it was or start a new run"
            )
        return [f"changed: {text}" for text in changed.values()]

    def read_config(self) -> RunConfig:
        """The configuration of the run here.

        Raises:
            FileNotFoundError: no run here.
        """
        if not self.config.is_file():
            raise FileNotFoundError(f"there is no run to resume in {self.path} (it has no config.toml)")
        return RunConfig.from_toml(self.config)

    def write_config(self, config: RunConfig) -> None:
        """Keep `config` as the run's own."""
        write_text(self.config, config.to_toml())

    def write_result(self, result: TrainResult) -> None:
        """Keep the outcome."""
        write_json(self.result, result.to_json())

    def read_result(self) -> TrainResult | None:
        """The outcome of the run here; None if it is not finished.

        Raises:
            ValueError: it is damaged, or of another version of headwise.
        """
        if not self.result.is_file():
            return None
        try:
            values: dict[str, Any] = json.loads(self.result.read_text(encoding="utf-8"))
            return TrainResult(**values | {"folder": self.path})
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"{self.result} is damaged, or of another version of headwise ({error}); train anew"
            ) from error

    def tokens_trained(self) -> int | None:
        """How many tokens the run here has learned from; None if there is no run.

        Raises:
            ValueError: its log or its result is damaged.
        """
        done = self.read_result()
        if done is not None:
            return done.tokens
        if not (self.path / "metrics.jsonl").is_file():
            return None
        steps = [record["tokens"] for record in read_metrics(self.path) if record["event"] == "step"]
        return steps[-1] if steps else None

    def sweep(self) -> None:
        """Remove what a killed process left half written."""
        for folder in (self.path, self.tokens, self.checkpoints):
            for leftover in folder.glob(".*.tmp"):
                shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
