"""The page of heads: pick a head, see what it does, read what it is worth."""

from typing import TYPE_CHECKING

from headwise.lazy import lazy_exports

if TYPE_CHECKING:
    from headwise.report.viewer.data import ViewData as ViewData
    from headwise.report.viewer.data import view_data as view_data
    from headwise.report.viewer.data import weights_data as weights_data
    from headwise.report.viewer.render import HeadView as HeadView
    from headwise.report.viewer.render import view as view
    from headwise.report.viewer.render import view_weights as view_weights

__getattr__, __all__ = lazy_exports(
    __name__,
    {
        "headwise.report.viewer.data": ["ViewData", "view_data", "weights_data"],
        "headwise.report.viewer.render": ["HeadView", "view", "view_weights"],
    },
)
