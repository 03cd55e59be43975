"""headwise view: a page on which to pick a head, see what it does and read what it is worth."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headwise.cli.options import Device, Json, Quiet, Unknown
from headwise.cli.result import print_json
from headwise.cli.subjects import open_model, progress_of

if TYPE_CHECKING:
    import pandas

    from headwise.hub import Subject
    from headwise.report.viewer import ViewData

Silence = Literal["no", "zero", "mean", "resample"]

_CHEAP = 5e11
"""Parameters × tokens × heads up to which a default may silence each head: under a minute on a small CPU."""


def view(
    model: Annotated[
        str,
        typer.Argument(help="A model folder of ours, or a Hugging Face folder or name (needs the extra hf)."),
    ],
    text: Annotated[str | None, typer.Option(help="The text to show the heads on.")] = None,
    second: Annotated[
        str | None,
        typer.Option(
            help="A second text, read together with --text as a pair, in two segments if it has them."
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Text to measure on: a file, folder or built-in corpus. Without --text its first piece is "
            "shown; without --data the statistics are those of --text alone."
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path("heads.html"),
    beside: Annotated[
        str | None,
        typer.Option(help="Another model with the same tokenizer, to be compared head by head."),
    ] = None,
    texts: Annotated[
        int | None, typer.Option(help="How many pieces of --data to measure on. Default: 32.")
    ] = None,
    length: Annotated[
        int | None, typer.Option(help="Tokens in each of them, as far as the model reads. Default: 256.")
    ] = None,
    silence: Annotated[
        Literal["auto", "no", "zero", "mean", "resample"],
        typer.Option(
            help="Measure what each head is worth on --data, by silencing it this way. auto: zero, where a "
            "small model takes no more than a minute or so."
        ),
    ] = "auto",
    go_on: Annotated[
        int,
        typer.Option("--continue", help="Let the model write so many more tokens first, and mark them."),
    ] = 0,
    title: Annotated[str | None, typer.Option(help="The page's heading. Default: the model's name.")] = None,
    unknown: Unknown = "error",
    device: Device = "auto",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Write one self-contained page about the heads of a model.

    It is one file and opens in any browser, without a network: all heads at a glance, each with its role; the
    chosen ones large; over the text, what each token looks at and who looks at it; what silencing each costs.
    """
    if text is None and data is None:
        raise ValueError("view needs something to look at: give --text '…', or --data with a corpus")
    if text is not None and not text.strip():
        raise ValueError("--text is empty; give a text of at least one character")
    if second is not None and (text is None or not second.strip()):
        raise ValueError("--second is the other text of a pair; give --text '…' as well, and neither empty")
    if second is not None and go_on:
        raise ValueError("--continue goes on with one text; leave out --second")
    if silence not in ("auto", "no") and data is None:
        raise ValueError("--silence measures on a corpus; give --data as well")
    for name, number in (("--texts", texts), ("--length", length)):
        if number is not None and data is None:
            raise ValueError(f"{name} says what to take from a corpus; give --data as well")
    if go_on < 0:
        raise ValueError(f"--continue must be at least 0, got {go_on}")
    if out.is_dir():
        raise ValueError(f"--out {out} is a folder; give the name of a file in it, such as {out}/heads.html")
    if out.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"cannot write {out.name!r}: the name of a page must end in .html")
    from headwise.files import check_place

    check_place(out)

    from headwise.hub.origin import head_numbers
    from headwise.report.viewer import HeadView, view_data

    subject = open_model(model, device, unknown)
    other = None if beside is None else open_model(beside, device, unknown)
    measured, measured_on = None, ""
    if data is not None:
        from headwise.heads.texts import sample_texts
        from headwise.text import open_corpus

        corpus = open_corpus(data)
        measured = sample_texts(
            subject, corpus, texts=32 if texts is None else texts, length=256 if length is None else length
        )
        measured_on = f"{corpus.name}: {len(measured)} × {max(map(len, measured))}"
    shown = subject.encode(text) if text is not None else (measured or [])[0]
    prompt = start = None
    if text is not None and second is not None:
        shown, start = subject.encode_pair(text, second)
    if go_on:
        from headwise.report.viewer.continuation import continued

        shown, prompt = continued(subject, shown, go_on)
    how, note = _affordable(subject, measured) if silence == "auto" else (silence, "")
    heads = sum(layer.n_head for one in (subject, other) if one is not None for layer in one.layers)

    def look(one: Subject) -> ViewData:
        return view_data(
            one,
            shown,
            texts=measured,
            ablation=None if measured is None else _ablation(one, measured, how, quiet),
            how=how,
            title=title if one is subject else None,
            source=measured_on,
            prompt=prompt,
            second=start,
            planned_heads=heads,
            heads=head_numbers(one.name),
        )

    page = HeadView(look(subject), None if other is None else look(other))
    page.save(out)
    size = out.stat().st_size
    if as_json:
        result = {
            "file": str(out),
            "bytes": size,
            "tokens": len(page.data.queries),
            "heads": len(page.data.heads),
        }
        print_json(result)
    elif not quiet:
        if note:
            typer.echo(f"note: {note}")
        typer.echo(f"wrote {out} ({size / 1e6:.1f} MB): open it in a browser")


def _affordable(subject: Subject, texts: list[list[int]] | None) -> tuple[Silence, str]:
    """Return how to silence heads where nothing is asked for, and what is to be told of it."""
    from headwise.heads.documents import mask_id_of

    masks = subject.predicts == "masked token" and mask_id_of(subject) is not None
    if texts is None or not (subject.causal or masks) or min(map(len, texts)) < 2:
        return "no", ""
    heads = sum(layer.n_head for layer in subject.layers)
    parameters = sum(parameter.numel() for parameter in subject.model.parameters())
    if parameters * sum(map(len, texts)) * heads <= _CHEAP:
        return "zero", ""
    return "no", f"silencing {heads} heads would take long, so their worth is left out; --silence zero has it"


def _ablation(
    subject: Subject, texts: list[list[int]], silence: Silence, quiet: bool
) -> pandas.DataFrame | None:
    """Measure what each head is worth, if that is asked for."""
    if silence == "no":
        return None
    if subject.predicts == "nothing":
        raise ValueError(f"--silence measures a loss, but {subject.name} predicts nothing; leave it out")
    from headwise.heads import ablate

    with progress_of("silencing heads", quiet) as progress:
        return ablate(subject, texts, how=silence, on_progress=progress).table
