"""The command's frame: verbs are loaded only when run, and user mistakes end in one line and exit code 2."""

from __future__ import annotations

import importlib
import os
import sys
from keyword import iskeyword
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from headwise import __version__
from headwise.memory import short_of_memory

# Each verb is the module headwise.cli.<verb> with a function of the same name (see module_name). The summary
# stands here so that `headwise --help` imports none of them (torch alone takes over a second).
VERBS = {
    "demo": "Train, compare, look and report on built-in text: the whole tour in a few minutes.",
    "train": "Train a language model made of attention heads on your own text.",
    "generate": "Continue a prompt with a trained model.",
    "compare": "Train variants under equal conditions and say whether the difference is real.",
    "show": "Draw what the heads of a trained model attend to, or what a mask lets them see.",
    "heads": "Say what every head of a model does: its role, how strong it is, and what speaks for it.",
    "ablate": "Measure what each head of a model is worth: what is lost when it alone is silenced.",
    "compare-heads": "Compare two models head by head: what each head looks at, and what it adds.",
    "view": "Write one self-contained page about the heads of a model.",
    "serve": "Serve the page of heads on this machine: type a text, switch heads off, and see what changes.",
    "group": "Give a model fewer key/value heads, without training, so that it computes nearly the same.",
    "prune": "Take heads out of a model, the dispensable ones first.",
    "uptrain": "Let a model that lost heads learn on, for a small share of what its parent learned from.",
    "judge": "Judge models against a parent: loss, retrieval, cache, parameters and time, in one table.",
    "export": "Write a model of headwise as a folder that stock transformers and vLLM load.",
    "import": "Write a Hugging Face model as a model folder of headwise, to train or cut it here.",
    "cost": "What a model costs: parameters, memory, FLOPs; by formula and measured.",
    "walkthrough": "Multi-head attention step by step in NumPy, every array printed.",
    "trace": "Name the shape at every step of multi-head attention.",
}


_LOOK: dict[str, Any] = {
    "add_completion": False,
    "rich_markup_mode": "markdown",
    "pretty_exceptions_enable": False,  # a fault of ours should read like any Python traceback
}


class _Verb(TyperCommand):
    """Stands for a verb in the list of commands and becomes the real one when it is run."""

    def make_context(self, *arguments: Any, **named: Any) -> Any:
        return _load(self.name or "").make_context(*arguments, **named)


def module_name(verb: str) -> str:
    """Return the name of a verb's module, and of its function, as Python can spell it."""
    return verb.replace("-", "_") + "_" * iskeyword(verb)


def _load(verb: str) -> Any:
    name = module_name(verb)
    module = importlib.import_module(f"headwise.cli.{name}")
    app = typer.Typer(**_LOOK)
    app.command(verb)(getattr(module, name))
    return typer.main.get_command(app)


class _Verbs(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand | None:
        return _Verb(cmd_name, help=VERBS[cmd_name]) if cmd_name in VERBS else None


app = typer.Typer(cls=_Verbs, no_args_is_help=True, **_LOOK)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"headwise {__version__}")
        raise typer.Exit


@app.callback()
def _headwise(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """Train multi-head attention, see what every head does, know what it costs."""


def main() -> None:
    """Run the command line. User mistakes print one line to stderr and exit with 2. A reader that has had
    enough (`headwise … | head`) ends it silently with 1, which is typer's doing.

    Set HEADWISE_DEBUG=1 to see the traceback instead.
    """
    try:
        app()
    except Exception as error:
        short = short_of_memory(error)
        mistake = short or isinstance(error, ValueError | TypeError | OSError)
        if not mistake or os.environ.get("HEADWISE_DEBUG"):
            raise
        message = " ".join(str(error).split()) or type(error).__name__
        if short:
            message = f"not enough memory ({message}); take a smaller batch, model or text"
        typer.echo(f"headwise: {message}", err=True)
        sys.exit(2)
