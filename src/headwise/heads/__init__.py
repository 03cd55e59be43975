"""What the heads of a model do: observed while it runs, in numbers, roles and losses."""

from typing import TYPE_CHECKING

from headwise.lazy import lazy_exports

if TYPE_CHECKING:
    from headwise.heads.ablation import Ablation as Ablation
    from headwise.heads.ablation import ablate as ablate
    from headwise.heads.comparing import compare as compare
    from headwise.heads.gate_gradients import importance as importance
    from headwise.heads.likeness import similarity as similarity
    from headwise.heads.repeated import induction_scores as induction_scores
    from headwise.heads.role_rules import roles as roles
    from headwise.heads.seam import AttentionCall as AttentionCall
    from headwise.heads.seam import observe as observe
    from headwise.heads.sets import greedy as greedy
    from headwise.heads.sets import pairs as pairs
    from headwise.heads.statistics_collector import StatisticsCollector as StatisticsCollector
    from headwise.heads.statistics_collector import statistics as statistics
    from headwise.heads.statistics_result import HeadMap as HeadMap
    from headwise.heads.statistics_result import HeadStatistics as HeadStatistics
    from headwise.heads.two_texts import pair_statistics as pair_statistics

__getattr__, __all__ = lazy_exports(
    __name__,
    {
        "headwise.heads.ablation": ["Ablation", "ablate"],
        "headwise.heads.comparing": ["compare"],
        "headwise.heads.gate_gradients": ["importance"],
        "headwise.heads.likeness": ["similarity"],
        "headwise.heads.two_texts": ["pair_statistics"],
        "headwise.heads.repeated": ["induction_scores"],
        "headwise.heads.role_rules": ["roles"],
        "headwise.heads.seam": ["AttentionCall", "observe"],
        "headwise.heads.sets": ["greedy", "pairs"],
        "headwise.heads.statistics_collector": ["StatisticsCollector", "statistics"],
        "headwise.heads.statistics_result": ["HeadMap", "HeadStatistics"],
    },
)
