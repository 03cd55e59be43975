"""From a configuration to an architecture, by its `model_type`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from headwise.cost.architecture import Architecture
from headwise.cost.formats.families import FAMILIES, read_family
from headwise.cost.formats.fields import Fields
from headwise.cost.formats.other import deepseek, gpt2, gptj, opt

_OTHERS: dict[str, Callable[[Fields], Architecture]] = {
    "gpt2": gpt2,
    "gpt_bigcode": gpt2,
    "gptj": gptj,
    "opt": opt,
    "deepseek_v2": deepseek,
    "deepseek_v3": deepseek,
}
_WITH_TEXT_INSIDE = {"gemma3": "gemma3_text"}

MODEL_TYPES = tuple(sorted([*FAMILIES, *_OTHERS, *_WITH_TEXT_INSIDE]))
"""The values of `model_type` that can be read."""


def from_hf_config(values: Mapping[str, Any]) -> Architecture:
    """Return the architecture that a Hugging Face `config.json` describes; transformers is not needed.

    Args:
        values: the file's content.

    Raises:
        ValueError: an unknown `model_type`, by name; a field that is missing, odd, or not counted.
    """
    model_type = values.get("model_type")
    if not isinstance(model_type, str):
        raise ValueError(
            f"the config's model_type must be a name such as 'llama', got {model_type!r}; "
            "is it a Hugging Face config.json?"
        )
    if model_type in _WITH_TEXT_INSIDE:
        inside = values.get("text_config")
        if not isinstance(inside, Mapping):
            raise ValueError(f"the {model_type} config has no text_config, which its costs depend on; add it")
        text = from_hf_config({**inside, "model_type": _WITH_TEXT_INSIDE[model_type]})
        note = "Only the text model is counted, not what reads images."
        return replace(text, name=model_type, notes=(*text.notes, note))
    if model_type not in MODEL_TYPES:
        raise ValueError(
            f"model_type {model_type!r} is not one whose costs are known; known are {', '.join(MODEL_TYPES)} "
            "(or give the sizes by flags)"
        )
    fields = Fields(values, model_type)
    if model_type in FAMILIES:
        read = read_family(fields, FAMILIES[model_type])
    else:
        if values.get("per_layer_config"):
            raise ValueError(
                f"per_layer_config cannot be read for {model_type}, only for {', '.join(FAMILIES)}"
            )
        read = _OTHERS[model_type](fields)
    if values.get("quantization_config"):
        note = "Quantised weights are not counted as such: weights_bytes is all parameters in dtype."
        return replace(read, notes=(*read.notes, note))
    return read
