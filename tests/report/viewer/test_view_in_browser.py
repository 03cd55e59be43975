"""What a reader of the page sees and does, in Chromium."""

from __future__ import annotations

import importlib.util
import os
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray

from headwise.hub import Subject
from headwise.report.viewer import HeadView, view_data, weights_data

STEP = 0.005  # what one byte per weight may be off by, and a little

HOSTILE = [
    "<s>",
    "</script>",
    "<!--",
    '<img src=x onerror="alert(1)">',
    "a\"b'c",
    "&lt;",
    "😀",
    "שלום",
    "\u200b",
    "\n",
    "\t",
    "{{7*7}}",
    "</title><style>*{display:none}</style>",
    "안녕",
    "\u2028",
    "__proto__",
]


def planted(length: int = 12) -> NDArray[np.float64]:
    """Two layers of two heads `(2, 2, T, T)`: previous token, first token; uniform, itself."""
    weights = np.zeros((2, 2, length, length))
    rows = np.arange(length)
    weights[0, 0, rows, np.maximum(rows - 1, 0)] = 1
    weights[0, 1, :, 0] = 1
    weights[1, 0] = np.tri(length) / (rows + 1)[:, None]
    weights[1, 1, rows, rows] = 1
    return weights


def planted_view(length: int = 12, **options: Any) -> HeadView:
    return HeadView(
        weights_data(
            planted(length), [f"w{i}" for i in range(length)], visible=np.tri(length, dtype=bool), **options
        )
    )


def random_weights(layers: int, heads: int, length: int, seed: int = 0) -> NDArray[np.float64]:
    scores = np.random.default_rng(seed).normal(0, 2, (layers, heads, length, length))
    exponentials = np.where(np.tri(length, dtype=bool), np.exp(scores), 0.0)
    return exponentials / exponentials.sum(-1, keepdims=True)


def weights_of_model(subject: Subject, text: str) -> list[NDArray[np.float32]]:
    with torch.no_grad():
        _, weights = subject.model(torch.tensor([subject.encode(text)]), return_weights=True)
    return [layer[0].numpy() for layer in weights]


def test_a_click_on_a_cell_of_the_grid_changes_the_large_map(open_page: Callable[..., Any]) -> None:
    page = open_page(planted_view())
    page.head(0, 0).click()
    before = page.picture()
    page.head(1, 1).click()
    page.settle()
    assert page.pressed() == ["1.1"]
    assert page.picture() != before
    assert "Layer 1, head 1" in page.find(".map-title").inner_text()
    assert "current token" in page.find(".card h2").inner_text()
    np.testing.assert_allclose(np.nan_to_num(page.matrix(12, 12)), np.eye(12), atol=STEP)


def test_the_first_screen_says_everything_without_hovering(open_page: Callable[..., Any]) -> None:
    page = open_page(planted_view())
    for selector in (".running .token", ".grid .head", "canvas.large", ".card .statistics", ".list.out"):
        assert page.find(selector).first.is_visible()
    assert page.find(".head").all_inner_texts() == ["P", "F", "B", "C"]
    assert len(page.pressed()) == 1
    assert page.find('.token[aria-selected="true"]').count() == 1


def test_a_hovered_token_highlights_what_the_numbers_say(open_page: Callable[..., Any]) -> None:
    weights = random_weights(1, 1, 10)
    page = open_page(
        HeadView(weights_data(weights, [f"w{i}" for i in range(10)], visible=np.tri(10, dtype=bool)))
    )
    page.set("scale", "linear")
    for at in (9, 4, 0):
        page.token(at).hover()
        shares = page.find(".token").evaluate_all(
            "all => all.map(e => [parseFloat(e.style.getPropertyValue('--looked-at')), "
            "parseFloat(e.style.getPropertyValue('--looks'))])"
        )
        out, into = np.array(shares).T
        np.testing.assert_allclose(out / 78, weights[0, 0, at], atol=STEP)
        np.testing.assert_allclose(into / 100, weights[0, 0, :, at], atol=STEP)
        best = int(weights[0, 0, at].argmax())
        first = page.list("out")[0]
        assert first[:2] == [f"w{best}", str(best)]
        assert float(first[2]) == pytest.approx(weights[0, 0, at, best], abs=STEP)
        lookers = page.list("in")
        assert int(lookers[0][1]) == int(weights[0, 0, :, at].argmax())
    assert page.find(".arcs path").count() > 0


