"""The page of heads as one self-contained file, or as a part of a notebook."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup
from torch import nn

from headwise import __version__
from headwise.files import write_text
from headwise.hub import Subject, open_subject
from headwise.hub.origin import head_numbers
from headwise.report.viewer.data import ViewData, view_data, weights_data
from headwise.report.viewer.pack import packed

SCRIPTS = (
    "strings.js",
    "decode.js",
    "difference.js",
    "colour.js",
    "shown.js",
    "elements.js",
    "figure.js",
    "grid.js",
    "text.js",
    "map.js",
    "card.js",
    "save.js",
    "link.js",
    "start.js",
)
"""In the order in which they build on each other; they share one function, so nothing of them is global."""


@dataclass(frozen=True, eq=False)
class HeadView:
    """The page. A notebook shows it; `save` writes it to a file."""

    data: ViewData
    beside: ViewData | None = None
    """Another model on the same tokens; then their difference can be seen as well."""

    def html(self) -> str:
        """Return the whole page."""
        return rendered("page.html", self._island, self.data.title, standalone=True)

    def save(self, path: Path | str) -> Path:
        """Write the page to a file, all or nothing."""
        path = Path(path)
        write_text(path, self.html())
        return path

    def _repr_html_(self) -> str:
        return rendered("fragment.html", self._island, self.data.title, standalone=False)

    @cached_property
    def _island(self) -> Markup:
        return htmlsafe_json_dumps(packed(self.data, self.beside), separators=(",", ":"))


def view(
    source: Subject | nn.Module | str | Path,
    text: str | Sequence[int],
    *,
    beside: Subject | str | Path | None = None,
    tokenizer: Any = None,
    **options: Any,
) -> HeadView:
    """Show what the heads of a model do on a text.

    source: a `Subject`; a model folder or name as `hub.open_subject` takes it; or a model in memory, with its
    tokenizer. beside: another model to compare with, such as the same one after training or pruning; both
    have to cut the text into the same tokens. options: see `view_data`. The heads of a folder from which some
    were taken out keep their numbers.

    Raises ValueError for a text that is empty or too long, TypeError for a model without its tokenizer, and
    what `open_subject` raises.
    """
    if isinstance(source, nn.Module):
        if tokenizer is None:
            raise TypeError(f"source is a {type(source).__name__} alone; give its tokenizer=… as well")
        source = Subject.of(source, tokenizer)
    elif tokenizer is not None:
        raise TypeError("tokenizer goes with a model in memory; a Subject, folder or name has its own")
    subject, known = _opened(source)
    if beside is None:
        return HeadView(view_data(subject, text, **known | options))
    other, known_of_other = _opened(beside)
    heads = sum(layer.n_head for one in (subject, other) for layer in one.layers)
    first = view_data(subject, text, planned_heads=heads, **known | options)
    return HeadView(first, view_data(other, text, planned_heads=heads, **known_of_other | options))


def _opened(source: Subject | str | Path) -> tuple[Subject, dict[str, Any]]:
    """Return a subject, and what its folder says of how to show it."""
    if isinstance(source, Subject):
        return source, {}
    return open_subject(source), {"heads": head_numbers(source)}


def view_weights(weights: Any, labels: Sequence[str], **options: Any) -> HeadView:
    """Show attention weights of any origin; see `weights_data`."""
    return HeadView(weights_data(weights, labels, **options))


def rendered(
    template: str,
    island: Markup,
    title: str,
    *,
    standalone: bool,
    live: Markup | None = None,
    nonce: str | None = None,
    scripts: Sequence[str] = (),
    styles: Sequence[str] = (),
) -> str:
    """Return a template with the page's scripts, styles and data in it.

    live: what the live page has to know, None for a page without a server; a live one has no policy written
    into it, as the server sends one. nonce: what marks the script under that policy. scripts, styles: files
    beside those of every page.
    """
    static = files("headwise.report.viewer") / "static"
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: (static / name).read_text(encoding="utf-8")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )

    def joined(names: Sequence[str]) -> str:
        return "\n".join((static / name).read_text(encoding="utf-8") for name in names)

    return environment.get_template(template).render(
        island=island,
        title=title,
        version=__version__,
        key=hashlib.sha256(island.encode()).hexdigest()[:16],
        script=Markup(joined([*SCRIPTS[:-1], *scripts, SCRIPTS[-1]])),
        css=joined(["viewer.css", *styles]),
        standalone=standalone,
        live=live,
        nonce=nonce,
    )
