"""The page of heads as the server gives it: with what talks to the server, and nothing from elsewhere."""

from __future__ import annotations

from typing import Any

from jinja2.utils import htmlsafe_json_dumps

from headwise.report.viewer.render import rendered

SCRIPTS = ("live_strings.js", "live_panel.js", "live.js")
"""After those of the page itself."""


def live_page(island: dict[str, Any], config: dict[str, Any], nonce: str) -> str:
    """Return the page. island: the data of the first text; nonce: what marks its script as ours."""
    return rendered(
        "page.html",
        htmlsafe_json_dumps(island, separators=(",", ":")),
        island["title"],
        standalone=True,
        live=htmlsafe_json_dumps(config, separators=(",", ":")),
        nonce=nonce,
        scripts=SCRIPTS,
        styles=("live.css",),
    )


def policy(nonce: str) -> str:
    """Return the Content-Security-Policy of the page: its own script, and requests to its own server."""
    return (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'unsafe-inline'; "
        "img-src data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
