"""What the documents say is true: commands parse, code runs, links lead somewhere."""

from __future__ import annotations

import importlib
import re
import runpy
import shlex
from pathlib import Path

import pytest
import torch
import typer

from headwise.cli.app import VERBS, module_name
from headwise.model import GPT, GPTConfig, save_model
from headwise.text import Tokenizer

ROOT = Path(__file__).parents[1]
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
COMMANDS = sorted(
    {
        line.split("  #")[0].strip()
        for path in DOCUMENTS
        for block in re.findall(r"```sh\n(.*?)```", path.read_text("utf-8"), re.DOTALL)
        for line in block.splitlines()
        if line.startswith("headwise ")
    }
)


def test_there_are_commands_to_check() -> None:
    assert {command.split()[1] for command in COMMANDS} >= {
        "train",
        "generate",
        "show",
        "compare",
        "walkthrough",
        "trace",
        "cost",
    }


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_names_a_verb_and_options_that_exist(command: str) -> None:
    _, verb, *arguments = shlex.split(command)
    assert verb in VERBS
    app = typer.Typer()
    name = module_name(verb)
    app.command()(getattr(importlib.import_module(f"headwise.cli.{name}"), name))
    parser = typer.main.get_command(app)
    known = {option for parameter in parser.params for option in (*parameter.opts, *parameter.secondary_opts)}
    used = {argument.split("=")[0] for argument in arguments if re.match(r"--?[a-z]", argument)}
    assert used <= known
    parser.make_context(verb, arguments)  # values are of the right type


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text("utf-8")):
        if "://" not in target:
            assert (path.parent / target).exists(), target


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with the model that README and guide speak of."""
    monkeypatch.chdir(tmp_path)
    tokenizer = Tokenizer.train("char", ["To be, or not to be; that is the question\n나는 "])
    torch.manual_seed(0)
    save_model("runs/book", GPT(GPTConfig(vocab_size=tokenizer.vocab_size)), tokenizer)
    return tmp_path


@pytest.mark.parametrize(
    "path",
    [ROOT / "README.md", ROOT / "docs" / "guide.md", ROOT / "docs" / "cost.md", ROOT / "docs" / "heads.md"],
    ids=lambda path: path.name,
)
def test_the_python_in_the_documents_runs(
    path: Path, workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = re.findall(r"```python\n(.*?)```", path.read_text("utf-8"), re.DOTALL)
    assert blocks
    exec("\n".join(blocks), {})
    if path.name == "README.md":
        assert "torch.Size([4, 128, 512]) torch.Size([4, 8, 128, 128])" in capsys.readouterr().out


def test_induction_example_runs(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["induction.py", "2"])  # steps; what it learns takes 1,500
    runpy.run_path(str(ROOT / "examples" / "induction.py"), run_name="__main__")
    out = capsys.readouterr().out
    assert out.count("head 0 silent: ") == 3
    assert (workspace / "induction.png").stat().st_size > 10_000


def test_heads_become_one_matrix(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "heads_become_one_matrix.py"), run_name="__main__")
    differences = [float(line.split(":")[1]) for line in capsys.readouterr().out.splitlines()]
    assert len(differences) == 2
    assert max(differences) < 1e-4
