"""What headwise shows: tables, attention maps on paper, screen and terminal, and self-contained pages."""

from typing import TYPE_CHECKING

from headwise.lazy import lazy_exports

if TYPE_CHECKING:
    from headwise.report.tables import save_table as save_table
    from headwise.report.viewer.render import HeadView as HeadView
    from headwise.report.viewer.render import view as view
    from headwise.report.viewer.render import view_weights as view_weights

__getattr__, __all__ = lazy_exports(
    __name__,
    {
        "headwise.report.tables": ["save_table"],
        "headwise.report.viewer.render": ["HeadView", "view", "view_weights"],
    },
)
