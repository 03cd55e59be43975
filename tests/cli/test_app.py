"""The frame of the command line: quick help, one-line errors, exit codes."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headwise.cli.app import VERBS, main, module_name

HEAVY = ("torch", "matplotlib", "tokenizers", "pandas", "pydantic")


def test_help_names_every_verb_and_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom headwise.cli.app import app\n"
        "try: app(['--help'])\nexcept SystemExit: pass\n"
        f"print('HEAVY', sorted(set(sys.modules) & {set(HEAVY)!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "HEAVY []" in done.stdout
    for verb in VERBS:
        assert verb in done.stdout


def test_importing_headwise_imports_nothing_heavy() -> None:
    code = f"import sys, headwise; print(sorted(set(sys.modules) & {set(HEAVY)!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("verb", list(VERBS))
def test_each_verb_says_in_its_own_help_what_the_list_says(headwise: Callable, verb: str) -> None:
    name = module_name(verb)
    function = getattr(importlib.import_module(f"headwise.cli.{name}"), name)
    assert (inspect.getdoc(function) or "").splitlines()[0] == VERBS[verb]
    done = headwise(verb, "--help")
    assert done.code == 0
    assert VERBS[verb].split(":")[0] in " ".join(done.out.split())


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("two\nlines"), "two lines"),
        (TypeError("wrong type"), "wrong type"),
        (OSError(28, "No space left on device", "out.bin"), "No space left on device: 'out.bin'"),
        (ValueError(), "ValueError"),
        (MemoryError("Unable to allocate 745 GiB"), "not enough memory (Unable to allocate 745 GiB)"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "not enough memory"),
        (RuntimeError("CUDA out of memory."), "not enough memory"),
    ],
)
def test_a_users_mistake_is_one_line_and_exit_code_2(
    error: Exception, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*args: object) -> None:
        raise error

    monkeypatch.setattr("headwise.cli.app.app", fail)
    monkeypatch.delenv("HEADWISE_DEBUG", raising=False)
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in printed.err
    assert printed.err.count("\n") == 1


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ValueError("inside")

    monkeypatch.setattr("headwise.cli.app.app", fail)
    monkeypatch.setenv("HEADWISE_DEBUG", "1")
    with pytest.raises(ValueError, match="inside"):
        main()


def test_an_unknown_verb_is_refused(headwise: Callable) -> None:
    done = headwise("trian")
    assert done.code == 2
    assert "trian" in done.err


def test_a_closed_pipe_ends_silently_with_1(tmp_path: Path) -> None:
    words = " ".join(map(str, range(60)))  # far more output than a pipe holds
    command = f"{sys.executable} -m headwise walkthrough --words '{words}' --d-model 64 | head -n 1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, cwd=tmp_path
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "T=60 words, H=2 heads\n", "")
