"""Attention: masks, the one attention function and its backends, positions, the cache, the modules.

Names are loaded when they are first used, so that `headwise.attention.walkthrough` runs without torch.
"""

from typing import TYPE_CHECKING

from headwise.lazy import lazy_exports

if TYPE_CHECKING:
    from headwise.attention.cache import KVCache as KVCache
    from headwise.attention.cache import LayerCache as LayerCache
    from headwise.attention.functional import attention as attention
    from headwise.attention.masks import Mask as Mask
    from headwise.attention.multi_head import MultiHeadAttention as MultiHeadAttention
    from headwise.attention.rotary import Rotary as Rotary
    from headwise.attention.textbook import Head as Head
    from headwise.attention.textbook import HeadList as HeadList
    from headwise.attention.trace import ShapeRecord as ShapeRecord
    from headwise.attention.trace import trace_shapes as trace_shapes

__getattr__, __all__ = lazy_exports(
    __name__,
    {
        "headwise.attention.cache": ["KVCache", "LayerCache"],
        "headwise.attention.functional": ["attention"],
        "headwise.attention.masks": ["Mask"],
        "headwise.attention.multi_head": ["MultiHeadAttention"],
        "headwise.attention.rotary": ["Rotary"],
        "headwise.attention.textbook": ["Head", "HeadList"],
        "headwise.attention.trace": ["ShapeRecord", "trace_shapes"],
    },
)
