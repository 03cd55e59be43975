"""A model as a folder: `config.json`, `model.safetensors`, `tokenizer.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from headwise.files import replacing, write_json
from headwise.model.config import GPTConfig
from headwise.model.gpt import GPT
from headwise.model.limits import TooLargeError, building_at_most
from headwise.text import Tokenizer

FORMAT = "headwise-gpt"
VERSION = 1


def save_model(folder: Path | str, model: GPT, tokenizer: Tokenizer) -> None:
    """Write `model` and its tokenizer to `folder`; each file is replaced whole or not at all.

    Raises:
        ValueError: the tokenizer's vocabulary is not the model's.
    """
    if tokenizer.vocab_size != model.config.vocab_size:
        raise ValueError(
            f"the tokenizer has {tokenizer.vocab_size} tokens but the model {model.config.vocab_size}; "
            "save a model with the tokenizer it was trained with"
        )
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(folder / "tokenizer.json")
    save_weights(folder / "model.safetensors", model)
    header = {"format": FORMAT, "version": VERSION, "tokenizer_hash": tokenizer.hash}
    write_json(folder / "config.json", header | model.config.model_dump())


def load_model(folder: Path | str, device: str | torch.device = "cpu") -> tuple[GPT, Tokenizer]:
    """Read a folder that `save_model` or training wrote; the model comes in eval mode.

    Raises:
        FileNotFoundError: no such folder, or a file of it is missing.
        ValueError: a file is damaged, of another version, or does not belong to the others.
    """
    folder = Path(folder)
    config, tokenizer_hash = read_config(folder)
    if not (folder / "tokenizer.json").is_file():
        raise FileNotFoundError(f"{folder / 'tokenizer.json'} is missing; a model folder holds {_FILES}")
    tokenizer = Tokenizer.from_file(folder / "tokenizer.json")
    if tokenizer.hash != tokenizer_hash:
        raise ValueError(
            f"{folder / 'tokenizer.json'} is not the tokenizer of this model; put the original back"
        )
    path = folder / "model.safetensors"
    state = _read_tensors(path)
    _refuse_other_size(config, sum(tensor.numel() for tensor in state.values()), folder)
    model = GPT(config)
    _fill(model, state, path)
    return model.to(device).eval(), tokenizer


def save_weights(path: Path, model: nn.Module) -> None:
    """Write the parameters of `model` to a safetensors file; tied ones once."""
    tied = _tied(model)
    write_tensors(path, {name: value for name, value in model.state_dict().items() if name not in tied})


def _tied(model: nn.Module) -> dict[str, str]:
    """Parameters that are another one of the model, by name → the name of that one."""
    first: dict[int, str] = {}
    every = model.named_parameters(remove_duplicate=False)
    named = [(name, first.setdefault(id(parameter), name)) for name, parameter in every]
    return {name: other for name, other in named if name != other}


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write named tensors to a safetensors file, all or nothing.

    Raises:
        OSError: it could not be written, a full disk for instance.
    """
    whole = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
    with replacing(path) as temporary:
        try:
            save_file(whole, temporary, metadata={"format": "pt"})
        except SafetensorError as error:  # it reports a full disk as an error of its own
            raise OSError(f"cannot write {path}: {error}") from error


def load_weights(path: Path, model: nn.Module) -> None:
    """Fill `model` with the tensors in `path`: every one, none missing, none left over.

    Raises:
        FileNotFoundError: no such file.
        ValueError: damaged, or names or shapes that are not the model's.
    """
    _fill(model, _read_tensors(path), path)


def _refuse_other_size(config: GPTConfig, stored: int, folder: Path) -> None:
    """Raise ValueError for a config of a far larger model than the weights, which may have no end."""
    try:
        with building_at_most(10 * stored):
            GPT(config)
    except (TooLargeError, RuntimeError, TypeError) as error:  # torch has no one error for sizes beyond it
        raise ValueError(
            f"{folder / 'config.json'} describes a model of more than {10 * stored:,} numbers, but its "
            f"weights are {stored:,}; config.json and the weights must come from the same run"
        ) from error


def _fill(model: nn.Module, state: dict[str, Tensor], path: Path) -> None:
    state |= {name: state[other] for name, other in _tied(model).items() if other in state}
    expected = model.state_dict()
    problems = [f"lacks {name}" for name in expected.keys() - state.keys()]
    problems += [f"has unknown {name}" for name in state.keys() - expected.keys()]
    problems += [
        f"{name} has shape {tuple(state[name].shape)}, wanted {tuple(expected[name].shape)}"
        for name in expected.keys() & state.keys()
        if state[name].shape != expected[name].shape
    ]
    if problems:
        more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
        raise ValueError(
            f"{path} does not fit the model's config: {'; '.join(sorted(problems)[:3])}{more}; "
            "config.json and the weights must come from the same run"
        )
    model.load_state_dict(state, strict=True)


def _read_tensors(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; a model folder holds {_FILES}")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or not a safetensors file ({error})") from error


_FILES = "config.json, model.safetensors and tokenizer.json"


def read_config(folder: Path) -> tuple[GPTConfig, str]:
    """Return the configuration of the model in `folder` and its tokenizer's hash; raises as `load_model`."""
    path = folder / "config.json"
    if folder.exists() and not folder.is_dir():
        raise FileNotFoundError(f"{folder} is a file; give the model folder (it holds {_FILES})")
    if not folder.is_dir():
        raise FileNotFoundError(f"no model folder at {folder}; `headwise train --out {folder}` makes one")
    if not path.is_file():
        raise FileNotFoundError(f"{folder} is not a model folder: config.json is missing (it holds {_FILES})")
    try:
        values: Any = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if not isinstance(values, dict) or values.pop("format", None) != FORMAT:
        raise ValueError(f"{path} does not describe a headwise model (its format is not {FORMAT!r})")
    version = values.pop("version", None)
    if version != VERSION:
        raise ValueError(f"{path} has version {version}; this headwise reads version {VERSION}")
    tokenizer_hash = str(values.pop("tokenizer_hash", ""))
    try:
        return GPTConfig.model_validate(values), tokenizer_hash
    except ValidationError as error:
        problems = [": ".join([*map(str, each["loc"]), each["msg"]]) for each in error.errors()]
        raise ValueError(f"{path} does not describe a model: {'; '.join(problems)}") from error
