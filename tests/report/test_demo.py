"""The tour, on a text of a few hundred characters."""

from __future__ import annotations

import dataclasses
import html
import importlib
import json
import re
import shlex
from pathlib import Path

import pytest
import typer

from headwise.model import generate, load_model
from headwise.report.demo import DemoSettings, run_demo
from headwise.training import Observer

TEXT = "나는 학교에 버스로 갔다. the quick <b>brown</b> fox & the lazy dog </script>\n" * 40


class Heard(Observer):
    """Counts steps."""

    def __init__(self) -> None:
        self.steps = 0

    def on_step(self, step: object) -> None:
        self.steps += 1


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("my text") / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def demo(text: Path) -> tuple[Path, DemoSettings, Heard]:
    """A demo that was run once, with what its observer heard."""
    settings = DemoSettings(str(text), max_steps=4, compare_steps=3, seeds=2)
    heard = Heard()
    page = run_demo(text.parent / "report", settings, heard)
    return page, settings, heard


def test_the_page_holds_what_was_made(demo: tuple[Path, DemoSettings, Heard]) -> None:
    page, _, heard = demo
    assert heard.steps == 4 + 3 * 2 * 2
    shown = page.read_text("utf-8")
    result = json.loads((page.parent / "model" / "result.json").read_text("utf-8"))
    comparison = json.loads((page.parent / "compare" / "comparison.json").read_text("utf-8"))
    assert f"{result['val_loss']:.3f}" in shown
    assert f"{result['parameters']:,}" in shown
    for variant in comparison["variants"]:
        assert f"{variant['mean_loss']:.4f}" in shown
    assert 'class="headwise-view"' in shown
    assert '"source":"' in shown
    assert "held-out texts of" in shown  # what the heads' numbers were measured on
    assert "What attention costs" in shown
    assert "Its cache takes 262,144 bytes (256 KiB)" in shown  # 2 · 4 layers · 128 · 64 tokens · 4 bytes
    assert "<b>brown" not in shown  # the text is shown, not obeyed
    assert "://" not in shown.replace("http://www.w3.org/", "")  # nothing is fetched


def test_the_same_settings_make_nothing_anew(demo: tuple[Path, DemoSettings, Heard]) -> None:
    page, settings, _ = demo
    again = Heard()
    assert run_demo(page.parent, settings, again) == page
    assert again.steps == 0


def test_other_settings_do_not_overwrite_a_demo(demo: tuple[Path, DemoSettings, Heard]) -> None:
    page, settings, _ = demo
    before = page.read_bytes()
    with pytest.raises(ValueError, match=r"max_steps=3 is less than the 4 steps"):
        run_demo(page.parent, dataclasses.replace(settings, max_steps=3))
    with pytest.raises(ValueError, match="with other settings; choose another"):
        run_demo(page.parent, dataclasses.replace(settings, tokenizer="bpe"))
    assert page.read_bytes() == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": 0}, "seeds must be at least 1, got 0"),
        ({"compare_steps": 0}, "max_steps"),
        ({"max_steps": 0}, "max_steps"),
    ],
)
def test_bad_settings_are_refused_before_any_work(
    text: Path, tmp_path: Path, changes: dict, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        run_demo(tmp_path / "report", dataclasses.replace(DemoSettings(str(text)), **changes))
    assert not (tmp_path / "report").exists()


def test_a_text_too_short_to_hold_some_out_is_refused_before_training(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("ab" * 50)
    with pytest.raises(ValueError, match=r"needs held-out text, but the validation part .* has 10 tokens"):
        run_demo(tmp_path / "report", DemoSettings(str(tmp_path / "short.txt")))
    assert not (tmp_path / "report" / "model").exists()


def test_the_commands_on_the_page_parse_and_repeat_what_it_shows(
    demo: tuple[Path, DemoSettings, Heard],
) -> None:
    page, settings, _ = demo
    source = page.read_text("utf-8")
    shown = html.unescape(source)
    found = re.findall(r"<code>(headwise .*?)</code>", source, re.DOTALL)
    commands = [shlex.split(html.unescape(text)) for text in found]
    verbs = {"train", "generate", "heads", "ablate", "compare", "show", "cost", "demo"}
    assert {words[1] for words in commands} == verbs
    for words in commands:
        verb = words[1]
        app = typer.Typer()
        app.command()(getattr(importlib.import_module(f"headwise.cli.{verb}"), verb))
        parsed = typer.main.get_command(app).make_context(verb, words[2:]).params
        if verb == "demo":
            assert (parsed["data"], parsed["seeds"], parsed["max_steps"]) == (settings.data, 2, 4)
        if verb == "generate":
            model, tokenizer = load_model(parsed["model"])
            options = {name: parsed[name] for name in ("max_new_tokens", "temperature", "seed")}
            assert generate(model, tokenizer, parsed["prompt"], **options)[:40].split("\n")[0] in shown
