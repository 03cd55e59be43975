"""The report as one self-contained HTML file: no server, no network, works from a memory stick."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup
from matplotlib.colors import TABLEAU_COLORS, to_hex
from numpy.typing import NDArray

from headwise import __version__
from headwise.files import write_text
from headwise.report.heatmap import viridis
from headwise.report.maps import AttentionMaps, attention_maps

# One byte per weight, a third more as base64: this many make a page that a browser still opens at once.
_MOST_WEIGHTS = 16_000_000


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
class Attention:
    """Attention weights on one passage; see `maps.attention_maps` for the fields.

    Attributes:
        caption: where the passage comes from, in words.
    """

    weights: Any
    labels: Sequence[str]
    key_labels: Sequence[str] | None = None
    visible: Any = None
    caption: str = ""


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
        samples, comparison, attention, steps: the sections of those names.
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
    attention: Attention | None = None
    steps: Sequence[Step] = ()


def write_report(path: Path, data: ReportData) -> None:
    """Write the page to `path`, all or nothing.

    Raises:
        ValueError: attention weights that `attention_maps` refuses or that are too many for a page, a table
            whose rows are not as long as its headings, or a plot that is not SVG.
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

    maps = None
    if data.attention:
        a = data.attention
        maps = attention_maps(a.weights, a.labels, key_labels=a.key_labels, visible=a.visible)
    return environment.get_template("index.html").render(
        data=data,
        total=sum(data.parameters.values()),
        maps=maps,
        most_heads=max(map(len, maps.layers)) if maps else 0,
        island=_island(maps) if maps else None,
        loss_plot=_inline_svg(data.loss_plot, "Loss by training step", "loss"),
        comparison_plot=_inline_svg(
            data.comparison.plot if data.comparison else "", "Comparison of the variants", "comparison"
        ),
        cost_plot=_inline_svg(data.cost_plot, "Costs by heads and length", "cost"),
        css=raw("page.css"),
        js=raw("page.js"),
        version=__version__,
    )


def _island(maps: AttentionMaps) -> dict[str, Any]:
    """What the page's script reads."""
    count = sum(layer.size for layer in maps.layers)
    if count > _MOST_WEIGHTS:
        raise ValueError(
            f"{count:,} attention weights are too many for one page (at most {_MOST_WEIGHTS:,}); "
            "show a shorter passage or fewer layers"
        )
    return {
        "queries": maps.queries,
        "keys": maps.keys,
        "palette": [to_hex(colour) for colour in viridis()(np.linspace(0, 1, 256))],
        "layers": [[_encode(head, maps.visible) for head in layer] for layer in maps.layers],
    }


def _encode(weights: NDArray[np.float32], visible: NDArray[np.bool_]) -> str:
    """One byte per weight: 0 is hidden, 1 … 255 the square root, which keeps small weights apart.

    Reading a byte b back as ((b - 1) / 254)² is off by at most 0.004.
    """
    levels = 1 + np.rint(254 * np.sqrt(weights.clip(0, 1)))
    return base64.b64encode(np.where(visible, levels, 0).astype(np.uint8).tobytes()).decode("ascii")


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
