"""headwise: train multi-head attention, see what every head does, know what it costs."""

from typing import TYPE_CHECKING

from headwise.lazy import lazy_exports

if TYPE_CHECKING:
    from headwise.attention import Mask as Mask
    from headwise.attention import MultiHeadAttention as MultiHeadAttention
    from headwise.model import GPT as GPT
    from headwise.model import GPTConfig as GPTConfig
    from headwise.model import generate as generate
    from headwise.model import load_model as load_model
    from headwise.model import save_model as save_model

__version__ = "0.1.0"

__getattr__, __all__ = lazy_exports(
    __name__,
    {
        "headwise.attention": ["Mask", "MultiHeadAttention"],
        "headwise.model": ["GPT", "GPTConfig", "generate", "load_model", "save_model"],
    },
)
