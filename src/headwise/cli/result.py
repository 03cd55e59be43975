"""What a verb's --json prints: one line that every reader of JSON takes."""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import typer


def print_json(result: Any) -> None:
    """Print a result as one line of JSON.

    Numbers that JSON does not have (NaN, infinities) are null, and characters that stdout cannot carry are
    escaped.
    """
    line = json.dumps(_finite(result), ensure_ascii=False, allow_nan=False)
    try:
        line.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        line = json.dumps(_finite(result), allow_nan=False)
    typer.echo(line)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
