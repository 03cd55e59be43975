"""headwise export: a model of headwise as a Hugging Face folder."""

from __future__ import annotations

from typing import cast

import typer

from headwise.cli.folders import levelled
from headwise.cli.options import Model
from headwise.cli.subjects import NewFolder


def export(model: Model, out: NewFolder) -> None:
    """Write a model of headwise as a folder that stock transformers and vLLM load.

    It becomes a LlamaForCausalLM, or a GPT2LMHeadModel where it is built like one, with its tokenizer. A
    model that no stock class can hold is refused, with the reasons. A model made of another keeps the
    way there, and the numbers that its heads had.
    """
    from headwise.files import check_new_folder

    check_new_folder(out)
    import torch

    from headwise.hub.dtypes import in_dtype, stored_dtype
    from headwise.hub.export import export as write
    from headwise.hub.origin import carry_origin, origin_of
    from headwise.model import GPT, load_model

    origin_of(model)  # which may be damaged: said before anything is written
    gpt, tokenizer = load_model(model)
    alike, notes = levelled(in_dtype(gpt, stored_dtype(model) or torch.float32))
    write(out, cast(GPT, alike), tokenizer)
    carry_origin(model, out, renumbered=bool(notes))
    for note in notes:
        typer.echo(f"note: {note}")
    typer.echo(f"wrote {out}; load it with transformers.AutoModelForCausalLM.from_pretrained({str(out)!r})")
