"""Fonts are chosen by what they really hold, and a script that nobody has is told once."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib import font_manager
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from headwise.report import fonts
from headwise.report.fonts import lettering

CACHED = (fonts._register_extra, fonts._characters)
FONTS = Path(matplotlib.get_data_path()) / "fonts" / "ttf"


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget what was said and registered before, and leave matplotlib's list of fonts as it was."""
    monkeypatch.setattr(fonts, "_said", set())
    monkeypatch.setattr(font_manager.fontManager, "ttflist", list(font_manager.fontManager.ttflist))
    for cached in CACHED:
        cached.cache_clear()
    yield
    for cached in CACHED:
        cached.cache_clear()


@pytest.fixture
def only_latin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with matplotlib's own fonts only and without the extra."""
    own = [e for e in font_manager.fontManager.ttflist if Path(e.fname).parent == FONTS]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", own)
    monkeypatch.setattr(fonts, "_EXTRA_PACKAGE", "no_such_package")


def drawn(text: str, families: tuple[str, ...]) -> np.ndarray:
    figure = Figure(figsize=(2, 1))
    figure.text(0.1, 0.3, text, fontfamily=list(families), fontsize=30)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., 0].copy()


def test_the_usual_font_is_enough_for_what_it_holds(only_latin: None) -> None:
    chosen = lettering(["def f(x): return $x_1$", "⏎", "␣", "⇥", "‹EC›", "…"])
    assert chosen.families == ("DejaVu Sans",)
    assert chosen.missing == frozenset()


@pytest.mark.usefixtures("only_latin")
def test_hangul_that_no_font_has_is_told_once_in_words(caplog: pytest.LogCaptureFixture) -> None:
    first = lettering(["나는", "abc"])
    assert first.missing == {"나", "는"}
    assert first.legible("나는 abc") == "U+B098U+B294 abc"
    lettering(["학교"])
    assert len(caplog.records) == 1
    message = caplog.records[0].getMessage()
    assert "Hangul (U+B098, U+B294)" in message
    assert 'pip install "headwise[cjk]"' in message


@pytest.mark.usefixtures("only_latin")
def test_what_would_be_a_box_is_drawn_as_a_code_point_without_any_warning() -> None:
    chosen = lettering(["나"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (drawn(chosen.legible("나"), chosen.families) < 128).sum() > 50


@pytest.mark.usefixtures("only_latin")
def test_other_characters_are_told_apart_and_without_false_advice(caplog: pytest.LogCaptureFixture) -> None:
    lettering(["漢字", "\U0001f9ff"])
    messages = sorted(record.getMessage() for record in caplog.records)
    assert len(messages) == 2
    assert "East Asian characters (U+5B57, U+6F22)" in messages[0]
    assert "headwise[cjk]" in messages[0]
    assert "U+1F9FF" in messages[1]
    assert "headwise[cjk]" not in messages[1]


def test_a_font_that_only_has_boxes_is_never_chosen(only_latin: None) -> None:
    names = {entry.name for entry in font_manager.fontManager.ttflist}
    assert any(name.startswith("Last Resort") for name in names), (
        "matplotlib no longer ships it: drop the rule"
    )
    assert not any(family.startswith("Last Resort") for family in lettering(["나"]).families)


def test_spaces_and_joiners_need_no_font(only_latin: None) -> None:
    assert lettering(["a b\n\t\u200b\u200d\ufe0f\u3000"]).missing == frozenset()


def test_few_fonts_that_cover_most_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    held = {"DejaVu Sans": "abc", "Small": "가", "Kanji": "漢", "Large": "가나다"}
    monkeypatch.setattr(fonts, "_characters", lambda family: frozenset(held[family]))
    monkeypatch.setattr(fonts, "_candidates", lambda: ["Small", "Kanji", "Large"])
    assert lettering(["a가나", "漢"]).families == ("DejaVu Sans", "Large", "Kanji")


def test_the_extra_is_found_by_its_path_and_never_imported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, only_latin: None
) -> None:
    package = tmp_path / "font_package_for_a_test"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    shutil.copy(FONTS / "STIXGeneral.ttf", package / fonts._EXTRA_FILE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(fonts, "_EXTRA_PACKAGE", package.name)
    here = [e for e in font_manager.fontManager.ttflist if not e.name.startswith("STIX")]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", here)
    held = fonts._characters("DejaVu Sans")
    assert fonts._register_extra() == "STIXGeneral"
    only_there = min(fonts._characters("STIXGeneral") - held)
    assert lettering(["a" + only_there]).families == ("DejaVu Sans", "STIXGeneral")


def test_installed_hangul_is_drawn_as_hangul() -> None:
    chosen = lettering(["나는 학교에 버스로 갔다", "abc"])
    if chosen.missing:
        pytest.skip("no installed font has Hangul; pip install 'headwise[cjk]' brings one")
    assert chosen.families[0] == "DejaVu Sans"
    assert len(chosen.families) == 2
    first, second = drawn("나", chosen.families), drawn("학", chosen.families)
    assert (first != second).any(), "two syllables look the same, so both are boxes"
