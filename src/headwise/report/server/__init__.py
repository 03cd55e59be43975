"""The page of heads, live: type a text, switch heads off, and see what becomes of what the model expects."""

from typing import TYPE_CHECKING

from headwise.lazy import lazy_exports

if TYPE_CHECKING:
    from headwise.report.server.app import make_app as make_app
    from headwise.report.server.guard import Guard as Guard
    from headwise.report.server.limits import Limits as Limits
    from headwise.report.server.running import Address as Address
    from headwise.report.server.running import serve as serve
    from headwise.report.server.worker import Worker as Worker

__getattr__, __all__ = lazy_exports(
    __name__,
    {
        "headwise.report.server.app": ["make_app"],
        "headwise.report.server.worker": ["Worker"],
        "headwise.report.server.guard": ["Guard"],
        "headwise.report.server.limits": ["Limits"],
        "headwise.report.server.running": ["Address", "serve"],
    },
)
