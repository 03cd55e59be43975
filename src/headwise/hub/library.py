"""The optional library of Hugging Face models, imported only when it is needed."""

from __future__ import annotations

import importlib
import sys
from typing import Any, cast

from torch import nn


def transformers() -> Any:
    """Return the module `transformers`.

    Raises:
        ValueError: it is not installed, or too old.
    """
    try:
        library = importlib.import_module("transformers")
    except ImportError as error:
        raise ValueError(
            f"Hugging Face models need transformers ({error}); install it with `pip install headwise[hf]`"
        ) from error
    if not hasattr(attention_interface(), "get_interface"):
        raise ValueError(
            f"transformers {library.__version__} has no attention interface to look through; "
            "install a newer one with `pip install -U headwise[hf]`"
        )
    return library


def attention_interface() -> Any:
    """Return the class in which transformers keeps its attention functions; models ask it for theirs."""
    return importlib.import_module("transformers.modeling_utils").AttentionInterface


def pretrained_parts(model: nn.Module) -> list[nn.Module]:
    """Return the outermost modules of a model that are models of transformers, itself or none perhaps."""
    loaded = sys.modules.get("transformers.modeling_utils")
    if loaded is None:  # a model of transformers cannot be there before it
        return []
    kind = cast(type[nn.Module], loaded.PreTrainedModel)
    if isinstance(model, kind):
        return [model]
    return [part for child in model.children() for part in pretrained_parts(child)]
