"""What verbs that look at heads share: which model, which texts, how far it got."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from torch import Tensor

    from headwise.hub import Subject
    from headwise.report.head_grid import HeadGrid
    from headwise.text.corpus import Corpus

AnyModel = Annotated[
    str, typer.Argument(help="A model folder of headwise, or a Hugging Face folder or name.")
]
Text = Annotated[str | None, typer.Option(help="The text to look at the heads on.")]
Data = Annotated[
    str | None,
    typer.Option(
        help="Where texts are taken from: a file, a folder, a pattern in quotes, `-`, or a built-in name "
        "(python-docs, python-source, shakespeare). Default: what the model's training held out, else "
        "python-docs."
    ),
]
Texts = Annotated[int, typer.Option(help="How many texts to take from --data, evenly spaced.")]
Length = Annotated[int, typer.Option(help="Tokens of each text; less where the model reads less at once.")]
TableOut = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="Write all numbers to this .csv, .json or .parquet file."),
]
Plot = Annotated[Path | None, typer.Option(help="Draw the grid to this .png or .svg file.")]
NewFolder = Annotated[Path, typer.Option("--out", "-o", help="The folder to write the new model to.")]
Calibration = Annotated[int, typer.Option(help="Tokens of --data to fit to.")]
HeldOut = Annotated[int, typer.Option(help="Tokens of --data after those, to measure on.")]

_DEFAULT_DATA = "python-docs"
_OF_A_MODEL = re.compile(
    r"(adapter_|added_|generation_|special_|tokenizer|vocab|config|merges|result|made_from|uptrain|outcome"
    r"|model\.safetensors).*\.json"
)
_BETWEEN_LINES = 10.0  # seconds


def open_model(source: str, device: str, unknown: Literal["error", "skip"] = "error") -> Subject:
    """Open the model that a verb was given.

    Raises ValueError as `open_subject` does, and for unknown characters to be left out of what is read by a
    tokenizer that knows all.
    """
    from headwise.hub import open_subject
    from headwise.hub.subject import OwnSubject
    from headwise.model.device import pick_device

    subject = open_subject(source, pick_device(device))
    if isinstance(subject, OwnSubject):
        subject.unknown = unknown
    elif unknown == "skip":
        raise ValueError(
            "--unknown skip is for models of headwise; a Hugging Face tokenizer has a way of its own with "
            "characters that it does not know, so leave it out"
        )
    return subject


def open_for_surgery(source: str, device: str, unknown: Literal["error", "skip"] = "error") -> Subject:
    """Open a model whose heads are to be merged or taken out.

    Raises ValueError as `open_model`, and for a model of which that cannot be done.
    """
    from headwise.hub.subject import require_causal
    from headwise.hub.surgery import head_counts

    subject = open_model(source, device, unknown)
    require_causal(
        subject,
        "and heads can be merged or taken out of models that do; headwise ablate says what its heads are "
        "worth, and heads.observe switches them off while it runs",
    )
    head_counts(subject.model)
    return subject


def open_data(source: str, data: str | None) -> Corpus:
    """Return the text that a verb was given, by default that which the run of the model held out, or the run
    of the model that it was made of or learned from."""
    from headwise.hub.origin import teacher_of
    from headwise.text.corpus import open_corpus
    from headwise.training.run_data import held_out_text

    if data is not None:
        return open_corpus(data)
    seen: set[str] = set()
    origin: str | None = source
    while origin is not None and origin not in seen:
        found = held_out_text(origin)
        if found is not None:
            return found
        seen.add(origin)
        origin = teacher_of(origin)
    return open_corpus(_DEFAULT_DATA)


def open_text(source: str, text: str | None, data: str | None) -> Corpus:
    """Return the text that a verb was given, itself or by where it is taken from; see `open_data`.

    Raises ValueError for both at once.
    """
    from headwise.text.corpus import Corpus

    if text is not None and data is not None:
        raise ValueError("give either --text or --data, not both")
    return open_data(source, data) if text is None else Corpus.from_text(text, "--text")


def read_texts(
    subject: Subject, source: str, text: str | None, data: str | None, texts: int, length: int
) -> list[list[int]]:
    """Return the token ids of the texts that a verb was given, for the model that `source` names.

    Says on stderr if --text is longer than what is looked at.

    Raises ValueError for both kinds of text at once, and as `sample_texts` does.
    """
    from headwise.heads.texts import sample_texts

    found = sample_texts(subject, open_text(source, text, data), texts=texts, length=length)
    looked, whole = sum(map(len, found)), 0 if text is None else len(subject.encode(text))
    if looked < whole:
        reads = subject.max_tokens
        more = "" if reads is not None and length >= reads else "; --length takes longer texts"
        typer.echo(f"note: --text has {whole:,} tokens, of which {looked:,} are looked at{more}", err=True)
    return found


def check_outputs(out: Path | None, plot: Path | None, data: str | None, *models: str) -> None:
    """Raise ValueError, before long work, unless table and picture can be written where they are to go."""
    from headwise.report.figures import check_picture
    from headwise.report.tables import check_table_file

    if out is not None:
        check_table_file(out)
        check_spared(out, data, *models)
    if plot is not None:
        check_picture(plot)


def write_outputs(
    table: pd.DataFrame, picture: HeadGrid | Callable[[], Figure], out: Path | None, plot: Path | None
) -> dict[str, Any]:
    """Write the table and the picture that a verb was asked for; return what --json says of them."""
    from headwise.report.figures import save_figure
    from headwise.report.head_grid import HeadGrid, grid_figure
    from headwise.report.tables import save_table

    if out is not None:
        save_table(table, out)
    if plot is not None:
        save_figure(grid_figure(picture) if isinstance(picture, HeadGrid) else picture(), plot)
    return {"file": None if out is None else str(out), "plot": None if plot is None else str(plot)}


def tell_outputs(out: Path | None, plot: Path | None, table: str = "table", picture: str = "grid") -> None:
    """Say what `write_outputs` has written; table, picture: what it is, in a word."""
    for path, what in ((out, table), (plot, picture)):
        if path is not None:
            typer.echo(f"wrote the {what} to {path}")


def check_spared(out: Path, data: str | None, *models: str) -> None:
    """Raise ValueError if a verb would write over what it reads: its text, or a part of its model."""
    if not out.exists():
        return
    if data is not None and Path(data).exists() and out.samefile(data):
        raise ValueError(f"--out {out} is the text of --data, which would be lost; give another name")
    for model in models:
        if Path(model).is_dir() and out.parent.samefile(model) and _OF_A_MODEL.fullmatch(out.name):
            raise ValueError(f"--out {out} is a part of the model {model}; give another name")


def counted(things: Sized, name: str) -> str:
    """Return how many things there are, in words."""
    return f"{len(things):,} {name}{'s' * (len(things) != 1)}"


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


def calibration_rows(
    subject: Subject, source: str, data: str | None, tokens: int, held_out: int
) -> tuple[list[Tensor], list[Tensor]]:
    """Return rows of tokens to fit to, and rows of those that follow, to measure on.

    Raises ValueError for numbers below 2, and for a text that has not so many tokens.
    """
    from headwise.compress.rows import rows_of

    if min(tokens, held_out) < 2:
        raise ValueError(f"--tokens and --held-out must be at least 2, got {tokens} and {held_out}")
    corpus = open_data(source, data)
    rows = rows_of(subject, corpus.chunks(), most=tokens + held_out)
    read = sum(row.numel() for row in rows)
    if read < tokens + held_out:
        enough = rows and read >= 8 * rows[0].numel()  # for both parts to be of several rows
        such = f", such as --tokens {read * 3 // 4} --held-out {read // 8}" if enough else ""
        raise ValueError(
            f"{corpus.name} has {read:,} tokens, and --tokens {tokens} and --held-out {held_out} need "
            f"{tokens + held_out:,}; give more text or smaller numbers{such}"
        )
    kept: list[Tensor] = []
    while rows and sum(row.numel() for row in kept) < tokens:
        kept.append(rows.pop(0))
    if not rows:
        raise ValueError(
            f"--held-out {held_out} is less than a row of {kept[-1].numel()} tokens; give at least that many"
        )
    return kept, rows
