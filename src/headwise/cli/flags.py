"""The options that a run's configuration has on the command line: one per field, made from the fields."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from headwise.model.config import PRESETS
from headwise.training.config_file import fields, parse_value

Verb = TypeVar("Verb", bound=Callable[..., None])

Config = Annotated[
    Path | None,
    typer.Option(
        "--config", help="TOML file with sections [data], [model], [training]; flags replace its values."
    ),
]


def config_flags(verb: Verb) -> Verb:
    """Give `verb` an option for every field of `RunConfig` in place of its `**flags`.

    Only those that the user gives arrive in `flags`, once `given` has looked through them.
    """
    signature = inspect.signature(verb, eval_str=True)
    own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    flags = [_flag(name, section, info) for name, (section, info) in fields().items()]
    verb.__signature__ = signature.replace(parameters=own + flags)  # type: ignore[attr-defined]
    return verb


def given(flags: dict[str, Any]) -> dict[str, Any]:
    """The options the user gave, by field, read by the type of the field.

    What cannot be read stays text, so that the configuration names it together with all other problems.
    """
    values: dict[str, Any] = {}
    for name, value in flags.items():
        if value is None:  # not given; a `none` that was given is still text here
            continue
        if isinstance(value, str):
            with suppress(ValueError):
                value = parse_value(name, value)
        values[name] = value
    return values


def _flag(name: str, section: str, info: FieldInfo) -> inspect.Parameter:
    option = f"--{name.replace('_', '-')}"
    is_switch = info.annotation is bool
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,  # not given, so that the file or the preset decides
        annotation=Annotated[
            bool | None if is_switch else str | None,
            typer.Option(
                f"{option}/--no-{option[2:]}" if is_switch else option,
                metavar=None if is_switch else _kind(info.annotation),
                help=f"{info.description}{_default(name, section, info)}",
                show_default=False,
                rich_help_panel=f"{section or 'model'} options".capitalize(),
            ),
        ],
    )


def _kind(annotation: Any) -> str:
    """What an option takes, in the words that typer has for options of its own."""
    if get_origin(annotation) is Literal:
        return f"<{'|'.join(get_args(annotation))}>"
    plain = next((kind for kind in get_args(annotation) if kind is not type(None)), annotation)
    return f"<{plain.__name__}>"


def _default(name: str, section: str, info: FieldInfo) -> str:
    if info.default is None:  # the description says what None means
        return ""
    if section == "model" and len({getattr(preset, name) for preset in PRESETS.values()}) > 1:
        return " Default: the preset's."
    text = str(info.default)
    return f" Default: {text.lower() if isinstance(info.default, bool) else text}."
