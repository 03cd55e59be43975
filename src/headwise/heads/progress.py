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

from headwise.files import check_place, replacing

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

        Raises ValueError if it holds results of other settings, saying which, or a damaged file, and if it
        cannot be made.
        """
        folder = None if folder is None else Path(folder)
        settings = json.loads(json.dumps(settings))
        progress = cls(folder, settings, rank)
        if folder is not None:
            if folder.exists() and not folder.is_dir():
                raise ValueError(f"{folder} is not a folder; name one for the progress of the sweep")
            check_place(folder / f"part-{rank}.safetensors")
            for path in sorted(folder.glob("part-*.safetensors")):
                progress._read(path)
        return progress

    def _read(self, path: Path) -> None:
        try:
            with safe_open(path, "pt") as file:
                metadata = file.metadata() or {}
                found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{path} is damaged ({error}); remove it to do its part again") from error
        if metadata.get("sum") != _sum_of(found):
            raise ValueError(
                f"{path} is damaged, or not the progress of a sweep; remove it to do its part again"
            )
        _check_same(path, json.loads(metadata["settings"]), self.settings)
        self.results |= found

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
            settings = json.dumps(self.settings, ensure_ascii=False)
            save_file(self.results, temporary, {"settings": settings, "sum": _sum_of(self.results)})
        self._written = time.monotonic()


def _check_same(path: Path, there: Settings, wanted: Settings) -> None:
    other = [name for name in wanted if there.get(name) != wanted[name]]
    if other:
        told = "; ".join(_difference(name, there.get(name), wanted[name]) for name in other)
        raise ValueError(
            f"{path.parent} holds the progress of a sweep with other settings ({told}); "
            "give another folder, or remove that one"
        )


def _difference(name: str, there: object, now: object) -> str:
    if isinstance(there, list) or isinstance(now, list):
        return f"other {name}"
    return f"{name} {there!r} there, {now!r} now"


def fingerprint(parts: Mapping[str, object] | list[object]) -> str:
    """Return a short hash of what can be written as JSON."""
    return hashlib.sha256(json.dumps(parts, ensure_ascii=False).encode()).hexdigest()[:16]


def model_fingerprint(model: nn.Module) -> str:
    """Return a short hash of a model's weights and configuration, to tell another checkpoint apart."""
    digest = hashlib.sha256(_configuration(model).encode())
    _add_tensors(digest, model.state_dict())
    return digest.hexdigest()[:16]


def _configuration(model: nn.Module) -> str:
    """Return what a model's configuration says of it, without where it was read from and by what."""
    config: Any = getattr(model, "config", None)
    describe = getattr(config, "to_dict", getattr(config, "model_dump", dict))
    said: dict[str, Any] = describe()
    told = {key: said[key] for key in said if key not in ("_name_or_path", "transformers_version")}
    return json.dumps(told, sort_keys=True, default=str)


def _sum_of(results: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    _add_tensors(digest, results)
    return digest.hexdigest()


def _add_tensors(digest: hashlib._Hash, tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
