"""Pictures are written whole, by suffix, with text as text."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from headwise.report.figures import check_picture, figure_svg, save_figure
from headwise.report.heatmap import heatmaps

AWKWARD = ["<s>", "a\"b'c", "&lt;", "</script>", "$x$"]


def test_svg_text_stays_text_and_is_escaped(tmp_path: Path) -> None:
    save_figure(heatmaps(np.eye(5), AWKWARD), tmp_path / "a.svg")
    root = ElementTree.parse(tmp_path / "a.svg").getroot()
    texts = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    for label in AWKWARD:
        assert texts.count(label) == 2


def test_svg_names_a_generic_font_last() -> None:
    svg = figure_svg(heatmaps(np.ones((1, 1)), ["label"]))
    styles = [line.split('"')[1] for line in svg.splitlines() if ">label<" in line]
    assert len(styles) == 2
    for style in styles:
        assert style.split("font-family:")[1].split(";")[0].strip().endswith("sans-serif")


def test_png_is_a_png_whatever_the_case_of_the_suffix(tmp_path: Path) -> None:
    save_figure(heatmaps(np.eye(2), list("ab")), tmp_path / "new" / "a.PNG")
    assert (tmp_path / "new" / "a.PNG").read_bytes().startswith(b"\x89PNG\r\n")


def test_the_same_figure_gives_the_same_bytes(tmp_path: Path) -> None:
    figures = [heatmaps(np.eye(2), list("ab")) for _ in range(2)]
    assert figure_svg(figures[0]) == figure_svg(figures[1])
    assert "<dc:date>" not in figure_svg(figures[0])


@pytest.mark.parametrize("name", ["a.gif", "a", "a.svg.txt"])
def test_other_suffixes_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"must end in \.png or \.svg"):
        save_figure(Figure(), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.png").mkdir()
    with pytest.raises(ValueError, match="it is a folder"):
        check_picture(tmp_path / "a.png")


def test_a_failed_drawing_leaves_the_old_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"old")

    def fail(*args: object, **kwargs: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Figure, "savefig", fail)
    with pytest.raises(OSError, match="disk full"):
        save_figure(Figure(), path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
