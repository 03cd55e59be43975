"""Models of every make through one door: those trained here and those of Hugging Face."""

from typing import TYPE_CHECKING

from headwise.lazy import lazy_exports

if TYPE_CHECKING:
    from headwise.hub.calls import AttentionCall as AttentionCall
    from headwise.hub.layers import AttentionLayer as AttentionLayer
    from headwise.hub.layers import attention_layers as attention_layers
    from headwise.hub.modes import evaluating as evaluating
    from headwise.hub.subject import Subject as Subject
    from headwise.hub.subject import open_subject as open_subject
    from headwise.hub.tokens import TokenBatch as TokenBatch

__getattr__, __all__ = lazy_exports(
    __name__,
    {
        "headwise.hub.calls": ["AttentionCall"],
        "headwise.hub.layers": ["AttentionLayer", "attention_layers"],
        "headwise.hub.modes": ["evaluating"],
        "headwise.hub.subject": ["Subject", "open_subject"],
        "headwise.hub.tokens": ["TokenBatch"],
    },
)
