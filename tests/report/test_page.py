"""The page: self-contained, every text literal, the weights inside it."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from headwise.report import page, view_weights
from headwise.report.figures import figure_svg
from headwise.report.page import (
    Comparison,
    ReportData,
    Sample,
    Step,
    render_report,
    write_report,
)

NASTY = ["<s>", "</script>", "<!--", "<img src=x onerror=alert(1)>", "a\"b'c", "&lt;", "나", "\u2028"]
VOID = {"meta", "input", "br", "img", "link"}


class Page(HTMLParser):
    """Collects what a browser would see: elements, and text by the element it stands in."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self.open[-1] if self.open else "", []).append(data)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def text(self, tag: str) -> list[str]:
        return [text.strip() for text in self.texts.get(tag, []) if text.strip()]

    def island(self) -> dict[str, object]:
        (data,) = (text for text in self.text("script") if text.startswith("{"))
        value: dict[str, object] = json.loads(data)
        return value


def plot() -> str:
    figure = Figure(figsize=(3, 2))
    axes = figure.add_subplot()
    axes.plot([0, 1], [1, 0], label="loss <train>")
    axes.legend()
    return figure_svg(figure)


@pytest.fixture
def data(causal_weights: Callable) -> ReportData:
    weights = causal_weights(2, 3, len(NASTY))
    return ReportData(
        title="Title <b>",
        summary="A & B",
        figures=[("1.62", "validation loss")],
        facts=[("Text <i>", "python-docs")],
        parameters={"attention": 3000, "norms": 1000},
        config={"n_head": 3, "d_ff": None, "note": "</script>"},
        loss_plot=plot(),
        loss_note="lower is better",
        cost_plot=plot(),
        cost_note="memory & <numbers>",
        samples=[Sample("<u>text\n  two", "prompt </pre>", "temperature <0.8>")],
        comparison=Comparison(
            ["variant", "loss"],
            [["<single>", "2.1"], ["multi", "1.9"]],
            "multi is better",
            plot(),
            [Sample("x")],
        ),
        heads=view_weights(list(weights), NASTY, title="Heads <h>"),
        heads_note="held <out>",
        steps=[Step("Train <it>", "headwise train --data 'a <b>' && echo \"x\"", "note <n>")],
    )


def test_the_page_is_well_formed_and_has_every_section(data: ReportData) -> None:
    html = render_report(data)
    read = Page(html)
    assert read.open == []
    assert html.startswith('<!doctype html>\n<html lang="en">')
    headings = [
        "What was trained",
        "Loss",
        "What it writes",
        "Comparison",
        "What every head does",
        "What attention costs",
        "Repeat it",
    ]
    assert read.text("h2") == headings
    targets = {attributes["href"] for attributes in read.named("a")}
    assert targets == {f"#{attributes['id']}" for attributes in read.named("section")}


def test_every_text_is_shown_literally(data: ReportData) -> None:
    read = Page(render_report(data))
    assert read.text("h1") == ["Title <b>"]
    assert read.text("title") == ["Title <b>"]
    assert read.text("figcaption") == ["temperature <0.8>"]
    assert read.text("mark") == ["prompt </pre>"]
    assert read.text("pre") == ["<u>text\n  two", "x"]
    assert read.text("code") == ["headwise train --data 'a <b>' && echo \"x\""]
    assert "<single>" in read.text("th")
    assert "</script>" in read.text("dd")
    assert {"b", "u", "i", "img", "s", "single"}.isdisjoint(tag for tag, _ in read.elements)


def test_the_page_of_heads_is_a_section_of_it(data: ReportData) -> None:
    read = Page(render_report(data))
    assert len(read.named("script")) == 3
    assert "나" in json.dumps(read.island(), ensure_ascii=False)
    assert "held <out>" in read.text("p")


def test_the_page_needs_nothing_from_elsewhere(data: ReportData) -> None:
    html = render_report(data)
    read = Page(html)
    for _, attributes in read.elements:
        for name in ("src", "href", "srcset", "poster", "action", "data", "xlink:href"):
            target = attributes.get(name)
            assert target is None or target.startswith("#"), f"{name}={target}"
    assert "@import" not in html
    assert "fetch(" not in html
    assert set(re.findall(r"url\((.)", html)) <= {"#"}
    (policy,) = (m["content"] for m in read.named("meta") if m.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'")


def test_what_is_left_empty_is_left_out() -> None:
    read = Page(render_report(ReportData("Only a title")))
    assert read.named("section") == []
    assert read.named("a") == []
    assert read.named("dialog") == []
    assert len(read.named("script")) == 1


def test_parameters_add_up(data: ReportData) -> None:
    html = render_report(data)
    assert ">4,000</td>" in html
    assert 'style="width: 75.0%"' in html


def test_plots_take_the_colours_of_the_page_and_keep_apart(data: ReportData) -> None:
    html = render_report(dataclasses.replace(data, heads=None))
    read = Page(html)
    pictures = read.named("svg")
    assert len(pictures) == 3
    assert [p["aria-label"] for p in pictures] == [
        "Loss by training step",
        "Comparison of the variants",
        "Costs by heads and length",
    ]
    assert all(p["role"] == "img" and p.get("viewbox") and "width" not in p for p in pictures)
    assert len(read.named("style")) == 1, "a plot's own style would restyle the page"
    ids = [attributes["id"] for _, attributes in read.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    drawings = html[html.index("<svg") : html.rindex("</svg>")]
    used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', drawings))
    assert used
    assert used <= set(ids)
    assert "#000000" not in drawings
    assert "currentColor" in drawings
    assert "var(--c0, #1f77b4)" in drawings
    assert "loss &lt;train&gt;" in drawings


def test_a_plot_that_is_no_svg_is_refused() -> None:
    with pytest.raises(
        ValueError, match="'Loss by training step' must be the text of an SVG file, got 'loss.png'"
    ):
        render_report(ReportData("t", loss_plot="loss.png"))


def test_rows_of_the_comparison_must_fit_its_columns() -> None:
    with pytest.raises(ValueError, match=r"must have 2 cells, got \['x'\]"):
        render_report(ReportData("t", comparison=Comparison(["a", "b"], [["x"]], "s")))


def test_a_refused_report_leaves_the_old_page(data: ReportData, tmp_path: Path) -> None:
    path = tmp_path / "report" / "index.html"
    write_report(path, data)
    before = path.read_bytes()
    assert before.decode("utf-8") == render_report(data)
    with pytest.raises(ValueError, match="SVG"):
        write_report(path, dataclasses.replace(data, loss_plot="nothing"))
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_the_script_parses() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    script = Path(page.__file__).parent / "templates" / "page.js"
    subprocess.run([node, "--check", script], check=True)
