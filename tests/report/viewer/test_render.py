"""The page as a file: its size, and that it asks for nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import headwise.report
from headwise.hub import Subject
from headwise.hub.subject import OwnSubject
from headwise.report.viewer import HeadView, weights_data
from headwise.report.viewer.render import SCRIPTS


def test_twelve_layers_of_twelve_heads_at_256_tokens_stay_under_8_mb() -> None:
    rng = np.random.default_rng(0)
    seen = np.tri(256, dtype=bool)
    layers = []
    for _ in range(12):
        raw = rng.random((12, 256, 256), dtype=np.float32) * seen
        layers.append(raw / raw.sum(-1, keepdims=True))
    page = HeadView(weights_data(layers, [f"w{i}" for i in range(256)], visible=seen)).html()
    assert len(page.encode()) < 8_000_000


def test_the_page_refers_to_nothing_outside(subject: Subject) -> None:
    page = headwise.report.view(subject, "abc").html()
    assert set(re.findall(r"https?://[\w./]+", page)) == {"http://www.w3.org/2000/svg"}  # a name, not a place
    assert not re.search(r"@import|<link|<script[^>]+src|url\((?!#)", page)
    assert "default-src 'none'" in page


def test_no_text_of_the_data_ends_the_script(subject: Subject) -> None:
    labels = ["</script><script>alert(1)</script>", "<!--", "\u2028", "&quot;", "]]>"]
    weights = np.full((1, 1, 5, 5), 0.2)
    page = HeadView(weights_data(weights, labels, title="</title><script>alert(2)</script>")).html()
    assert len(re.findall(r"<script", page)) == 2
    assert "\u2028" not in page
    island = re.search(r'<script type="application/json">(.*?)</script>', page, re.DOTALL)
    assert island is not None
    assert "<" not in island[1]
    assert json.loads(island[1])["queries"]["labels"][0] == labels[0]


def test_the_same_view_is_the_same_file(subject: Subject, tmp_path: Path) -> None:
    first = headwise.report.view(subject, "abc").save(tmp_path / "a.html")
    second = headwise.report.view(subject, "abc").save(tmp_path / "b.html")
    assert first.read_bytes() == second.read_bytes()


def test_a_notebook_gets_a_part_of_a_page(subject: Subject) -> None:
    part = headwise.report.view(subject, "abc")._repr_html_()
    assert "<html" not in part
    assert part.count("headwise-view") >= 1


def test_a_model_in_memory_comes_with_its_tokenizer(subject: Subject) -> None:
    assert isinstance(subject, OwnSubject)
    shown = headwise.report.view(subject.model, "abc", tokenizer=subject.tokenizer)
    assert shown.data.title == "GPT"
    with pytest.raises(TypeError, match="give its tokenizer"):
        headwise.report.view(subject.model, "abc")
    with pytest.raises(TypeError, match="has its own"):
        headwise.report.view(subject, "abc", tokenizer=subject.tokenizer)


def test_every_text_of_the_page_is_there_in_both_languages() -> None:
    static = Path(headwise.report.__file__).parent / "viewer" / "static"
    source = (static / "strings.js").read_text(encoding="utf-8")
    english, korean = source.split("  ko: {")
    key = re.compile(r'(?:^\s*|[{,]\s*)("[^"]+"|\w+): "', re.MULTILINE)
    assert set(key.findall(english)) == set(key.findall(korean))
    known = {name.strip('"') for name in key.findall(english)}
    for name in SCRIPTS:
        used = re.findall(r'\bt\("([\w:]+)"', (static / name).read_text(encoding="utf-8"))
        assert set(used) <= known, name