def test_a_click_keeps_a_token_and_another_lets_it_go(open_page: Callable[..., Any]) -> None:
    page = open_page(planted_view())
    page.token(5).click()
    page.token(8).hover()
    assert page.find('.token[aria-selected="true"]').inner_text() == "w5"
    assert page.find('[data-role="lock"]').is_checked()
    page.token(5).click()
    page.token(8).hover()
    assert page.find('.token[aria-selected="true"]').inner_text() == "w8"


def test_repeated_hovering_moves_nothing(open_page: Callable[..., Any]) -> None:
    page = open_page(
        HeadView(weights_data(random_weights(2, 3, 30), [("long" * (i % 5)) + str(i) for i in range(30)]))
    )
    boxes = (
        "() => { const root = document.querySelector('.headwise-view').shadowRoot; "
        "return [...root.querySelectorAll('.panel, .token, .head, canvas, button')].map(e => "
        "{ const b = e.getBoundingClientRect(); return [b.x, b.y, b.width, b.height]; }); }"
    )
    before = page.page.evaluate(boxes)
    for _ in range(2):
        for at in range(0, 30, 3):
            page.token(at).hover()
        page.find("canvas.large").hover(position={"x": 200, "y": 200})
    page.page.mouse.move(5, 5)
    assert page.page.evaluate(boxes) == before


def test_the_keyboard_reaches_everything(open_page: Callable[..., Any]) -> None:
    page = open_page(planted_view())
    wanted = page.page.evaluate(
        "() => { const root = document.querySelector('.headwise-view').shadowRoot; "
        "return [...root.querySelectorAll('button, select, input, summary, [tabindex]')]"
        ".filter(e => e.tabIndex >= 0 && e.checkVisibility()).length; }"
    )
    seen = page.page.evaluate("() => { window.reached = []; }")
    for _ in range(wanted + 2):
        page.page.keyboard.press("Tab")
        page.page.evaluate(
            "() => { const e = document.querySelector('.headwise-view').shadowRoot.activeElement; "
            "if (e && !window.reached.includes(e)) window.reached.push(e); }"
        )
    seen = page.page.evaluate("() => window.reached.length")
    assert seen == wanted
    unnamed = page.page.evaluate(
        "() => window.reached.filter(e => !(e.getAttribute('aria-label') || e.textContent.trim() || "
        "e.closest('label'))).map(e => e.outerHTML)"
    )
    assert unnamed == []


def test_arrow_keys_move_over_the_grid_and_its_gaps(open_page: Callable[..., Any]) -> None:
    weights = [planted()[0], planted()[1][:1], planted()[0]]
    view = HeadView(weights_data(weights, [f"w{i}" for i in range(12)], heads={0: [0, 3], 1: [3], 2: [0, 1]}))
    page = open_page(view)
    assert page.find(".gap").count() == 3 * 4 - 5
    page.head(0, 0).click()
    page.page.keyboard.press("ArrowRight")
    page.settle()
    assert page.pressed() == ["0.3"]
    page.page.keyboard.press("ArrowDown")
    page.settle()
    assert page.pressed() == ["1.3"]
    assert page.find(".head:focus").get_attribute("data-head") == "1.3"
    assert page.find('.head[tabindex="0"]').count() == 1
    page.page.keyboard.press("ArrowLeft")
    page.settle()
    assert page.pressed() == ["1.3"]
    assert "Layer 1, head 3" in page.find(".head:focus").get_attribute("aria-label")


def test_arrow_keys_move_over_the_text(open_page: Callable[..., Any]) -> None:
    page = open_page(planted_view())
    page.head(0, 0).click()
    page.token(11).focus()
    page.page.keyboard.press("ArrowLeft")
    assert page.find(".token:focus").inner_text() == "w10"
    assert page.list("out")[0][:2] == ["w9", "9"]
    page.page.keyboard.press("Home")
    assert page.find(".token:focus").inner_text() == "w0"
    page.page.keyboard.press("Enter")
    assert page.find('[data-role="lock"]').is_checked()
    assert page.find(".token:focus").inner_text() == "w0"


