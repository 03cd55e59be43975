"""headwise walkthrough: multi-head attention step by step in NumPy, every array printed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwise.cli.options import check_seed
from headwise.cli.result import print_json

if TYPE_CHECKING:
    from headwise.attention.walkthrough import Array, Walk

_MOST_NUMBERS = 12  # longer rows of numbers are cut on the screen; --json has them whole


def walkthrough(
    words: Annotated[str, typer.Option(help="Words, separated by spaces.")] = "나는 학교에 버스로 갔다",
    d_model: Annotated[int, typer.Option(help="Numbers that stand for one word.")] = 8,
    heads: Annotated[int, typer.Option(help="Heads; must divide d_model.")] = 2,
    seed: Annotated[
        int, typer.Option(help="Seed of the random words and matrices.", callback=check_seed)
    ] = 1,
    causal: Annotated[bool, typer.Option("--causal", help="Hide later words.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object with every array.")] = False,
) -> None:
    """Multi-head attention step by step in NumPy, every array printed.

    Words and matrices are random, so the weights mean nothing yet: what can be followed is the arithmetic.
    """
    from headwise.attention.walkthrough import random_inputs, walk

    names = words.split()
    if not names:
        raise ValueError("--words holds no words; give some, separated by spaces")
    inputs = random_inputs(len(names), d_model, seed)
    result = walk(inputs, heads, causal=causal)
    if as_json:
        arrays = {name: _plain(array) for name, array in (inputs._asdict() | result.arrays()).items()}
        summary = {"words": names, "n_head": heads, "seed": seed, "causal": causal}
        summary |= {"parameters": inputs.parameters, "arrays": arrays}
        print_json(summary)
        return
    typer.echo(f"T={len(names)} words, H={heads} heads")
    typer.echo(f"D={d_model} numbers for a word, K={d_model // heads} of them for a head")
    typer.echo(f"{inputs.parameters:,} weights in W_Q, W_K, W_V and W_O, here random with seed {seed}")
    for line in _lines(names, result, causal):
        typer.echo(line)


def _lines(words: list[str], walk: Walk, causal: bool) -> Iterator[str]:
    def table(title: str, array: Array, columns: Sequence[str] | None = None) -> Iterator[str]:
        yield ""
        yield f"{title} = {array.shape}"
        yield from _table(words, columns, array)

    def per_head(title: str, array: Array, columns: Sequence[str] | None = None) -> Iterator[str]:
        yield ""
        yield f"{title} = {array.shape}"
        for head, rows in enumerate(array):
            yield f"head {head}"
            yield from _table(words, columns, rows)

    yield from table("x: one row per word (T, D)", walk.x)
    yield "\n1. project: every word times a learned matrix"
    yield from table("q = x W_Q: what each word looks for (T, D)", walk.q)
    yield from table("k = x W_K: what each word offers (T, D)", walk.k)
    yield from table("v = x W_V: what each word hands over (T, D)", walk.v)
    yield "\n2. split: each head gets its own columns"
    yield from per_head("q of each head (H, T, K)", walk.q_heads)
    yield from per_head("k of each head (H, T, K)", walk.k_heads)
    yield from per_head("v of each head (H, T, K)", walk.v_heads)
    yield "\n3. score: how well each query matches each key"
    hidden = "; · is hidden, for it comes later" if causal else ""
    yield from per_head(f"q kᵀ / √K{hidden} (H, T, T)", walk.scores, words)
    yield "\n4. weigh: softmax makes each row add up to 1, and takes that much of each value"
    yield from per_head("weights: row looks at column (H, T, T)", walk.weights, words)
    yield from per_head("weights times v (H, T, K)", walk.head_outputs)
    yield "\n5. join: the heads side by side"
    yield from table("joined (T, D)", walk.joined)
    yield "\n6. mix: W_O lets the heads meet"
    yield from table("output = joined W_O (T, D)", walk.output)


def _table(rows: Sequence[str], columns: Sequence[str] | None, array: Array) -> list[str]:
    """Labelled lines that line up whatever the script; columns without names are numbered."""
    from headwise.report.tables import aligned

    more = []
    if columns is None:
        more = ["…"] if array.shape[1] > _MOST_NUMBERS else []
        array = array[:, :_MOST_NUMBERS]
        columns = [str(i) for i in range(array.shape[1])]
    cells = [["", *columns, *more]]
    for label, values in zip(rows, array.tolist(), strict=True):
        cells.append([label, *("·" if value == float("-inf") else f"{value:.2f}" for value in values), *more])
    return ["  " + line for line in aligned(cells)]


def _plain(array: Array) -> Any:
    """Nested lists for JSON, which has no infinity: a hidden score becomes null."""
    if array.ndim > 1:
        return [_plain(part) for part in array]
    return [None if value == float("-inf") else value for value in array.tolist()]
