"""headwise import: a Hugging Face folder as a model of headwise."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headwise.cli.subjects import NewFolder


def import_(
    folder: Annotated[Path, typer.Argument(help="A Hugging Face folder: a Llama, Mistral or GPT-2.")],
    out: NewFolder,
) -> None:
    """Write a Hugging Face model as a model folder of headwise, to train or cut it here.

    What headwise has no place for is refused, with the reasons. A model made of another keeps the
    way there, and the numbers that its heads had.
    """
    from headwise.files import check_new_folder

    check_new_folder(out)
    from headwise.hub.import_ import import_folder
    from headwise.hub.origin import carry_origin, origin_of
    from headwise.model import save_model

    origin_of(folder)  # which may be damaged: said before anything is written
    model, tokenizer = import_folder(folder)
    save_model(out, model, tokenizer)
    carry_origin(folder, out)
    typer.echo(f"wrote {out}: {model.num_parameters():,} parameters")