def test_several_heads_of_different_layers_are_summed_or_their_maximum_taken(
    open_page: Callable[..., Any],
) -> None:
    page = open_page(planted_view())
    weights = planted()
    page.head(0, 0).click()
    page.set("several", True)
    page.head(1, 0).click()
    page.settle()
    assert page.pressed() == ["0.0", "1.0"]
    seen = np.where(np.tri(12, dtype=bool), 1, np.nan)
    np.testing.assert_allclose(page.matrix(12, 12), (weights[0, 0] + weights[1, 0]) * seen, atol=2 * STEP)
    page.set("combine", "max")
    np.testing.assert_allclose(
        page.matrix(12, 12), np.maximum(weights[0, 0], weights[1, 0]) * seen, atol=STEP
    )
    assert page.find(".map .legend span").all_inner_texts()[:2] == ["0", "1"]
    # weights without a model know nothing of values, so a link that asks for them gets the sum
    page.page.goto(page.page.url.replace("combine=max", "combine=value"))
    page.settle()
    assert page.find('[data-role="combine"]').input_value() == "sum"
    assert page.find(".map .legend span").all_inner_texts()[:2] == ["0", "2"]
    page.find(".chip button").first.click()
    page.settle()
    assert page.pressed() == ["1.0"]


def test_without_the_first_token_rows_are_renormalised_and_labelled(open_page: Callable[..., Any]) -> None:
    weights = random_weights(1, 1, 9)
    page = open_page(
        HeadView(weights_data(weights, [f"w{i}" for i in range(9)], visible=np.tri(9, dtype=bool)))
    )
    page.set("first", True)
    title = page.find(".map-title").inner_text()
    assert "without the first token" in title
    assert "renormalised" in title
    found = page.matrix(8, 8)
    rest = weights[0, 0, 1:, 1:]
    wanted = rest / rest.sum(-1, keepdims=True)
    np.testing.assert_allclose(np.nansum(found, axis=1), 1, atol=2 * STEP)  # as far as bytes go
    np.testing.assert_allclose(np.nan_to_num(found), wanted, atol=4 * STEP)


def test_tokens_are_shown_literally_everywhere(open_page: Callable[..., Any], tmp_path: Path) -> None:
    view = HeadView(
        weights_data(random_weights(2, 2, len(HOSTILE)), HOSTILE, title="<b>bold</b> & </script>")
    )
    labels = list(view.data.queries.labels)
    page = open_page(view)
    assert page.find(".token").all_inner_texts() == labels
    assert page.find("h1").inner_text() == "<b>bold</b> & </script>"
    assert page.page.title() == "<b>bold</b> & </script> – headwise"
    assert page.find("img, .page script, .page s").count() == 0
    assert [cell["key_token"] for cell in page.copied("map")][: len(labels)] == labels
    with page.page.expect_download() as waiting:
        page.find('[data-save="svg"]').click()
    assert waiting.value.suggested_filename.startswith("headwise-layer")
    saved = tmp_path / "map.svg"
    waiting.value.save_as(saved)
    texts = [
        "".join(e.itertext()) for e in ET.parse(saved).getroot().iter("{http://www.w3.org/2000/svg}text")
    ]
    for label in labels:
        assert label in texts or any(t.endswith("…") and label.startswith(t[:-1]) for t in texts)
    page.set("table", True)
    assert any(labels[3] in text for text in page.find(".cells th").all_inner_texts())


def test_a_saved_picture_is_a_png(open_page: Callable[..., Any], tmp_path: Path) -> None:
    page = open_page(planted_view())
    with page.page.expect_download() as waiting:
        page.find('[data-save="png"]').click()
    assert waiting.value.suggested_filename.endswith(".png")
    waiting.value.save_as(tmp_path / "map.png")
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")


def test_numbers_on_the_page_equal_the_tables(open_page: Callable[..., Any]) -> None:
    heads = [(layer, head) for layer in range(2) for head in range(2)]
    ablation = pd.DataFrame(
        {
            "layer": [layer for layer, _ in heads],
            "head": [head for _, head in heads],
            "delta": [0.123456, -0.01, 0.0, 2.5],
            "low": [0.1, -0.02, -0.1, 2.0],
            "high": [0.2, -0.005, 0.1, 3.0],
        }
    )
    weights = random_weights(2, 2, 20)
    data = weights_data(weights, [f"w{i}" for i in range(20)], visible=np.tri(20, dtype=bool))
    view = HeadView(type(data)(**{**data.__dict__, "ablation": ablation}))
    page = open_page(view)
    for row in page.copied("heads"):
        wanted = data.table.set_index(["layer", "head"]).loc[(row["layer"], row["head"])]
        for name in data.table.columns.drop(["layer", "head"]):
            assert (row[name] is None) == bool(np.isnan(wanted[name]))
            assert row[name] is None or row[name] == pytest.approx(wanted[name], rel=1e-5)
        delta = ablation.set_index(["layer", "head"]).loc[(row["layer"], row["head"]), "delta"]
        assert row["delta"] == pytest.approx(delta, rel=1e-5)
    for layer, head in heads:
        page.head(layer, head).click()
        page.settle()
        np.testing.assert_allclose(np.nan_to_num(page.matrix(20, 20)), weights[layer, head], atol=STEP)
    page.head(0, 0).click()
    page.settle()
    card = page.find(".card").inner_text()
    assert "+0.123" in card
    assert "worse without it" in card
    page.head(0, 1).click()
    page.settle()
    assert "better without it" in page.find(".card").inner_text()


