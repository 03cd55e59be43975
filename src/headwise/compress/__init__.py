"""Fewer heads and a smaller cache: grouping key/value heads, removing heads, and judging what it cost."""

from typing import TYPE_CHECKING

from headwise.lazy import lazy_exports

if TYPE_CHECKING:
    from headwise.compress.budget import counts_for_cache as counts_for_cache
    from headwise.compress.byte_loss import ByteLosses as ByteLosses
    from headwise.compress.byte_loss import byte_losses as byte_losses
    from headwise.compress.gradual import prune_gradually as prune_gradually
    from headwise.compress.grouping import GroupResult as GroupResult
    from headwise.compress.grouping import expand as expand
    from headwise.compress.grouping import group as group
    from headwise.compress.judging import Judgement as Judgement
    from headwise.compress.judging import judge as judge
    from headwise.compress.judging import judged_rows as judged_rows
    from headwise.compress.passkeys import PassKeys as PassKeys
    from headwise.compress.passkeys import passkey_scores as passkey_scores
    from headwise.compress.passkeys import why_no_passkeys as why_no_passkeys
    from headwise.compress.pruning import PruneResult as PruneResult
    from headwise.compress.pruning import choose as choose
    from headwise.compress.pruning import level as level
    from headwise.compress.pruning import prune as prune
    from headwise.compress.recall import recall_lines as recall_lines
    from headwise.compress.recall import recall_rows as recall_rows
    from headwise.compress.recall import recall_scores as recall_scores
    from headwise.compress.recall_tokens import recall_tasks as recall_tasks
    from headwise.compress.recall_tokens import why_no_recall as why_no_recall
    from headwise.compress.retrieval import retrieval_heads as retrieval_heads
    from headwise.compress.selection import greedy_order as greedy_order
    from headwise.compress.selection import rank as rank
    from headwise.compress.selection import select as select
    from headwise.compress.text_loss import text_losses as text_losses
    from headwise.compress.uptraining import UptrainResult as UptrainResult
    from headwise.compress.uptraining import uptrain as uptrain
    from headwise.compress.uptraining_config import UptrainConfig as UptrainConfig
    from headwise.compress.uptraining_folder import UptrainOutcome as UptrainOutcome
    from headwise.compress.uptraining_folder import uptrain_folder as uptrain_folder
    from headwise.compress.validity import check_probe as check_probe
    from headwise.compress.verdicts import recall_verdict as recall_verdict

__getattr__, __all__ = lazy_exports(
    __name__,
    {
        "headwise.compress.budget": ["counts_for_cache"],
        "headwise.compress.byte_loss": ["ByteLosses", "byte_losses"],
        "headwise.compress.gradual": ["prune_gradually"],
        "headwise.compress.grouping": ["GroupResult", "expand", "group"],
        "headwise.compress.judging": ["Judgement", "judge", "judged_rows"],
        "headwise.compress.passkeys": ["PassKeys", "passkey_scores", "why_no_passkeys"],
        "headwise.compress.pruning": ["PruneResult", "choose", "level", "prune"],
        "headwise.compress.recall": ["recall_lines", "recall_rows", "recall_scores"],
        "headwise.compress.recall_tokens": ["recall_tasks", "why_no_recall"],
        "headwise.compress.retrieval": ["retrieval_heads"],
        "headwise.compress.selection": ["greedy_order", "rank", "select"],
        "headwise.compress.text_loss": ["text_losses"],
        "headwise.compress.uptraining": ["UptrainResult", "uptrain"],
        "headwise.compress.uptraining_config": ["UptrainConfig"],
        "headwise.compress.uptraining_folder": ["UptrainOutcome", "uptrain_folder"],
        "headwise.compress.validity": ["check_probe"],
        "headwise.compress.verdicts": ["recall_verdict"],
    },
)
