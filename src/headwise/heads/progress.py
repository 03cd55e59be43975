"""A long sweep's results so far, in a folder, so that it can go on after a break.

Each process writes a file of its own, and reads those of all when it starts: another number of processes may
go on.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from headwise.files import replacing

Settings = dict[str, Any]
"""What must be the same for results to fit together; a JSON object."""

SECONDS = 5.0
"""How long results may stay unwritten."""


@dataclass(eq=False)
class Progress:
    """Results by the name of their unit of work."""

    folder: Path | None
    """None keeps them in memory only."""
    settings: Settings
    rank: int = 0
    results: dict[str, Tensor] = field(default_factory=dict)
    _written: float = field(default_factory=time.monotonic)

    @classmethod
    def open(cls, folder: Path | str | None, settings: Settings, rank: int = 0) -> Progress:
        """Start, or go on with what the folder holds.

        Raises ValueError if it holds results of other settings, saying which, or a damaged file.
        """
        folder = None if folder is None else Path(folder)
        settings = json.loads(json.dumps(settings))
        progress = cls(folder, settings, rank)
        if folder is not None and folder.exists():
            if not folder.is_dir():
                raise ValueError(f"{folder} is not a folder; name one for the progress of the sweep")
            for path in sorted(folder.glob("part-*.safetensors")):
                progress._read(path)
        return progress

    def _read(self, path: Path) -> None:
        try:
            with safe_open(path, "pt") as file:
                there = json.loads((file.metadata() or {}).get("settings", "{}"))
                _check_same(path, there, self.settings)
                self.results |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise ValueError(f"{path} is damaged ({error}); remove it to do its part again") from error

    def add(self, name: str, result: Tensor) -> None:
        """Keep a result; write all from time to time."""
        self.results[name] = result
        if time.monotonic() - self._written > SECONDS:
            self.write()

    def write(self) -> None:
        """Write all results, all or nothing."""
        if self.folder is None:
            return
        from safetensors.torch import save_file

        with replacing(self.folder / f"part-{self.rank}.safetensors") as temporary:
            save_file(self.results, temporary, {"settings": json.dumps(self.settings, ensure_ascii=False)})
        self._written = time.monotonic()


def _check_same(path: Path, there: Settings, wanted: Settings) -> None:
    missing = object()
    other = [name for name in wanted if there.get(name, missing) != wanted[name]]
    if other:
        told = "; ".join(f"{name} {there.get(name)!r} there, {wanted[name]!r} now" for name in other)
        raise ValueError(
            f"{path.parent} holds the progress of a sweep with other settings ({told}); "
            "give another folder, or remove that one"
        )


def fingerprint(parts: Mapping[str, object] | list[object]) -> str:
    """Return a short hash of what can be written as JSON."""
    return hashlib.sha256(json.dumps(parts, ensure_ascii=False).encode()).hexdigest()[:16]


def model_fingerprint(model: nn.Module) -> str:
    """Return a short hash of a model's weights, so that another checkpoint is told apart."""
    digest = hashlib.sha256()
    for name, parameter in sorted(model.state_dict().items()):
        digest.update(f"{name} {parameter.dtype} {tuple(parameter.shape)}".encode())
        flat = parameter.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]
