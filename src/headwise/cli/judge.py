"""headwise judge: what models with fewer heads cost, keep and lose."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.console import Console

from headwise.cli.options import Device, Json, Quiet, Seed, Unknown, options_given
from headwise.cli.result import print_json
from headwise.cli.subjects import (
    Data,
    TableOut,
    Text,
    check_outputs,
    open_model,
    open_text,
    progress_of,
    tell_outputs,
    write_outputs,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headwise.compress.recall import Recall
    from headwise.hub import Subject

_READ_BEFORE = 24_000
_LENGTH = 1024
_SHOWN = 16
_PASSKEY_LENGTH = 512

_ABOUT_RECALL = (
    *("recall_keys", "recall_values", "recall_pairs", "recall_power", "recall_length", "recall_blank"),
    *("recall_answers", "recall_gaps", "recall_rows", "check_probe"),
)

Number = TypeVar("Number", int, float)

RECALL, PASSKEYS, TIMING = "Associative recall", "Pass keys", "Cache and time"


def judge(
    context: typer.Context,
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="PARENT CHILD...",
            help="Model folders of headwise, or Hugging Face folders or names; the first is the parent.",
        ),
    ],
    text: Text = None,
    data: Data = None,
    tokens: Annotated[int, typer.Option(help="Tokens of the text to read, at most.")] = 16_000,
    skip: Annotated[
        int | None,
        typer.Option(
            help="Tokens of the text to leave out first. Default: the 24,000 of --data that `group` and "
            "`prune` read by default; none of --text."
        ),
    ] = None,
    loss_only: Annotated[
        bool,
        typer.Option(
            "--loss-only",
            help="Compare bits per byte of the text alone, which models of different tokenizers have in "
            "common.",
        ),
    ] = False,
    recall: Annotated[
        bool | None,
        typer.Option(
            help="Ask for values of keys that were shown. Default: where the vocabulary allows it.",
            rich_help_panel=RECALL,
        ),
    ] = None,
    recall_keys: Annotated[
        str | None,
        typer.Option(
            help="Characters that serve as keys. Default: of the letters and digits (or words) of the "
            "vocabulary, at most 128, evenly spaced, every other one; --recall-values the rest of them.",
            rich_help_panel=RECALL,
        ),
    ] = None,
    recall_values: Annotated[
        str | None, typer.Option(help="Characters that serve as values.", rich_help_panel=RECALL)
    ] = None,
    recall_pairs: Annotated[
        str | None,
        typer.Option(
            help="Numbers of pairs in a row, with commas. Default: those of 4,8,16 that fit.",
            rich_help_panel=RECALL,
        ),
    ] = None,
    recall_power: Annotated[
        str,
        typer.Option(
            help="How questions are spread: 1 evenly, 0.01 most of them early; with commas.",
            rich_help_panel=RECALL,
        ),
    ] = "1,0.01",
    recall_length: Annotated[
        int | None,
        typer.Option(
            help="Tokens of a row. Default: as few as the pairs and the questions take.",
            rich_help_panel=RECALL,
        ),
    ] = None,
    recall_blank: Annotated[
        str | None,
        typer.Option(help="What fills longer rows: one character. Default: a space.", rich_help_panel=RECALL),
    ] = None,
    recall_answers: Annotated[
        bool,
        typer.Option(
            help="Write the value after each question, as a text would, or leave a blank there.",
            rich_help_panel=RECALL,
        ),
    ] = True,
    recall_gaps: Annotated[
        str | None,
        typer.Option(
            help="Where one range of gaps between question and answer ends and the next begins, with commas. "
            "Default: 8,16,32 and so on.",
            rich_help_panel=RECALL,
        ),
    ] = None,
    recall_rows: Annotated[int, typer.Option(help="Rows of each kind.", rich_help_panel=RECALL)] = 64,
    check_probe: Annotated[
        bool,
        typer.Option(
            "--check-probe",
            help="Silence the parent's retrieval heads, and as many others, to see whether recall is what "
            "they do.",
            rich_help_panel=RECALL,
        ),
    ] = False,
    passkey: Annotated[
        bool | None,
        typer.Option(
            help="Hide a number in the text and ask for it. Default: where the models can read it.",
            rich_help_panel=PASSKEYS,
        ),
    ] = None,
    passkey_length: Annotated[
        int | None,
        typer.Option(
            help=f"Tokens of the text it is hidden in. Default: {_PASSKEY_LENGTH}, or what the models read.",
            rich_help_panel=PASSKEYS,
        ),
    ] = None,
    passkey_tries: Annotated[
        int, typer.Option(help="Numbers to hide, at each of 5 depths.", rich_help_panel=PASSKEYS)
    ] = 10,
    length: Annotated[
        int | None,
        typer.Option(
            help=f"Tokens in the cache that is measured and timed. Default: {_LENGTH:,}, or what the models "
            "read.",
            rich_help_panel=TIMING,
        ),
    ] = None,
    timing: Annotated[
        bool, typer.Option(help="Time reading and writing, the models in turn.", rich_help_panel=TIMING)
    ] = True,
    seconds: Annotated[
        float, typer.Option(help="How long to time; at least 5 rounds.", rich_help_panel=TIMING)
    ] = 5.0,
    seed: Seed = 0,
    out: TableOut = None,
    plot: Annotated[Path | None, typer.Option(help="Draw it to this .png or .svg file.")] = None,
    unknown: Unknown = "error",
    device: Device = "auto",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Judge models against a parent: loss, retrieval, cache, parameters and time, in one table.

    Give the parent first, then what was made of it by `group`, `prune` or training. Losses alone hide what
    is lost in retrieval, so that is asked for plainly. Where the parent itself does not reach 95 % in a
    probe, nothing follows for its children, which is told as "cannot judge".
    """
    if tokens < 2:
        raise ValueError(f"--tokens must be at least 2, got {tokens}")
    if skip is not None and skip < 0:
        raise ValueError(f"--skip must be at least 0, got {skip}")
    if not 0 <= seconds < math.inf:
        raise ValueError(f"--seconds must be a number of at least 0, got {seconds}")
    if passkey_tries < 1:
        raise ValueError(f"--passkey-tries must be at least 1, got {passkey_tries}")
    about_recall = options_given(context, _ABOUT_RECALL)
    about_passkeys = options_given(context, ("passkey_length", "passkey_tries"))
    for wanted, without, extra in (
        (recall is not False, "--no-recall asks for no recall", about_recall),
        (passkey is not False, "--no-passkey asks for no pass keys", about_passkeys),
        (timing, "--no-timing times nothing", options_given(context, ("seconds",))),
    ):
        if extra and not wanted:
            raise ValueError(f"{without}, so leave out {', '.join(extra)}")
    if loss_only:
        more = [name for name, on in (("recall", recall), ("passkey", passkey), ("timing", timing)) if on]
        named = [*_ABOUT_RECALL, "passkey_length", "passkey_tries", "length", "seconds", "plot", *more]
        extra = options_given(context, named) + ["--unknown skip"] * (unknown == "skip")
        if extra:
            raise ValueError(
                f"--loss-only compares losses on every byte alone, so leave out {', '.join(extra)}"
            )
        _losses_alone(models, text, data, skip, tokens, device, out, quiet, as_json)
        return
    gaps = None if recall_gaps is None else _numbers(recall_gaps, "--recall-gaps", int)
    if gaps is not None and [0, *gaps] != sorted({0, *gaps}):
        raise ValueError(f"--recall-gaps must rise and be above 0, got {recall_gaps!r}")
    pairs = (
        None
        if recall_pairs is None
        else _each_once(_numbers(recall_pairs, "--recall-pairs", int), "--recall-pairs")
    )
    powers = _each_once(_numbers(recall_power, "--recall-power", float), "--recall-power")
    check_outputs(out, plot, data, *models)
    from headwise import compress
    from headwise.compress.footprint import this_machine
    from headwise.compress.judging import check_alike
    from headwise.hub.subject import most_tokens

    corpus = open_text(models[0], text, data)
    subjects = [open_model(model, device, unknown) for model in models]
    check_alike(subjects, [])
    parent = subjects[0]
    longest = most_tokens(subjects)
    left_out = _left_out(skip, text)
    rows = compress.judged_rows(subjects, corpus, skip=left_out, most=tokens)
    notes: list[str] = []
    tasks: list[Recall] = []
    why = None if recall is not None or about_recall else compress.why_no_recall(parent, longest=longest)
    if why is not None:
        notes.append(f"nothing was to be recalled: {why}")
    elif recall is not False:
        tasks = compress.recall_tasks(
            parent,
            keys=recall_keys,
            values=recall_values,
            pairs=pairs,
            powers=powers,
            rows=recall_rows,
            length=recall_length,
            blank=recall_blank,
            answered=recall_answers,
            longest=longest,
            seed=seed,
        )
    keys = None
    if passkey is not False:
        usual = min(_PASSKEY_LENGTH, longest or _PASSKEY_LENGTH)
        in_text = usual if passkey_length is None else passkey_length
        why = next(filter(None, (compress.why_no_passkeys(s, in_text) for s in subjects)), None)
        if why is None:
            filler = parent.decode([i for row in rows for i in row[0].tolist()][:in_text])
            keys = compress.PassKeys(filler, in_text, tries=passkey_tries, seed=seed)
        elif passkey or about_passkeys:
            raise ValueError(f"no pass keys can be asked for: {why}")
        else:
            notes.append(f"no pass keys were asked for: {why}")
    with progress_of("judging", quiet) as progress:
        found = compress.judge(
            subjects,
            rows,
            recall=tasks,
            gaps=[8 * 2**i for i in range(12)] if gaps is None else gaps,
            passkeys=keys,
            length=length if length is not None else min(_LENGTH, longest or _LENGTH),
            seconds=seconds if timing else None,
            on_progress=progress,
        )
    if tasks and recall_keys is None and not any(v.can_judge for v in found.recall if v.gaps is None):
        notes.append(
            "the parent does not recall what was drawn from its vocabulary; if it learned from lines of "
            "recall, name their characters with --recall-keys and --recall-values"
        )
    checked = None
    if check_probe and tasks:
        with progress_of("silencing heads", quiet) as progress:
            checked = compress.check_probe(parent, tasks[0], seed=seed, on_progress=progress)

    from headwise.report.judgement import check_lines, judgement_figure, judgement_lines

    written = write_outputs(found.table, lambda: judgement_figure(found), out, plot)
    machine = this_machine(parent.device)
    if as_json:
        about = {"text": corpus.name, "skipped": left_out, "machine": machine, "notes": notes, **written}
        check = None if checked is None else checked.to_json()
        print_json(found.to_json() | {"recall_tokens": _named(parent, tasks), "check": check} | about)
        return
    typer.echo(
        f"{found.tokens:,} tokens of {corpus.name}" + f" after the first {left_out:,}" * (left_out > 0) + "\n"
    )
    for line in judgement_lines(found, Console().width):
        typer.echo(line)
    typer.echo("")
    if tasks:
        for what, named in _named(parent, tasks).items():
            shown = " ".join(named[:_SHOWN]) + " …" * (len(named) > _SHOWN)
            typer.echo(f"recall: {len(named)} {what}: {shown}")
        typer.echo("        evenly: questions are spread evenly; power below 1: most of them come early")
        typer.echo(f"        guessing one of the values is right in {100 * tasks[0].chance:.1f} % of cases")
    if found.speeds is not None:
        typer.echo(f"times: median ± half the distance between quartiles, the models in turn, {machine}")
    if checked is not None:
        typer.echo(f"\nis the probe valid? {tasks[0].pairs} pairs, {parent.name}")
        for line in check_lines(checked):
            typer.echo(line)
    for note in notes:
        typer.echo(f"note: {note}")
    tell_outputs(out, plot, picture="plot")


