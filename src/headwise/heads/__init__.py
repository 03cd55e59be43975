"""What the heads of a model do: observed while it runs, in numbers, roles and losses."""

from typing import TYPE_CHECKING

from headwise.lazy import lazy_exports

if TYPE_CHECKING:
    from headwise.heads.ablation import Ablation as Ablation
    from headwise.heads.ablation import ablate as ablate
    from headwise.heads.gate_gradients import importance as importance
    from headwise.heads.seam import AttentionCall as AttentionCall
    from headwise.heads.seam import observe as observe
    from headwise.heads.sets import greedy as greedy
    from headwise.heads.sets import pairs as pairs

__getattr__, __all__ = lazy_exports(
    __name__,
    {
        "headwise.heads.ablation": ["Ablation", "ablate"],
        "headwise.heads.gate_gradients": ["importance"],
        "headwise.heads.seam": ["AttentionCall", "observe"],
        "headwise.heads.sets": ["greedy", "pairs"],
    },
)
