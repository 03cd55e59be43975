"""What verbs that look at heads share: which model, which texts, how far it got."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from headwise.hub import Subject

AnyModel = Annotated[
    str, typer.Argument(help="A model folder of headwise, or a Hugging Face folder or name.")
]
Text = Annotated[str | None, typer.Option(help="The text to look at the heads on.")]
Data = Annotated[
    str | None,
    typer.Option(
        help="Where texts are taken from: a file, a folder, a pattern in quotes, `-`, or a built-in name "
        "(python-docs, python-source, shakespeare). Default: python-docs."
    ),
]
Texts = Annotated[int, typer.Option(help="How many texts to take from --data, evenly spaced.")]
Length = Annotated[int, typer.Option(help="Tokens of each text; less where the model reads less at once.")]

_DEFAULT_DATA = "python-docs"
_OF_A_MODEL = re.compile(
    r"(adapter_|added_|generation_|special_|tokenizer|vocab|config|merges|result).*\.json"
)
_BETWEEN_LINES = 10.0  # seconds


def open_model(source: str, device: str) -> Subject:
    """Open the model that a verb was given."""
    from headwise.hub import open_subject
    from headwise.model.device import pick_device

    return open_subject(source, pick_device(device))


def read_texts(
    subject: Subject, text: str | None, data: str | None, texts: int, length: int
) -> list[list[int]]:
    """Return the token ids of the texts that a verb was given.

    Raises ValueError for both kinds of text at once, and as `sample_texts` does.
    """
    from headwise.heads.texts import sample_texts
    from headwise.text.corpus import Corpus, open_corpus

    if text is not None and data is not None:
        raise ValueError("give either --text or --data, not both")
    if text is not None:
        corpus = Corpus.from_text(text, "--text")
    else:
        corpus = open_corpus(_DEFAULT_DATA if data is None else data)
    return sample_texts(subject, corpus, texts=texts, length=length)


def check_spared(out: Path, data: str | None, *models: str) -> None:
    """Raise ValueError if a verb would write over what it reads: its text, or a part of its model."""
    if not out.exists():
        return
    if data is not None and Path(data).exists() and out.samefile(data):
        raise ValueError(f"--out {out} is the text of --data, which would be lost; give another name")
    for model in models:
        if Path(model).is_dir() and out.parent.samefile(model) and _OF_A_MODEL.fullmatch(out.name):
            raise ValueError(f"--out {out} is a part of the model {model}; give another name")


@contextmanager
def progress_of(title: str, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """Show how far long work has got, on stderr: a bar with the time left, or lines where nobody looks."""
    console = Console(stderr=True)
    if quiet:
        yield None
    elif console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task(title, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
    else:
        started = last = time.monotonic()

        def say(done: int, total: int) -> None:
            nonlocal last
            now = time.monotonic()
            if now - last > _BETWEEN_LINES and done:
                last = now
                left = (now - started) * (total - done) / done
                typer.echo(f"{title}: {done:,} of {total:,}, {left:,.0f} s left", err=True)

        yield say
