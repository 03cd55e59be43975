"""Fewer heads and a smaller cache: grouping key/value heads, removing heads, and judging what it cost."""

from typing import TYPE_CHECKING

from headwise.lazy import lazy_exports

if TYPE_CHECKING:
    from headwise.compress.grouping import GroupResult as GroupResult
    from headwise.compress.grouping import expand as expand
    from headwise.compress.grouping import group as group

__getattr__, __all__ = lazy_exports(
    __name__,
    {
        "headwise.compress.grouping": ["GroupResult", "expand", "group"],
    },
)
