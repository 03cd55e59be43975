"""Configurations as TOML files and field=value text; every problem reported at once."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from headwise.model import PRESETS, ModelSettings
from headwise.training.config import DataConfig, RunConfig, TrainingConfig

Config = TypeVar("Config", bound=RunConfig)

SECTIONS: dict[str, type[BaseModel]] = {
    "data": DataConfig,
    "model": ModelSettings,
    "training": TrainingConfig,
}


def fields() -> dict[str, tuple[str, FieldInfo]]:
    """Every field of a run by its name, with its section ("" for `preset`); names are unique."""
    found = {"preset": ("", RunConfig.model_fields["preset"])}
    for section, model in SECTIONS.items():
        found |= {name: (section, info) for name, info in model.model_fields.items()}
    return found


def read_config(kind: type[Config], path: Path | str | None, overrides: Mapping[str, Any]) -> Config:
    """See `RunConfig.from_toml`."""
    values = {} if path is None else _read_toml(Path(path))
    for name, value in overrides.items():
        section = fields()[name][0] if name in fields() else ""
        if section:
            table = values.setdefault(section, {})
            if isinstance(table, dict):
                table[name] = value
        else:
            values[name] = value
    try:
        return kind.model_validate(values, strict=True)
    except ValidationError as error:
        problems = problems_of(error)
    where = f" in {path}" if path is not None else ""
    if len(problems) == 1:
        raise ValueError(f"{problems[0]} (configuration{where})" if where else problems[0])
    listed = "\n".join(f"({i}) {problem}" for i, problem in enumerate(problems, 1))
    raise ValueError(f"{len(problems)} problems{where or ' in the configuration'}:\n{listed}")


def write_config(config: RunConfig) -> str:
    """See `RunConfig.to_toml`."""
    preset = PRESETS[config.preset]
    changed = {
        name: value for name, value in config.model.model_dump().items() if value != getattr(preset, name)
    }
    tables = {"data": config.data.model_dump(), "model": changed, "training": config.training.model_dump()}
    lines = [f"preset = {_toml_value(config.preset)}"]
    for section, table in tables.items():
        lines += ["", f"[{section}]"]
        lines += [f"{name} = {_toml_value(value)}" for name, value in table.items() if value is not None]
    return "\n".join(lines) + "\n"


def parse_value(name: str, text: str) -> Any:
    """Read `text` as a value of field `name`: numbers, true/false, words; `none` where None is allowed.

    Raises:
        ValueError: unknown field, or text that is not of its type.
    """
    if name not in fields():
        raise ValueError(f"unknown field {name}{_suggest(name)}")
    info = fields()[name][1]
    try:
        return TypeAdapter[Any](info.annotation or str).validate_python(text)
    except ValidationError as error:
        if text.lower() == "none" and _allows_none(info):
            return None
        raise ValueError(f"{name}={text}: {_lower(error.errors()[0]['msg'])}") from None


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8 (byte {error.start}); save the configuration as UTF-8"
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from None


def problems_of(error: ValidationError) -> list[str]:
    """Return each problem of a pydantic error in one sentence."""
    return [_describe(detail) for detail in error.errors()]


def _describe(detail: ErrorDetails) -> str:
    """One problem in one sentence."""
    place = [str(part) for part in detail["loc"]]
    name = ".".join(place)
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        return f"unknown field {name}{_suggest(place[-1])}"
    if kind == "value_error":  # from one of the validators, which names its fields itself
        return str(context["error"])
    if kind == "literal_error":
        return f"{name} must be one of {context['expected']}; got {value!r}"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return f"{name} must be a table of fields ([{name}]); got {value!r}"
    return f"{name}: {_lower(detail['msg'])}; got {value!r}"


def _suggest(name: str) -> str:
    """Say where the field that is probably meant stands."""
    abbreviated = [field for field in fields() if name == "".join(word[0] for word in field.split("_"))]
    nearest = abbreviated or difflib.get_close_matches(name, fields(), n=1, cutoff=0.5)
    if not nearest:
        return f"; the fields are {', '.join(fields())}"
    section = fields()[nearest[0]][0]
    home = f"in [{section}]" if section else "at the top"
    return f"; it belongs {home}" if nearest[0] == name else f"; did you mean {nearest[0]} {home}?"


def _allows_none(info: FieldInfo) -> bool:
    return type(None) in getattr(info.annotation, "__args__", ())


def _lower(message: str) -> str:
    return message[:1].lower() + message[1:]


def _toml_value(value: str | bool | int | float) -> str:
    # JSON and TOML write these alike, but for DEL, which TOML wants escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
