"""headwise trace: the shape at every step of multi-head attention."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from headwise.cli.result import print_json


def trace(
    batch: Annotated[int, typer.Option(help="B: sequences at once.")] = 32,
    length: Annotated[int, typer.Option(help="T: tokens in each sequence.")] = 128,
    d_model: Annotated[int, typer.Option(help="D: width of the model.")] = 512,
    heads: Annotated[int, typer.Option(help="H: query heads.")] = 8,
    kv_heads: Annotated[
        int | None, typer.Option(help="G: key/value heads (GQA; 1 is MQA). Default: as many as query heads.")
    ] = None,
    context_length: Annotated[
        int | None,
        typer.Option(help="S: tokens of another text to attend to (cross attention). Default: none."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, no table.")] = False,
) -> None:
    """Name the shape at every step of multi-head attention.

    No numbers are computed and no memory is taken, so any size can be asked for.
    """
    for option, size in (
        ("--batch", batch),
        ("--length", length),
        ("--d-model", d_model),
        ("--heads", heads),
        ("--context-length", context_length),
    ):
        if size is not None and size < 1:
            raise ValueError(f"{option} must be at least 1, got {size}")

    import torch

    from headwise.attention import MultiHeadAttention, trace_shapes
    from headwise.report.tables import aligned

    with torch.device("meta"):
        mha = MultiHeadAttention(d_model, heads, n_kv_head=kv_heads)
        x = torch.empty(batch, length, d_model)
        context = None if context_length is None else torch.empty(batch, context_length, d_model)
    records = trace_shapes(mha, x, context)
    if as_json:
        print_json({"steps": [record._asdict() for record in records]})
        return
    sizes = {"B": batch, "T": length, "S": context_length, "D": d_model, "H": heads, "G": mha.n_kv_head}
    sizes |= {"K": mha.d_head, "V": mha.d_value}
    typer.echo("  ".join(f"{letter}={size}" for letter, size in sizes.items() if size is not None) + "\n")
    rows = [("step", "tensor", "letters", "shape")]
    for record in records:
        letters = f"({', '.join(record.letters.split())})"
        rows.append((record.step, record.name, letters, str(record.shape)))
    for line in aligned(rows, left=range(4)):
        typer.echo(line)
    scores = math.prod(next(record.shape for record in records if record.name == "scores"))
    square = "T·T" if context_length is None else "T·S"
    typer.echo(f"\nOnly the scores and their softmax grow with {square}: {scores:,} numbers each here.")
