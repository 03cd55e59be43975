"""A GPT made of multi-head attention: configuration, model, generation, and its folder."""

from typing import TYPE_CHECKING

from headwise.lazy import lazy_exports

if TYPE_CHECKING:
    from headwise.model.config import PRESETS as PRESETS
    from headwise.model.config import GPTConfig as GPTConfig
    from headwise.model.config import ModelSettings as ModelSettings
    from headwise.model.folder import load_model as load_model
    from headwise.model.folder import save_model as save_model
    from headwise.model.generation import generate as generate
    from headwise.model.generation import generate_ids as generate_ids
    from headwise.model.generation import stream as stream
    from headwise.model.gpt import GPT as GPT
    from headwise.model.sampling import Sampling as Sampling

__getattr__, __all__ = lazy_exports(
    __name__,
    {
        "headwise.model.config": ["PRESETS", "GPTConfig", "ModelSettings"],
        "headwise.model.folder": ["load_model", "save_model"],
        "headwise.model.generation": ["generate", "generate_ids", "stream"],
        "headwise.model.gpt": ["GPT"],
        "headwise.model.sampling": ["Sampling"],
    },
)
