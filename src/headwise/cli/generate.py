"""headwise generate: continue a prompt with a trained model."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from headwise.cli.options import Device, Model, Unknown, check_seed
from headwise.cli.result import print_json


def generate(
    model: Model,
    prompt: Annotated[
        str | None,
        typer.Option(help="Text to continue. Default: a line break, or the first known character."),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Tokens to add at most.")] = 200,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token each time.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(help="Draw from the k likeliest tokens only.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Draw from the likeliest tokens that make up probability p.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="The same seed gives the same text.", callback=check_seed)
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(help="End before this text (\\n, \\t are understood); may be repeated."),
    ] = None,
    unknown: Unknown = "error",
    device: Device = "auto",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of the text.")
    ] = False,
) -> None:
    """Continue a prompt with a trained model."""
    from headwise.model import load_model, stream
    from headwise.model.device import pick_device
    from headwise.model.generation import default_prompt

    gpt, tokenizer = load_model(model, pick_device(device))
    if prompt is None:
        prompt = default_prompt(tokenizer)
    started = time.perf_counter()
    pieces = stream(
        gpt,
        tokenizer,
        prompt,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        stop=[_unescape(text) for text in stop or ()],
        unknown=unknown,
    )
    if as_json:
        text = "".join(pieces)
        result = {"prompt": prompt, "text": text, "seconds": round(time.perf_counter() - started, 3)}
        print_json(result)
        return
    typer.echo(prompt, nl=False)
    for piece in pieces:
        typer.echo(piece, nl=False)
    typer.echo()


def _unescape(text: str) -> str:
    """Turn the two characters backslash-n (and -t, -backslash) of a shell argument into what they mean."""
    out, rest = "", iter(text)
    for character in rest:
        if character == "\\":
            following = next(rest, "")
            out += {"n": "\n", "t": "\t", "\\": "\\"}.get(following, "\\" + following)
        else:
            out += character
    return out
