"""Attention: masks, the one attention function and its backends, positions, the cache, the modules.

Names are loaded when they are first used, so that `headwise.attention.walkthrough` runs without torch.
"""

from typing import TYPE_CHECKING

from headwise.lazy import lazy_exports

if TYPE_CHECKING:
    from headwise.attention.cache import KVCache as KVCache
    from headwise.attention.cache import LayerCache as LayerCache
    from headwise.attention.cross_cache import CrossCache as CrossCache
    from headwise.attention.explanation import Explanation as Explanation
    from headwise.attention.explanation import explain as explain
    from headwise.attention.functional import attention as attention
    from headwise.attention.mask_proof import MaskReport as MaskReport
    from headwise.attention.mask_proof import mask_report as mask_report
    from headwise.attention.masks import Mask as Mask
    from headwise.attention.multi_head import MultiHeadAttention as MultiHeadAttention
    from headwise.attention.request import WeightsOf as WeightsOf
    from headwise.attention.rotary import Rotary as Rotary
    from headwise.attention.rotary import to_half_split as to_half_split
    from headwise.attention.rotary import to_interleaved as to_interleaved
    from headwise.attention.rotary_scaling import LinearScaling as LinearScaling
    from headwise.attention.rotary_scaling import Llama3Scaling as Llama3Scaling
    from headwise.attention.rotary_scaling import NTKScaling as NTKScaling
    from headwise.attention.rotary_scaling import YarnScaling as YarnScaling
    from headwise.attention.textbook import Head as Head
    from headwise.attention.textbook import HeadList as HeadList
    from headwise.attention.trace import ShapeRecord as ShapeRecord
    from headwise.attention.trace import trace_shapes as trace_shapes

__getattr__, __all__ = lazy_exports(
    __name__,
    {
        "headwise.attention.cache": ["KVCache", "LayerCache"],
        "headwise.attention.cross_cache": ["CrossCache"],
        "headwise.attention.explanation": ["Explanation", "explain"],
        "headwise.attention.functional": ["attention"],
        "headwise.attention.mask_proof": ["MaskReport", "mask_report"],
        "headwise.attention.masks": ["Mask"],
        "headwise.attention.multi_head": ["MultiHeadAttention"],
        "headwise.attention.request": ["WeightsOf"],
        "headwise.attention.rotary": ["Rotary", "to_half_split", "to_interleaved"],
        "headwise.attention.rotary_scaling": ["LinearScaling", "Llama3Scaling", "NTKScaling", "YarnScaling"],
        "headwise.attention.textbook": ["Head", "HeadList"],
        "headwise.attention.trace": ["ShapeRecord", "trace_shapes"],
    },
)