def test_a_link_restores_the_selection(open_page: Callable[..., Any]) -> None:
    view = planted_view()
    page = open_page(view)
    page.head(0, 1).click()
    page.set("several", True)
    page.head(1, 0).click()
    page.settle()
    page.set("combine", "max")
    page.set("scale", "log")
    page.set("colour", "entropy")
    page.set("first", True)
    page.set("language", "ko")
    page.token(7).click()
    fragment = "#" + page.page.url.split("#")[1]
    again = open_page(view, fragment)
    assert again.pressed() == ["0.1", "1.0"]
    for role, value in (("combine", "max"), ("scale", "log"), ("colour", "entropy"), ("language", "ko")):
        assert again.find(f'[data-role="{role}"]').input_value() == value
    assert again.find('[data-role="first"]').is_checked()
    assert again.find('[data-role="lock"]').is_checked()
    assert again.find('.token[aria-selected="true"]').inner_text() == "w7"
    assert again.picture() == page.picture()


@pytest.mark.parametrize(
    "fragment", ["#heads=9.9&token=both.99&colour=x&scale=y", "#%%%", "#heads=&with=a_b", "#heads=__proto__"]
)
def test_a_link_that_is_not_understood_is_ignored(open_page: Callable[..., Any], fragment: str) -> None:
    page = open_page(planted_view(), fragment)
    assert len(page.pressed()) == 1


def test_queries_and_keys_may_be_different_texts(open_page: Callable[..., Any]) -> None:
    rng = np.random.default_rng(1)
    weights = rng.dirichlet(np.ones(7), size=(1, 2, 4))
    page = open_page(HeadView(weights_data(weights, list("abcd"), key_labels=list("ABCDEFG"))))
    page.head(0, 1).click()
    page.settle()
    np.testing.assert_allclose(page.matrix(4, 7), weights[0, 1], atol=STEP)
    page.token(2, "query").hover()
    assert page.list("out")[0][0] == "ABCDEFG"[weights[0, 1, 2].argmax()]
    assert page.list("in") == []
    page.token(6, "key").hover()
    assert page.list("in")[0][0] == "abcd"[weights[0, 1, :, 6].argmax()]
    assert page.list("out") == []
    page.token(6, "key").click()
    assert page.find('.token[aria-selected="true"]').inner_text() == "G"


