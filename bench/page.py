"""How large the page of heads is and how soon it can be used, for 12 layers of 12 heads on random weights.

    python bench/page.py              128, 256, 512 and 2048 tokens, a few minutes
    python bench/page.py --quick      128 and 256 tokens, one round
    python bench/page.py --json FILE  also write the numbers; nothing is written otherwise

Times are of Debian's Chromium, headless, with an empty cache: from the start of loading the file to the end
of the first drawing with everything in place ("ready"), and from a click on a head of another layer to the
next frame ("click"), medians of the rounds. Random weights do not compress, so real pages are smaller.

Beside it stands what BertViz's model view writes for the same weights, if it can be imported
(`pip install bertviz ipython`). Its file is measured up to 128 tokens; beyond, it is that size by weight
times the number of weights, since it writes each weight as text. Its page loads scripts from a content
delivery network, so no time of it is taken.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from playwright.sync_api import sync_playwright

from headwise.report.viewer import HeadView, weights_data

LAYERS = HEADS = 12
LENGTHS = (128, 256, 512, 2048)
LONGEST_MEASURED = 128
READY = "() => performance.getEntriesByName('headwise-ready').length > 0"
CLICK = """() => new Promise((done) => {
  const root = document.querySelector('.headwise-view').shadowRoot;
  const title = root.querySelector('.map-title').textContent;
  const start = performance.now();
  root.querySelector('[data-head="7.3"]').click();
  (function wait() {
    if (root.querySelector('.map-title').textContent !== title) {
      requestAnimationFrame(() => setTimeout(() => done(performance.now() - start)));
    } else requestAnimationFrame(wait);
  })();
})"""


@dataclass(frozen=True)
class Result:
    """What one length costs."""

    tokens: int
    written: float
    """Seconds to make the page of given weights."""
    bytes: int
    ready: float
    """Seconds."""
    click: float
    """Seconds."""
    panes: int
    bertviz: int | None
    """Bytes; None if it cannot be imported."""


class Layers:
    """Random causal weights (H, T, T) of each layer, made when they are asked for."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.seen = np.tri(tokens, dtype=bool)

    def layer(self, index: int) -> NDArray[np.float32]:
        rng = np.random.default_rng(index)
        scores = rng.standard_normal((HEADS, self.tokens, self.tokens), dtype=np.float32) * 2
        weights = np.exp(scores) * self.seen
        return weights / weights.sum(-1, keepdims=True)


def page(tokens: int) -> HeadView:
    layers = Layers(tokens)
    return HeadView(
        weights_data(
            [layers.layer(index) for index in range(LAYERS)],
            [f"tok{i}" for i in range(tokens)],
            visible=layers.seen,
        )
    )


def bertviz_bytes(tokens: int) -> int | None:
    if importlib.util.find_spec("bertviz") is None or importlib.util.find_spec("IPython") is None:
        return None
    from bertviz import model_view

    measured = min(tokens, LONGEST_MEASURED)
    layers = Layers(measured)
    attention = [torch.from_numpy(layers.layer(index))[None] for index in range(LAYERS)]
    shown = model_view(attention, [f"tok{i}" for i in range(measured)], html_action="return")
    return round(len(shown.data.encode()) * (tokens / measured) ** 2)


def measure(browser: Any, tokens: int, rounds: int) -> Result:
    start = time.perf_counter()
    view = page(tokens)
    text = view.html()
    written = time.perf_counter() - start
    ready, click = [], []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        path.write_text(text, encoding="utf-8")
        for _ in range(rounds):
            context = browser.new_context(viewport={"width": 1360, "height": 900})
            opened = context.new_page()
            opened.goto(path.as_uri())
            opened.wait_for_function(READY)
            marks = "performance.getEntriesByName('headwise-ready')[0].startTime"
            ready.append(opened.evaluate(marks) / 1000)
            click.append(opened.evaluate(CLICK) / 1000)
            context.close()
    return Result(
        tokens,
        written,
        len(text.encode()),
        statistics.median(ready),
        statistics.median(click),
        len(view.data.panes),
        bertviz_bytes(tokens),
    )


def line(result: Result) -> str:
    parts = [
        f"{result.tokens:5} tokens",
        f"{result.bytes / 1e6:5.2f} MB",
        f"ready {result.ready:.2f} s",
        f"click {result.click * 1000:.0f} ms",
        f"{result.panes} panes",
        f"written in {result.written:.1f} s",
    ]
    if result.bertviz is None:
        parts.append("BertViz not installed")
    else:
        how = "" if result.tokens <= LONGEST_MEASURED else " (by weight)"
        times = result.bertviz / result.bytes
        parts.append(f"BertViz {result.bertviz / 1e6:,.0f} MB{how}, {times:.0f} × as much")
    return "  ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("no Chromium is installed; try: apt install chromium")
    results = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        print(f"12 × 12 heads, random causal weights; Chromium {browser.version}")
        for tokens in LENGTHS[:2] if options.quick else LENGTHS:
            result = measure(browser, tokens, 1 if options.quick else 7)
            results.append(result)
            print(line(result))
        browser.close()
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=2) + "\n")


if __name__ == "__main__":
    main()
