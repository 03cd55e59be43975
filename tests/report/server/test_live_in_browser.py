"""The live page as somebody uses it, in Chromium."""

from __future__ import annotations

import copy
import importlib.util
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headwise.hub import Subject
from headwise.report.server import Limits, Worker
from headwise.report.server.reading import reading

READY = "() => performance.getEntriesByName('headwise-ready').length > 0"
TEXT = "abc cab abc"


class Visit:
    """A page of the server, and what went wrong on it."""

    def __init__(self, page: Any) -> None:
        self.page = page

    def find(self, selector: str) -> Any:
        return self.page.locator(selector)

    def until(self, selector: str, text: str) -> None:
        """Wait until an element says something."""
        self.find(selector).filter(has_text=text).first.wait_for(timeout=20_000)

    def candidates(self) -> list[list[str]]:
        found: list[list[str]] = self.find(".candidates tbody tr").evaluate_all(
            "rows => rows.map(row => [...row.children].map(cell => cell.textContent))"
        )
        return found


@pytest.fixture(scope="module")
def server(subject: Subject, running_server: Callable[..., Any]) -> Iterator[Any]:
    """Of copies, as a test may run the model itself while the server does."""
    served = [
        Subject.of(copy.deepcopy(subject.model), subject.tokenizer, name)  # type: ignore[attr-defined]
        for name in ("tiny", "other")
    ]
    with running_server([Worker(one) for one in served], TEXT, Limits(tokens=60, new_tokens=40)) as found:
        yield found


@pytest.fixture
def visit(browser: Any, server: Any) -> Iterator[Callable[..., Visit]]:
    wrong: list[str] = []
    contexts: list[Any] = []

    def opened(fragment: str = "", *, faults: bool = False, **options: Any) -> Visit:
        """faults: whether the server may refuse something, which Chromium notes in its console."""
        usual = {"viewport": {"width": 1360, "height": 1000}, "locale": "en-GB"}
        context = browser.new_context(**usual | options)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        page.on(
            "console",
            lambda message: faults or wrong.append(f"console: {message.text}"),
        )
        page.on(
            "request",
            lambda request: (
                request.url.startswith((server.url, "data:", "blob:")) or wrong.append(request.url)
            ),
        )
        page.goto(f"{server.url}/{fragment}")
        page.wait_for_function(READY)
        found = Visit(page)
        found.until(".live-status", "of at most 60" if options.get("locale") != "ko-KR" else "최대 60")
        return found

    yield opened
    for context in contexts:
        context.close()
    assert not wrong, wrong


def test_a_head_is_switched_off_and_on_again(visit: Callable[..., Visit], subject: Subject) -> None:
    page = visit()
    before = page.candidates()
    assert [len(row) for row in before] == [2] * 8
    page.find('[data-head="1.2"]').click()
    page.until('[data-role="live-switch"]', "switch off: 1.2")
    page.find('[data-role="live-switch"]').click()
    page.until(".live-loss", "change")
    wanted = reading(subject, subject.encode(TEXT), [(1, 2)], "zero", None)
    assert float(page.find('[data-loss="delta"]').inner_text().replace("−", "-")) == pytest.approx(
        wanted["loss"]["delta"], abs=6e-4
    )
    for row, one in zip(page.candidates(), wanted["candidates"], strict=True):
        assert row[0] == one["label"]
        for told, share in zip(row[1:], (one["plain"], one["silent"]), strict=True):
            assert float(told.removesuffix(" %")) == pytest.approx(100 * share, abs=0.051)
    assert "switched off" in page.find('[data-head="1.2"]').get_attribute("aria-label")
    assert page.find(".head.off").evaluate_all("all => all.map(e => e.dataset.head)") == ["1.2"]
    page.find('[data-role="model"]').wait_for()  # the maps of both, and their difference
    page.find('[data-role="model"]').select_option("difference")
    page.until(".map-title", "tiny without 1.2 minus tiny")
    page.find('[data-role="live-all-on"]').click()
    page.find('[data-role="model"]').wait_for(state="detached")
    assert page.candidates() == before
    assert page.find(".head.off").count() == 0


def test_what_is_typed_is_shown_and_expected_anew(visit: Callable[..., Visit], subject: Subject) -> None:
    page = visit()
    area = page.find('[data-role="live-text"]')
    area.click()
    page.page.keyboard.press("Control+End")
    page.page.keyboard.type(" <b>가")
    text = TEXT + " <b>가"
    count = len(subject.encode(text))
    page.until(".live-status", f"{count} of at most 60 tokens")
    page.page.wait_for_function(
        "count => document.querySelector('.headwise-view').shadowRoot"
        ".querySelectorAll('.running .token').length === count",
        arg=count,
    )
    assert area.evaluate("e => e.getRootNode().activeElement === e")  # whoever types goes on typing
    assert page.find(".strip .token").count() == count
    wanted = reading(subject, subject.encode(text), [], "zero", None)
    assert [row[0] for row in page.candidates()] == [one["label"] for one in wanted["candidates"]]
    page.find(".running .token").nth(2).click()  # what comes after another token
    page.until(".candidates caption", f"{subject.labels(subject.encode(text))[2]} (2)")