def test_a_long_text_is_shown_by_windows_and_block_maxima_and_says_so(open_page: Callable[..., Any]) -> None:
    weights = random_weights(1, 2, 300)
    view = HeadView(
        weights_data(
            weights, [f"w{i}" for i in range(300)], visible=np.tri(300, dtype=bool), most_cells=20_000
        )
    )
    page = open_page(view)
    assert "300 tokens" in page.find(".panel.text").inner_text()
    options = page.find('[data-role="pane"] option').all_inner_texts()
    assert len(options) == len(view.data.panes) > 1
    first = view.data.panes[0]
    size = first.rows[1] - first.rows[0]
    page.head(0, 1).click()
    page.settle()
    np.testing.assert_allclose(np.nan_to_num(page.matrix(size, size)), weights[0, 1, :size, :size], atol=STEP)
    page.set("pane", str(len(options) - 1))
    block = view.data.panes[-1].block
    blocks = -(-300 // block)
    padded = np.zeros((blocks * block, blocks * block))
    padded[:300, :300] = weights[0, 1]
    maxima = padded.reshape(blocks, block, blocks, block).max(axis=(1, 3))
    np.testing.assert_allclose(np.nan_to_num(page.matrix(blocks, blocks)), maxima, atol=STEP)
    assert f"blocks of {block} tokens" in page.find(".map-title").inner_text()


@pytest.mark.parametrize(
    "surroundings",
    [
        "",
        "window.define = window.require = () => { throw Error('called') }; define.amd = {};",
    ],
    ids=["plain", "amd"],
)
def test_two_views_on_one_page_do_not_clash(open_page: Callable[..., Any], surroundings: str) -> None:
    parts = [planted_view(5)._repr_html_(), planted_view(8)._repr_html_(), planted_view(5)._repr_html_()]
    page = open_page(
        f"<!doctype html><meta charset=utf-8><style>.token {{ display: none }}</style>{'<hr>'.join(parts)}",
        script=surroundings,
    )
    page.page.wait_for_function(
        "() => [...document.querySelectorAll('.headwise-view')].every(e => e.shadowRoot)"
    )
    page.settle()
    assert [page.find(".headwise-view").nth(i).locator(".token").count() for i in range(3)] == [5, 8, 5]
    assert page.find(".token").first.is_visible()
    page.find(".headwise-view").nth(2).locator('[data-head="1.1"]').click()
    page.settle()
    pressed = page.find('.head[aria-pressed="true"]').evaluate_all("all => all.map(e => e.dataset.head)")
    assert pressed[2] == "1.1"
    assert pressed[0] != "1.1"
    assert "#" not in page.page.url


def test_a_table_stands_for_each_picture_on_demand(open_page: Callable[..., Any]) -> None:
    page = open_page(planted_view())
    page.head(1, 0).click()
    page.set("table", True)
    assert page.find("canvas.large").count() == 0
    cells = page.find(".cells tbody tr").nth(3).locator("td").all_inner_texts()
    np.testing.assert_allclose([float(c) for c in cells[:4]], 0.25, atol=STEP)
    assert cells[4] == "–"
    assert float(page.head(0, 0).inner_text()) == pytest.approx(1, abs=0.01)


def test_korean_and_dark(open_page: Callable[..., Any]) -> None:
    page = open_page(planted_view(), locale="ko-KR", color_scheme="dark")
    assert page.find(".panel.heads h2").inner_text() == "모든 헤드"
    dark = page.find(".panel.map").evaluate("e => getComputedStyle(e).backgroundColor")
    page.set("theme", "light")
    light = page.find(".panel.map").evaluate("e => getComputedStyle(e).backgroundColor")
    assert dark == "rgb(27, 29, 34)"
    assert light == "rgb(255, 255, 255)"
    page.find('[data-role="language"]').focus()
    page.set("language", "en")
    assert page.find(".panel.heads h2").inner_text() == "All heads"
    assert page.find('[data-role="language"]:focus').count() == 1


def test_a_phone_is_wide_enough(open_page: Callable[..., Any]) -> None:
    page = open_page(planted_view(30), viewport={"width": 390, "height": 844})
    assert page.page.evaluate("() => document.documentElement.scrollWidth") <= 390


def test_words_sum_what_their_pieces_get_and_average_what_they_give(
    open_page: Callable[..., Any], subject: Subject
) -> None:
    data = view_data(subject, "가나 다 abc")
    weights = weights_of_model(subject, "가나 다 abc")[0][0]
    words = np.array(data.queries.words)
    assert words.max() + 1 < len(words)
    page = open_page(HeadView(data))
    page.head(0, 0).click()
    page.set("words", True)
    assert page.find(".token").all_inner_texts() == list(data.queries.word_labels)
    among = np.eye(words.max() + 1)[words]
    wanted = (among.T @ weights @ among) / among.sum(0)[:, None]
    found = np.nan_to_num(page.matrix(words.max() + 1, words.max() + 1))
    np.testing.assert_allclose(found, wanted, atol=4 * STEP)
    assert page.find(".partial").count() == 0
    page.set("words", False)
    assert page.find(".partial").count() == sum(data.queries.partial) > 0
    assert page.token(0).inner_text().startswith("가 1/")


def test_value_weighted_shares_follow_what_a_head_writes(
    open_page: Callable[..., Any], subject: Subject
) -> None:
    data = view_data(subject, "가나 다 abc")
    assert data.norms is not None
    page = open_page(HeadView(data))
    page.head(0, 0).click()
    page.set("several", True)
    page.head(1, 2).click()
    page.set("combine", "value")
    weights = weights_of_model(subject, "가나 다 abc")
    heads = data.heads
    mass = sum(
        weights[layer][head] * data.norms[heads.index((layer, head))] for layer, head in ((0, 0), (1, 2))
    )
    wanted = mass / mass.sum(-1, keepdims=True)
    size = len(wanted)
    np.testing.assert_allclose(np.nan_to_num(page.matrix(size, size)), wanted, atol=4 * STEP)
    assert "value-weighted" in page.find(".map-title").inner_text()


def test_group_mates_are_named_and_chosen(open_page: Callable[..., Any], subject: Subject) -> None:
    page = open_page(HeadView(view_data(subject, "abc abc")))
    page.head(1, 3).click()
    page.settle()
    assert page.find("[data-mate]").evaluate_all("all => all.map(e => e.dataset.mate)") == ["1.2"]
    page.find("[data-mate]").click()
    page.settle()
    assert page.pressed() == ["1.2"]


def test_of_two_texts_one_may_look_at_the_other(open_page: Callable[..., Any]) -> None:
    weights = np.random.default_rng(2).dirichlet(np.ones(9), size=(1, 1, 9))
    page = open_page(HeadView(weights_data(weights, list("abcdABCDE"), second=4)))
    assert page.find(".token").count() == 9
    page.set("pair", "ba")
    assert page.find('[data-side="query"] .token').all_inner_texts() == list("ABCDE")
    assert page.find('[data-side="key"] .token').all_inner_texts() == list("abcd")
    np.testing.assert_allclose(page.matrix(5, 4), weights[0, 0, 4:, :4], atol=STEP)
    page.token(1, "query").click()
    assert page.list("out")[0][0] == "abcd"[weights[0, 0, 5, :4].argmax()]
    page.page.reload()
    page.page.wait_for_function("() => performance.getEntriesByName('headwise-ready').length > 0")
    assert page.find('.token[aria-selected="true"]').inner_text() == "B"
    page.set("pair", "all")
    assert page.find('[data-side="both"] .token').count() == 9


def test_two_models_are_compared_head_by_head(open_page: Callable[..., Any]) -> None:
    labels = [f"w{i}" for i in range(12)]
    seen = np.tri(12, dtype=bool)
    a, b = random_weights(2, 3, 12), random_weights(2, 3, 12, seed=1)
    view = HeadView(
        weights_data(a, labels, visible=seen, title="before"),
        weights_data([b[0], b[1, [0, 2]]], labels, visible=seen, title="after", heads={1: [0, 2]}),
    )
    page = open_page(view)
    assert page.find(".gap").count() == 0
    page.head(1, 1).click()
    page.settle()
    page.set("model", "b")
    assert page.find(".gap").count() == 1
    assert "1.1" not in page.pressed()
    page.head(1, 2).click()
    page.settle()
    np.testing.assert_allclose(np.nan_to_num(page.matrix(12, 12)), b[1, 2], atol=STEP)
    page.set("model", "difference")
    assert page.pressed() == ["1.2"]
    np.testing.assert_allclose(np.nan_to_num(page.matrix(12, 12)), b[1, 2] - a[1, 2], atol=2 * STEP)
    assert "after minus before" in page.find(".map-title").inner_text()
    page.token(9).hover()
    changes = b[1, 2, 9] - a[1, 2, 9]
    largest = int(np.abs(changes).argmax())
    first = page.list("out")[0]
    assert first[1] == str(largest)
    assert float(first[2].replace("−", "-")) == pytest.approx(changes[largest], abs=2 * STEP)
    row = next(row for row in page.copied("heads") if (row["layer"], row["head"]) == (1, 2))
    tables = [data.table.set_index(["layer", "head"]) for data in (view.beside, view.data) if data]
    wanted = tables[0].loc[(1, 2), "entropy"] - tables[1].loc[(1, 2), "entropy"]
    assert row["entropy"] == pytest.approx(wanted, abs=1e-5)
    page.page.reload()
    page.page.wait_for_function("() => performance.getEntriesByName('headwise-ready').length > 0")
    assert page.find('[data-role="model"]').input_value() == "difference"


@pytest.mark.parametrize("fragment", ["", "#heads=0.0_1.1&with=table_several&language=ko&theme=dark"])
def test_axe_finds_no_fault(open_page: Callable[..., Any], fragment: str) -> None:
    found = importlib.util.find_spec("axe_playwright_python")
    if found is None and os.environ.get("HEADWISE_BROWSER") != "required":
        pytest.skip("axe-core is not installed; `pip install axe-playwright-python` to check accessibility")
    assert found is not None
    assert found.submodule_search_locations is not None
    axe = Path(found.submodule_search_locations[0]) / "axe.min.js"
    page = open_page(planted_view(), fragment, bypass_csp=True)
    page.page.evaluate(f"{axe.read_text(encoding='utf-8')}; 0")
    faults = page.page.evaluate("async () => (await axe.run()).violations")
    assert [(fault["id"], fault["impact"]) for fault in faults] == []
