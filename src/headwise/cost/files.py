"""Reading an architecture from disk: our model folder, a Hugging Face folder, or its config.json."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from headwise.cost.architecture import Architecture
from headwise.cost.formats.reader import from_hf_config
from headwise.cost.own import from_config
from headwise.hub.dtypes import stored_dtype
from headwise.model.folder import read_config

_DTYPES = {"float64": "fp64", "float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def read_architecture(path: Path | str) -> tuple[Architecture, str | None]:
    """Return the architecture of a model, and the type its weights are kept in if that is known.

    That is what a Hugging Face config says, or else what the weights beside the config are in; fp32 for a
    model of headwise without weights.

    Args:
        path: a model folder of headwise, a folder with a Hugging Face `config.json`, or such a file.

    Raises:
        FileNotFoundError: nothing there.
        ValueError: not JSON, an unknown architecture, missing fields, or damaged weights.
    """
    given = Path(path)
    file = given / "config.json" if given.is_dir() else given
    if not file.is_file():
        raise FileNotFoundError(
            f"{file} is missing; give a model folder or a config.json, or sizes (--d-model, --n-head)"
        )
    try:
        values: Any = json.loads(file.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{file} is not a config.json: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{file} must hold a JSON object, got {type(values).__name__}")
    name = file.resolve().parent.name if file.name == "config.json" else file.name
    if "format" in values:
        return from_config(read_config(file.parent)[0], name=name), _dtype_beside(file) or "fp32"
    architecture = from_hf_config(values)
    said = values.get("dtype") or values.get("torch_dtype")
    dtype = _DTYPES.get(str(said)) or _dtype_beside(file)
    return replace(architecture, name=f"{name} ({architecture.name})"), dtype


def _dtype_beside(file: Path) -> str | None:
    """Return the type of the weights that a `config.json` describes, None where there are none."""
    if file.name != "config.json":
        return None
    try:
        stored = stored_dtype(file.parent)
    except SafetensorError as error:
        raise ValueError(f"the weights in {file.parent} are damaged ({error}); fetch them again") from error
    return None if stored is None else _DTYPES.get(str(stored).removeprefix("torch."))
