"""headwise show: draw what the heads of a trained model attend to, or what a mask lets them see."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from headwise.cli.options import is_given
from headwise.cli.result import print_json

_OF_MODEL = {"model", "text", "layer", "head", "scale", "unknown", "device"}
_OF_MASK = {"mask", "length", "keys", "offset"}
_MOST_QUERIES = 100_000
_MOST_JSON_CELLS = 1_000_000


def show(
    context: typer.Context,
    model: Annotated[
        Path | None, typer.Argument(help="A model folder, as `headwise train --out` writes it.")
    ] = None,
    text: Annotated[str | None, typer.Option(help="The text to look at; at most block_size tokens.")] = None,
    mask: Annotated[
        str | None,
        typer.Option(
            help="Draw a mask instead, e.g. `causal & window(4)`. There are causal, window(n), prefix(n), "
            "lengths(a, b), documents(0, 0, 1, 1); combine them with & | ~ and brackets."
        ),
    ] = None,
    length: Annotated[
        int | None, typer.Option(help="Queries of the mask. Default: as many as keys, or 8.")
    ] = None,
    keys: Annotated[
        int | None,
        typer.Option(help="Keys of the mask. Default: those that `documents` numbers, or --length."),
    ] = None,
    offset: Annotated[
        int | None, typer.Option(help="Position of the mask's first query. Default: keys minus queries.")
    ] = None,
    layer: Annotated[int | None, typer.Option(help="Which layer, counted from 0. Default: all.")] = None,
    head: Annotated[int | None, typer.Option(help="Which head, counted from 0. Default: all.")] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Draw to this .png or .svg file, not on the terminal."),
    ] = None,
    scale: Annotated[
        Literal["linear", "sqrt"],
        typer.Option(help="Colour by the weight or, to see small ones, its square root."),
    ] = "linear",
    unknown: Annotated[
        Literal["error", "skip"], typer.Option(help="What to do with characters never seen in training.")
    ] = "error",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")] = "auto",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object with all numbers instead of a drawing.")
    ] = False,
) -> None:
    """Draw what the heads of a trained model attend to, or what a mask lets them see.

    Rows are queries (the token that looks), columns are keys (the token looked at). With a model folder and
    --text: one head is drawn large, several as a grid. With --mask: who may see whom.
    """
    _refuse_mixtures({name for name in context.params if is_given(context, name)})
    if out is not None:
        from headwise.report.figures import check_picture

        check_picture(out)
    if mask is not None:
        _show_mask(mask, length, keys, offset, out, as_json)
    elif model is None or text is None:
        missing = [name for name, value in (("a model folder", model), ("--text", text)) if value is None]
        raise ValueError(
            f"show needs {' and '.join(missing)}: headwise show FOLDER --text '…'; "
            "to draw a mask write: headwise show --mask 'causal & window(4)' --length 8"
        )
    else:
        _show_heads(model, text, layer, head, out, scale, unknown, device, as_json)


def _refuse_mixtures(given: set[str]) -> None:
    """Raise ValueError for options that would do nothing."""
    wrong, other = (
        (_OF_MODEL & given, "belongs to a model's heads, so leave it out with --mask")
        if "mask" in given
        else (_OF_MASK & given, "belongs to a mask, so give --mask as well")
    )
    if wrong:
        name = min(wrong)
        raise ValueError(f"{'the model folder' if name == 'model' else f'--{name}'} {other}")


def _show_mask(
    text: str, length: int | None, keys: int | None, offset: int | None, out: Path | None, as_json: bool
) -> None:
    from headwise.attention.mask_expression import parse_mask

    parsed = parse_mask(text)
    keys = keys if keys is not None else parsed.keys if parsed.keys is not None else length
    keys = 8 if keys is None else keys
    length = keys if length is None else length
    if min(length, keys) < 0:
        raise ValueError(f"--length and --keys must be at least 0, got {length} and {keys}")
    if max(length, keys) > _MOST_QUERIES:
        raise ValueError(
            f"a mask is drawn for at most {_MOST_QUERIES:,} queries and keys, got {length:,} and {keys:,}"
        )
    if as_json and length * keys > _MOST_JSON_CELLS:
        raise ValueError(
            f"--json lists every pair of query and key: {_MOST_JSON_CELLS:,} at most, got {length * keys:,}"
        )
    parsed.mask.check(length, keys)
    if out is not None:
        from headwise.report.figures import save_figure
        from headwise.report.mask_figure import mask_figure

        save_figure(mask_figure(parsed.mask, length, keys, offset), out)
    if as_json:
        table = parsed.mask.to_tensor(length, keys, offset=offset).int()
        result = {
            "mask": text,
            "sees": parsed.mask.words(),
            "queries": length,
            "keys": keys,
            "offset": keys - length if offset is None else offset,
            # one table for every sequence, or one for each
            "sequences": table[:, 0].tolist() if table.ndim == 4 else [table.tolist()],
            "file": None if out is None else str(out),
        }
        print_json(result)
    elif out is not None:
        typer.echo(f"drew the mask to {out}")
    else:
        typer.echo(parsed.mask.picture(length, keys, offset))


def _show_heads(
    folder: Path,
    text: str,
    layer: int | None,
    head: int | None,
    out: Path | None,
    scale: Literal["linear", "sqrt"],
    unknown: Literal["error", "skip"],
    device: str,
    as_json: bool,
) -> None:
    import numpy as np
    import torch

    from headwise.model import load_model
    from headwise.model.device import pick_device

    gpt, tokenizer = load_model(folder, pick_device(device))
    ids = tokenizer.encode(text, unknown=unknown)
    if not ids:
        raise ValueError("--text holds no tokens; give a text of at least one known character")
    if len(ids) > gpt.config.block_size:
        fits = tokenizer.decode(ids[: gpt.config.block_size])
        raise ValueError(
            f"--text has {len(ids)} tokens but this model sees at most {gpt.config.block_size} (block_size); "
            f"its first {len(fits)} characters fit"
        )
    with torch.no_grad():
        _, weights = gpt(torch.tensor([ids], device=gpt.token_embedding.weight.device), return_weights=True)

    from headwise.report.figures import save_figure
    from headwise.report.heatmap import heatmaps
    from headwise.report.maps import attention_maps
    from headwise.report.terminal import print_heatmap

    labels = tokenizer.labels(ids)
    visible = np.tri(len(ids), dtype=bool)
    maps = attention_maps(weights, labels, visible=visible)
    chosen = maps.select(layer, head)
    if out is not None:
        save_figure(heatmaps(weights, labels, visible=visible, layer=layer, head=head, scale=scale), out)
    if as_json:
        heads = [{"layer": at, "head": h, "weights": maps.layers[at][h].tolist()} for at, h in chosen]
        result = {"tokens": labels, "ids": ids, "heads": heads, "file": None if out is None else str(out)}
        print_json(result)
    elif out is not None:
        typer.echo(f"drew {len(chosen)} head{'s' * (len(chosen) > 1)} to {out}")
    else:
        print_heatmap(weights, labels, visible=visible, layer=layer, head=head, scale=scale)