def test_it_writes_and_stops(visit: Callable[..., Visit], subject: Subject, server: Any) -> None:
    page = visit("#off=0.0_0.1_0.2_0.3_1.0_1.1_1.2_1.3")
    page.until(".live-loss", "change")
    page.find('[data-role="live-temperature"]').fill("1")
    page.find('[data-role="live-tokens"]').fill("12")
    page.find('[data-role="live-write"]').click()
    page.until(".live", "done")
    plain, silent = page.find(".written").all_inner_texts()
    from headwise.model import generate

    whole = generate(subject.gpt, subject.tokenizer, TEXT, max_new_tokens=12, seed=0)  # type: ignore[attr-defined]
    assert page.find('.written[data-side="plain"]').evaluate("e => e.textContent") == TEXT + whole
    assert silent != plain
    assert page.find(".written mark").count() == 1
    handles = [
        layer.module.register_forward_hook(lambda *_: time.sleep(0.05))
        for layer in server.workers[0].subject.layers
    ]
    try:
        page.find('[data-role="live-tokens"]').fill("40")
        page.find('[data-role="live-write"]').click()
        page.until('[data-role="live-write"]', "stop")
        page.find('[data-role="live-write"]').click()
        page.until(".live", "stopped")
    finally:
        for one in handles:
            one.remove()
    page.until('[data-role="live-write"]', "write")


def test_a_key_switches_a_head_and_a_link_restores_it(visit: Callable[..., Visit]) -> None:
    page = visit()
    page.find('[data-head="0.3"]').click()
    page.page.keyboard.press("o")
    page.until(".live-off .chip", "0.3")
    page.find('[data-role="live-how"]').select_option("mean")
    page.find('[data-role="live-text"]').fill("cab cab")
    page.until(".live-status", "of at most")
    page.find(".running .token").nth(1).wait_for()
    page.page.wait_for_function("() => location.hash.includes('text=cab')")
    address = page.page.url
    again = visit("#" + address.split("#")[1])
    again.until(".live-loss", "change")
    assert again.find('[data-role="live-text"]').input_value() == "cab cab"
    assert again.find('[data-role="live-how"]').input_value() == "mean"
    assert again.find(".live-off .chip").inner_text().startswith("0.3")


def test_mistakes_are_told_and_mended(visit: Callable[..., Visit]) -> None:
    page = visit(faults=True)
    page.find('[data-role="live-text"]').fill("")
    page.until(".live-fault", "the text is empty")
    page.find('[data-role="live-text"]').fill("xyz " * 20)
    page.until(".live-fault", "takes at most 60")
    page.find('[data-role="live-text"]').fill("abc")
    page.until(".live-status", "of at most 60")
    page.find(".live-fault:empty").wait_for(state="attached")


def test_another_model_is_chosen(visit: Callable[..., Visit]) -> None:
    page = visit()
    page.find('[data-role="live-model"]').select_option("other")
    page.until("h1", "other")


def test_korean_and_a_phone(visit: Callable[..., Visit]) -> None:
    page = visit(locale="ko-KR", viewport={"width": 390, "height": 844})
    assert page.find(".live > .head-line h2").inner_text() == "직접 해 보기"
    assert page.page.evaluate("() => document.documentElement.scrollWidth") <= 390
    page.find('[data-role="language"]').select_option("en")
    assert page.find(".live > .head-line h2").inner_text() == "Try it"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_fault(visit: Callable[..., Visit], scheme: str) -> None:
    found = importlib.util.find_spec("axe_playwright_python")
    if found is None:
        pytest.skip("axe-playwright-python is not installed")
    assert found.submodule_search_locations is not None
    axe = Path(found.submodule_search_locations[0]) / "axe.min.js"
    page = visit("#off=0.1_1.0", color_scheme=scheme, bypass_csp=True)
    page.until(".live-loss", "change")
    page.find('[data-role="live-tokens"]').fill("3")
    page.find('[data-role="live-write"]').click()
    page.until(".live", "done")
    page.page.evaluate(f"{axe.read_text(encoding='utf-8')}; 0")
    faults = page.page.evaluate("async () => (await axe.run()).violations")
    assert [(fault["id"], fault["impact"], fault["nodes"][0]["html"]) for fault in faults] == []
