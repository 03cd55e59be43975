"""The report as one self-contained HTML file: no server, no network, works from a memory stick."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup
from matplotlib.colors import TABLEAU_COLORS, to_hex

from headwise import __version__
from headwise.files import write_text
from headwise.report.viewer import HeadView


@dataclass(frozen=True)
class Sample:
    """A text that a model wrote: `prompt` is what it was given, `text` what it added."""

    text: str
    prompt: str = ""
    title: str = ""


@dataclass(frozen=True)
class Comparison:
    """Variants side by side.

    Attributes:
        columns: headings of the table; the first column names the variant.
        rows: one per variant, as texts.
        sentence: what may be concluded, in words.
        plot: an SVG text (see `figures.figure_svg`), or empty.
        samples: what each variant writes.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    sentence: str
    plot: str = ""
    samples: Sequence[Sample] = ()


@dataclass(frozen=True)
class Step:
    """A command that repeats one step of what the page shows."""

    title: str
    command: str
    note: str = ""


@dataclass(frozen=True)
class ReportData:
    """Everything the page shows, as plain texts, numbers and arrays. What is left empty is left out.

    Attributes:
        title: the heading.
        summary: one or two sentences below it.
        figures: the numbers to see first, as `(value, what it is)`: `("1.62", "validation loss")`.
        facts: other things to know of the training, as `(name, value)`.
        parameters: number of parameters by part of the model.
        config: every setting, by name.
        loss_plot: an SVG text (see `figures.figure_svg`).
        loss_note: how to read the plot.
        cost_plot, cost_note: the same for what attention costs.
        samples, comparison, steps: the sections of those names.
        heads: the page of heads (see `viewer.HeadView`), which becomes a section.
        heads_note: how to read it.
    """

    title: str
    summary: str = ""
    figures: Sequence[tuple[str, str]] = ()
    facts: Sequence[tuple[str, str]] = ()
    parameters: Mapping[str, int] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    loss_plot: str = ""
    loss_note: str = ""
    cost_plot: str = ""
    cost_note: str = ""
    samples: Sequence[Sample] = ()
    comparison: Comparison | None = None
    heads: HeadView | None = None
    heads_note: str = ""
    steps: Sequence[Step] = ()


def write_report(path: Path, data: ReportData) -> None:
    """Write the page to `path`, all or nothing.

    Raises:
        ValueError: a table whose rows are not as long as its headings, or a plot that is not SVG.
    """
    write_text(path, render_report(data))


def render_report(data: ReportData) -> str:
    """The page as text; see `write_report`."""
    if data.comparison:
        for row in data.comparison.rows:
            if len(row) != len(data.comparison.columns):
                raise ValueError(
                    f"each row of the comparison must have {len(data.comparison.columns)} cells, "
                    f"got {list(row)}"
                )
    templates = jinja2.PackageLoader("headwise.report")
    environment = jinja2.Environment(
        loader=templates,
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )

    def raw(name: str) -> Markup:
        return Markup(templates.get_source(environment, name)[0])

    return environment.get_template("index.html").render(
        data=data,
        total=sum(data.parameters.values()),
        heads=Markup(data.heads._repr_html_()) if data.heads else "",
        loss_plot=_inline_svg(data.loss_plot, "Loss by training step", "loss"),
        comparison_plot=_inline_svg(
            data.comparison.plot if data.comparison else "", "Comparison of the variants", "comparison"
        ),
        cost_plot=_inline_svg(data.cost_plot, "Costs by heads and length", "cost"),
        css=raw("page.css"),
        js=raw("page.js"),
        version=__version__,
    )


def _inline_svg(svg: str, name: str, prefix: str) -> Markup:
    """Make a matplotlib SVG part of the page: the page's colours and font, its own ids, the page's width."""
    if not svg:
        return Markup("")
    start = svg.find("<svg")
    if start < 0:
        raise ValueError(f"the plot for {name!r} must be the text of an SVG file, got {svg[:40]!r}")
    body = svg[start:]
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", body, flags=re.DOTALL)
    body = re.sub(r'(?<= id=")|(?<=url\(#)|(?<=href="#)', f"{prefix}-", body)
    for index, colour in enumerate(
        map(to_hex, TABLEAU_COLORS.values())
    ):  # lines get lighter where the page is dark
        body = body.replace(colour, f"var(--c{index}, {colour})")
    body = body.replace("#000000", "currentColor").replace("#ffffff", "var(--surface)")
    body = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", body, count=1)
    body = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", body, count=1)
    return Markup(body.replace("<svg", f'<svg role="img" aria-label="{html.escape(name)}"', 1))
