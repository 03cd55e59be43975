"""headwise show: draw what the heads of a trained model attend to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer


def show(
    model: Annotated[Path, typer.Argument(help="A model folder, as `headwise train --out` writes it.")],
    text: Annotated[str, typer.Option(help="The text to look at; at most block_size tokens.")],
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
        bool, typer.Option("--json", help="Print tokens and weights as one JSON object instead of a drawing.")
    ] = False,
) -> None:
    """Draw what the heads of a trained model attend to.

    One head is drawn large, several as a grid. Rows are queries (the token that looks), columns are keys (the
    token looked at); keys that come later are hidden.
    """
    from headwise.report.figures import check_picture

    if out is not None:
        check_picture(out)

    import numpy as np
    import torch

    from headwise.model import load_model
    from headwise.model.device import pick_device

    gpt, tokenizer = load_model(model, pick_device(device))
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
        typer.echo(json.dumps(result, ensure_ascii=False))
    elif out is not None:
        typer.echo(f"drew {len(chosen)} head{'s' * (len(chosen) > 1)} to {out}")
    else:
        print_heatmap(weights, labels, visible=visible, layer=layer, head=head, scale=scale)
