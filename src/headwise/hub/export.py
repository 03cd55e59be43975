"""Models out, as folders that stock transformers loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import tokenizers
import torch
from torch import nn

from headwise.files import replacing_folder
from headwise.hub.opening import quiet_library
from headwise.hub.stock import CLASSES, family_of, stock_config, to_stock
from headwise.hub.surgery import check_uniform
from headwise.model import GPT
from headwise.text import Tokenizer

SHARD = "5GB"
"""The most that one file of weights holds."""


def to_transformers(model: GPT) -> nn.Module:
    """Return a stock model of transformers that computes what a GPT of ours does, in its dtype.

    Raises:
        ValueError: no stock class holds such a model; lists every reason.
    """
    import transformers

    family = family_of(model.config)
    kind = getattr(transformers, CLASSES[family])
    config = kind.config_class(**stock_config(model.config, family))
    weight = model.token_embedding.weight
    with torch.random.fork_rng(devices=[]):  # its first weights are drawn, and then replaced
        made = kind(config).to(device=weight.device, dtype=weight.dtype)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if name.endswith("bias"):  # which ours may lack
                parameter.zero_()
    state = to_stock(model.state_dict(), family)
    missing, unknown = made.load_state_dict(state, strict=False)
    absent = [name for name in missing if not name.endswith("bias")]
    if absent or unknown:
        raise ValueError(f"{CLASSES[family]} lacks {unknown} and wants {absent}, which this version maps not")
    return cast(nn.Module, made.train(model.training))


def tokenizer_of(tokenizer: Tokenizer, block_size: int) -> Any:
    """Return a tokenizer of ours as one of transformers."""
    from transformers import PreTrainedTokenizerFast

    kind: Any = PreTrainedTokenizerFast
    return kind(
        tokenizer_object=tokenizers.Tokenizer.from_str(tokenizer.definition),
        clean_up_tokenization_spaces=False,
        model_max_length=block_size,
    )


def export(folder: Path | str, model: GPT, tokenizer: Tokenizer, *, overwrite: bool = False) -> None:
    """Write a GPT of ours and its tokenizer as a folder that stock transformers loads.

    Raises:
        ValueError: no stock class holds such a model; the vocabularies differ.
        FileExistsError: there is something at the folder already and it is not to be overwritten.
    """
    if tokenizer.vocab_size != model.config.vocab_size:
        raise ValueError(
            f"the tokenizer has {tokenizer.vocab_size} tokens but the model {model.config.vocab_size}; "
            "export a model with the tokenizer it was trained with"
        )
    made = to_transformers(model)
    save_transformers(folder, made, tokenizer_of(tokenizer, model.config.block_size), overwrite=overwrite)


def save_transformers(
    folder: Path | str, model: nn.Module, tokenizer: Any = None, *, overwrite: bool = False
) -> None:
    """Write a model of transformers, after surgery too, in its own class; all or nothing.

    Weights go to safetensors files of at most 5 GB.

    Raises:
        ValueError: its layers have different numbers of heads, which no config of its class can say.
        FileExistsError: there is something at the folder already and it is not to be overwritten.
    """
    if not isinstance(model, GPT):
        check_uniform(model)
    folder = Path(folder)
    if folder.exists() and not overwrite and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder} is there already; remove it, or give another folder")
    with replacing_folder(folder) as temporary, quiet_library():
        cast(Any, model).save_pretrained(temporary, max_shard_size=SHARD)
        if tokenizer is not None:
            tokenizer.save_pretrained(temporary)
