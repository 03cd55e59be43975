"""The log of a run, `metrics.jsonl`: one JSON object per step and per evaluation, `event` says which."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from headwise.files import write_text
from headwise.training.observer import Observer, Step, Validation

FILE = "metrics.jsonl"


def tokens_per_second(tokens: int, seconds: float) -> float | None:
    """Tokens divided by the seconds they took; None where no time has passed."""
    return tokens / seconds if seconds > 0 else None


def read_metrics(path: Path | str) -> list[dict[str, Any]]:
    """The records of a `metrics.jsonl` (or of the run folder that holds it), oldest first.

    A last line that is still being written is left out.

    Raises:
        FileNotFoundError: no such file.
        ValueError: another line is damaged; says which.
    """
    path = Path(path)
    path = path / FILE if path.is_dir() else path
    text = path.read_text(encoding="utf-8")
    lines = text.split("\n")[:-1]  # what follows the last newline is nothing, or not whole yet
    records = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise ValueError(f"{path} is damaged in line {number}: {error}") from error
    return records


class MetricsLog(Observer):
    """Writes what it hears to `metrics.jsonl`, each record at once."""

    def __init__(self, folder: Path, *, after: int | None = None) -> None:
        """Begin a log in `folder`, or continue the one there after step `after`: what it holds beyond that
        is dropped, since those steps will be done again."""
        path = folder / FILE
        continues = after is not None and path.exists()
        kept = (
            [record for record in read_metrics(path) if record["step"] <= (after or 0)] if continues else []
        )
        write_text(path, "".join(map(_line, kept)))
        self._file = path.open("a", encoding="utf-8", newline="\n")

    def on_step(self, step: Step) -> None:
        self._write({"event": "step", **asdict(step)})

    def on_validation(self, validation: Validation) -> None:
        self._write({"event": "validation", **asdict(validation)})

    def on_end(self) -> None:
        self._file.close()

    def flush(self) -> None:
        """Put on the disk what has been written; a checkpoint must not be newer than its log."""
        os.fsync(self._file.fileno())

    def _write(self, record: dict[str, Any]) -> None:
        self._file.write(_line(record))
        self._file.flush()


def _line(record: dict[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"
