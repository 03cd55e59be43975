"""The page in a real browser: whatever it asks of the network or complains of fails the test."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from headwise.report.viewer import HeadView

READY = "() => performance.getEntriesByName('headwise-ready').length > 0"
# the clipboard of a page without a user is closed, so what would be copied is kept
KEEP_COPIES = "navigator.clipboard.writeText = async (text) => { window.copied = text; };"


class Opened:
    """A page with what tests ask of it."""

    def __init__(self, page: Any) -> None:
        self.page = page

    def find(self, selector: str) -> Any:
        return self.page.locator(selector)

    def head(self, layer: int, head: int) -> Any:
        return self.find(f'[data-head="{layer}.{head}"]')

    def token(self, at: int, side: str = "both") -> Any:
        return self.find(f'[data-side="{side}"] .token').nth(at)

    def pressed(self) -> list[str]:
        found: list[str] = self.find('.head[aria-pressed="true"]').evaluate_all(
            "all => all.map(e => e.dataset.head)"
        )
        return found

    def set(self, role: str, value: str | bool) -> None:
        control = self.find(f'[data-role="{role}"]')
        if isinstance(value, bool):
            control.set_checked(value)
        else:
            control.select_option(value)
        self.settle()

    def settle(self) -> None:
        self.page.evaluate("() => new Promise((done) => setTimeout(done, 30))")

    def copied(self, name: str) -> list[dict[str, Any]]:
        """What a button copies as JSON."""
        self.find(f'[data-copy="{name}-json"]').click()
        self.settle()
        rows: list[dict[str, Any]] = json.loads(self.page.evaluate("window.copied"))
        return rows

    def matrix(self, rows: int, columns: int) -> NDArray[np.float64]:
        """The numbers of the map on show, NaN where hidden, by the first token of each row and column."""
        cells = self.copied("map")
        found = np.full((rows, columns), np.nan)
        queries = {at: n for n, at in enumerate(sorted({c["query"] for c in cells}))}
        keys = {at: n for n, at in enumerate(sorted({c["key"] for c in cells}))}
        for cell in cells:
            value = cell.get("weight", cell.get("share"))
            found[queries[cell["query"]], keys[cell["key"]]] = value
        return found

    def list(self, which: str) -> list[list[str]]:
        """The lines beside the text: token, position, weight."""
        lines: list[list[str]] = self.find(f".list.{which} tbody tr").evaluate_all(
            "rows => rows.map(row => [...row.children].map(cell => cell.textContent))"
        )
        return [line for line in lines if line[1]]

    def picture(self) -> str:
        url: str = self.find("canvas.large").evaluate("canvas => canvas.toDataURL()")
        return url


USUAL = {"viewport": {"width": 1360, "height": 1000}, "locale": "en-GB"}


@pytest.fixture(scope="session")
def usual_context(browser: Any) -> Any:
    """Where pages are opened that ask for nothing special; making one for each takes a while."""
    return browser.new_context(**USUAL)


@pytest.fixture
def open_page(browser: Any, usual_context: Any, tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    """Open a view, or the text of a page, as a file."""
    wrong: list[str] = []
    pages: list[Any] = []

    def watch(route: Any) -> None:
        if route.request.url.startswith(("file:", "data:", "blob:")):
            route.continue_()
        else:
            wrong.append(f"request: {route.request.url}")
            route.abort()

    def opened(view: HeadView | str, fragment: str = "", *, script: str = "", **options: Any) -> Opened:
        path = tmp_path / f"page{len(pages)}.html"
        path.write_text(view if isinstance(view, str) else view.html(), encoding="utf-8")
        context = browser.new_context(**USUAL | options) if options else usual_context
        page = context.new_page()
        pages.append(page)
        page.add_init_script(KEEP_COPIES + script)
        page.on("console", lambda message: wrong.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        page.on("dialog", lambda dialog: wrong.append(f"dialog: {dialog.message}"))
        page.route("**/*", watch)
        page.goto(path.as_uri() + fragment)
        page.wait_for_function(READY)
        return Opened(page)

    yield opened
    for page in pages:
        page.close() if page.context is usual_context else page.context.close()
    assert not wrong, wrong