def _left_out(skip: int | None, text: str | None) -> int:
    return skip if skip is not None else 0 if text is not None else _READ_BEFORE


def _losses_alone(
    models: list[str],
    text: str | None,
    data: str | None,
    skip: int | None,
    tokens: int,
    device: str,
    out: Path | None,
    quiet: bool,
    as_json: bool,
) -> None:
    from dataclasses import asdict

    from pandas import DataFrame

    from headwise import compress
    from headwise.compress.rows import rows_of
    from headwise.report.tables import aligned, save_table

    check_outputs(out, None, data, *models)
    corpus = open_text(models[0], text, data)
    subjects = [open_model(model, device) for model in models]
    parent, left_out = subjects[0], _left_out(skip, text)
    rows = rows_of(parent, corpus.chunks(), skip=left_out, most=tokens)
    ids = [i for row in rows for i in row[0].tolist() if i not in parent.special_ids]
    with progress_of("judging", quiet) as progress:
        found = compress.byte_losses(subjects, parent.decode(ids).strip("\ufffd"), progress)
    each = [{"model": name, **asdict(loss)} for name, loss in zip(found.names, found.losses, strict=True)]
    if out is not None:
        save_table(DataFrame(each), out)
    if as_json:
        about = {"bytes": found.text_bytes, "pieces": found.pieces, "text": corpus.name, "skipped": left_out}
        print_json({"models": each, **about, "file": None if out is None else str(out)})
        return
    table = [["model", "bits per byte", "more than the parent", "95 % interval"]]
    for name, loss in zip(found.names, found.losses, strict=True):
        more = [f"{loss.more:+.4f}", f"± {(loss.high - loss.low) / 2:.4f}"] if len(table) > 1 else ["", ""]
        table.append([name, f"{loss.bits_per_byte:.4f}", *more])
    typer.echo("\n".join([*aligned(table, left=(0,)), ""]))
    typer.echo(
        f"on the same {found.text_bytes:,} bytes of {corpus.name}, in {found.pieces} pieces; each model "
        "reads them by its own tokenizer"
    )
    tell_outputs(out, None)


def _numbers(given: str, option: str, kind: Callable[[str], Number]) -> list[Number]:
    try:
        return [kind(part) for part in given.split(",")]
    except ValueError:
        raise ValueError(f"{option} must be numbers with commas, got {given!r}") from None


def _each_once(numbers: list[Number], option: str) -> list[Number]:
    twice = next((number for number in numbers if numbers.count(number) > 1), None)
    if twice is not None:
        raise ValueError(f"{option} names {twice:g} twice; name each number once")
    return numbers


def _named(subject: Subject, tasks: Sequence[Recall]) -> dict[str, list[str]]:
    """Return the keys and the values of tasks, as labels."""
    if not tasks:
        return {}
    return {
        "keys": subject.labels(tasks[0].keys),
        "values": subject.labels(tasks[0].values),
    }
