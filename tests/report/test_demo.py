"""The tour, on a text of a few hundred characters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headwise.report.demo import run_demo
from headwise.training import Observer

TEXT = "나는 학교에 버스로 갔다. the quick <b>brown</b> fox & the lazy dog </script>\n" * 40


class Heard(Observer):
    """Counts steps."""

    def __init__(self) -> None:
        self.steps = 0

    def on_step(self, step: object) -> None:
        self.steps += 1


@pytest.fixture
def arguments(tmp_path: Path) -> dict:
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    data = str(tmp_path / "text.txt")
    return {"out": tmp_path / "report", "data": data, "max_steps": 4, "compare_steps": 3, "seeds": 2}


def test_the_page_holds_what_was_made_and_a_second_call_makes_nothing_anew(arguments: dict) -> None:
    heard = Heard()
    page = run_demo(**arguments, observer=heard)
    assert heard.steps == 4 + 3 * 2 * 2
    text = page.read_text("utf-8")
    result = json.loads((arguments["out"] / "model" / "result.json").read_text("utf-8"))
    comparison = json.loads((arguments["out"] / "compare" / "comparison.json").read_text("utf-8"))
    assert f"{result['val_loss']:.3f}" in text
    assert f"{result['parameters']:,}" in text
    for variant in comparison["variants"]:
        assert f"{variant['mean_loss']:.4f}" in text
    for layer in range(4):
        assert f"layer {layer}" in text
    assert "headwise train" in text
    assert "What attention costs" in text
    assert "Its cache takes 262,144 bytes (256 KiB)" in text  # 2 · 4 layers · 128 · 64 tokens · 4 bytes
    assert "<b>brown" not in text  # the text is shown, not obeyed
    assert "://" not in text.replace("http://www.w3.org/", "")  # nothing is fetched

    again = Heard()
    assert run_demo(**arguments, observer=again) == page
    assert again.steps == 0


def test_other_arguments_do_not_overwrite_a_demo(arguments: dict) -> None:
    run_demo(**arguments)
    before = (arguments["out"] / "index.html").read_bytes()
    with pytest.raises(ValueError, match="data"):
        run_demo(**arguments | {"data": "python-docs"})
    assert (arguments["out"] / "index.html").read_bytes() == before
