"""Running the command line inside the test's own process: importing torch anew takes seconds."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from headwise.cli import main


@dataclass
class Done:
    """What a run of `headwise` left behind."""

    code: int
    out: str
    err: str


@pytest.fixture
def headwise(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Run `headwise` with these arguments and return its exit code and what it printed."""
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("HEADWISE_DEBUG", raising=False)

    def run(*arguments: str | Path) -> Done:
        monkeypatch.setattr(sys, "argv", ["headwise", *map(str, arguments)])
        capsys.readouterr()
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = 0 if stop.code is None else int(stop.code)
        printed = capsys.readouterr()
        return Done(code, printed.out, printed.err)

    return run
