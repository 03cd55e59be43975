"""Fewer heads and a smaller cache: grouping key/value heads, removing heads, and judging what it cost."""

from typing import TYPE_CHECKING

from headwise.lazy import lazy_exports

if TYPE_CHECKING:
    from headwise.compress.budget import counts_for_cache as counts_for_cache
    from headwise.compress.grouping import GroupResult as GroupResult
    from headwise.compress.grouping import expand as expand
    from headwise.compress.grouping import group as group
    from headwise.compress.judge import recall_verdict as recall_verdict
    from headwise.compress.judge import text_losses as text_losses
    from headwise.compress.probes import passkey_scores as passkey_scores
    from headwise.compress.probes import recall_lines as recall_lines
    from headwise.compress.probes import recall_rows as recall_rows
    from headwise.compress.probes import recall_scores as recall_scores
    from headwise.compress.pruning import PruneResult as PruneResult
    from headwise.compress.pruning import choose as choose
    from headwise.compress.pruning import level as level
    from headwise.compress.pruning import prune as prune
    from headwise.compress.uptraining import UptrainResult as UptrainResult
    from headwise.compress.uptraining import uptrain as uptrain

__getattr__, __all__ = lazy_exports(
    __name__,
    {
        "headwise.compress.budget": ["counts_for_cache"],
        "headwise.compress.grouping": ["GroupResult", "expand", "group"],
        "headwise.compress.judge": ["recall_verdict", "text_losses"],
        "headwise.compress.probes": ["passkey_scores", "recall_lines", "recall_rows", "recall_scores"],
        "headwise.compress.pruning": ["PruneResult", "choose", "level", "prune"],
        "headwise.compress.uptraining": ["UptrainResult", "uptrain"],
    },
)
