"""The tour: train a small model, let it write, compare one head with several, draw all heads, report."""

from __future__ import annotations

import dataclasses
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from headwise.cost import Workload, from_config, sweep_from
from headwise.cost.cache import kv_cache_bytes, score_tensor_bytes
from headwise.cost.numbers import say_bytes
from headwise.heads import ablate
from headwise.hub import Subject
from headwise.model import GPT, PRESETS, generate, load_model
from headwise.model.generation import GenerationOptions, default_prompt
from headwise.report.cost_curves import cost_curves
from headwise.report.curves import comparison_plot, loss_curves
from headwise.report.figures import figure_svg, save_figure
from headwise.report.page import Comparison, ReportData, Sample, Step, write_report
from headwise.report.viewer import HeadView, view_data
from headwise.text import TokenFile, Tokenizer
from headwise.training import Comparison as ComparisonResult
from headwise.training import (
    Observer,
    RunConfig,
    TrainResult,
    check_comparison,
    compare,
    prepare_runs,
    read_metrics,
    train,
    variants,
)

RUNGS = ["single-head", "multi-head"]
PASSAGE_TOKENS = 48  # as many as can be read beside a map
SAMPLE_TOKENS = 300
MEASURED_TEXTS = 64


@dataclass(frozen=True)
class DemoSettings:
    """What a demo is made of.

    Attributes:
        data: the text; see `headwise.text.open_corpus`.
        tokenizer: "char" or "bpe".
        max_steps: steps of the main training.
        compare_steps: steps of each run of the comparison.
        seeds: runs per variant of the comparison.
    """

    data: str = "python-docs"
    tokenizer: Literal["char", "bpe"] = "char"
    max_steps: int = 1000
    compare_steps: int = 300
    seeds: int = 3

    @property
    def eval_every(self) -> int:
        """Steps between evaluations in the main training."""
        return max(1, self.max_steps // 10)

    @property
    def compare_eval_every(self) -> int:
        """Steps between evaluations in the comparison."""
        return max(1, self.compare_steps // 5)


def run_demo(out: Path, settings: DemoSettings, observer: Observer | None = None) -> Path:
    """Do everything and write `out/index.html`; the runs are kept beside it.

    Called again with the same settings, what is done is not done again.

    Args:
        out: folder for the page, the trained model (`model/`) and the comparison (`compare/`).
        settings: the text and how long to train on it.
        observer: hears of every run.

    Returns:
        The path of the page.

    Raises:
        ValueError: before any training: settings out of range, a text too short to hold some of it out, or
            `out` holding a demo with other settings.
        Interrupted: (a KeyboardInterrupt) Ctrl-C; what is done is kept.
    """
    observer = observer or Observer()
    common = {"data": settings.data, "tokenizer": settings.tokenizer}
    config = RunConfig.from_toml(
        overrides=common | {"max_steps": settings.max_steps, "eval_every": settings.eval_every}
    )
    rungs = variants(
        "preset",
        RUNGS,
        overrides=common | {"max_steps": settings.compare_steps, "eval_every": settings.compare_eval_every},
    )
    check_comparison(rungs, out / "compare", seeds=settings.seeds)
    prepared = prepare_runs([config, *rungs.values()], out / "tokens")
    if prepared.validation is None:
        raise ValueError(
            f"the text {settings.data!r} is too short to hold some of it out, which a demo needs; "
            f"it has {prepared.train.count} tokens"
        )
    folder = out / "model"
    observer.on_message("1 of 3: training a GPT")
    resume = (folder / "config.toml").exists()
    result = train(config, folder, resume=resume, observer=observer, prepared=prepared)
    curves = loss_curves({"": read_metrics(folder)})
    save_figure(curves, folder / "loss.png")
    observer.on_message("2 of 3: one head against several, under equal conditions")
    comparison = compare(rungs, out / "compare", seeds=settings.seeds, observer=observer, prepared=prepared)
    observer.on_message("3 of 3: writing, drawing every head, reporting")
    model, tokenizer = load_model(folder)
    passage = _passage(prepared.validation, tokenizer, min(PASSAGE_TOKENS, model.config.block_size))
    page = out / "index.html"
    write_report(
        page,
        ReportData(
            title="A small GPT and its heads",
            summary=f"Trained on {settings.data} for {result.steps:,} steps, then looked at. Everything here "
            "was made on this machine and can be made again with the commands at the end.",
            **_numbers(settings, result, model, tokenizer),
            config=config.model.model_dump() | config.training.model_dump(),
            loss_plot=figure_svg(curves),
            loss_note="Training loss: single batches. Validation loss: the same held-out batches each time.",
            samples=_samples(model, tokenizer, _prompt(tokenizer, passage)),
            comparison=_comparison(comparison),
            heads=_heads(model, tokenizer, passage, prepared.validation),
            heads_note="On a passage from the held-out text, which the model has not learned from.",
            **_cost(model),
            steps=_steps(out, settings, tokenizer, passage),
        ),
    )
    return page


def _numbers(settings: DemoSettings, result: TrainResult, model: GPT, tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "figures": [
            (f"{result.val_loss:.3f}", "validation loss, nats per token"),
            (f"{result.bits_per_byte:.2f}", "bits per byte"),
            (f"{result.parameters:,}", "parameters"),
            (f"{result.tokens_per_second or 0:,.0f}", "tokens per second"),
        ],
        "facts": [
            ("text", settings.data),
            ("tokens learned from", f"{result.tokens:,}"),
            ("tokens held out", f"{result.validation_tokens:,}"),
            (
                "vocabulary",
                f"{tokenizer.vocab_size:,} {'characters' if tokenizer.kind == 'char' else 'tokens'}",
            ),
            ("device", result.device),
            ("time in training steps", f"{result.seconds:.0f} s"),
        ],
        "parameters": model.parameters_by_part(),
    }


def _cost(model: GPT) -> dict[str, Any]:
    architecture = from_config(model.config)
    workload = Workload(length=model.config.block_size, dtype="fp32")
    cache = say_bytes(kv_cache_bytes(architecture, workload))
    scores = say_bytes(score_tensor_bytes(architecture.layers[0].attention, workload))
    return {
        "cost_plot": figure_svg(cost_curves(sweep_from(architecture, workload))),
        "cost_note": f"By formula, for this model and {workload.length} tokens in fp32. Its cache takes "
        f"{cache}, the scores of one layer, if they are written out, {scores}.",
    }


def _comparison(comparison: ComparisonResult) -> Comparison:
    columns, rows = comparison.table()
    sentences = [variant.conclusion for variant in comparison.variants if variant.conclusion]
    return Comparison(
        columns=columns,
        rows=rows,
        sentence=" ".join(sentences + comparison.notes),
        plot=figure_svg(comparison_plot(comparison.to_json())),
        samples=[Sample(v.sample, comparison.prompt, v.name) for v in comparison.variants],
    )


def _heads(model: GPT, tokenizer: Tokenizer, passage: list[int], held_out: TokenFile) -> HeadView:
    """Return the page of heads on the passage, with what each is worth on other held-out texts."""
    subject = Subject.of(model, tokenizer)
    length = len(passage)
    starts = np.linspace(0, max(0, held_out.count - length), MEASURED_TEXTS).astype(int).tolist()
    texts = [held_out.tokens[start : start + length].tolist() for start in sorted(set(starts))]
    worth = ablate(subject, texts, retrieval=None).table if len(texts) > 1 else None
    source = f"{len(texts)} held-out texts of {length} tokens"
    return HeadView(view_data(subject, passage, texts=texts, ablation=worth, title="Heads", source=source))


def _passage(held_out: TokenFile, tokenizer: Tokenizer, length: int) -> list[int]:
    """Held-out tokens from the beginning of a line on: among the first lines, those with the most letters."""
    ids: list[int] = held_out.tokens[:4096].tolist()
    starts = [at + 1 for at, label in enumerate(tokenizer.labels(ids)) if "⏎" in label]
    passages = [ids[at : at + length] for at in [0, *starts] if at == 0 or at + length <= len(ids)]
    return max(passages, key=lambda passage: sum(map(str.isalpha, tokenizer.decode(passage))))


def _prompt(tokenizer: Tokenizer, passage: list[int]) -> str:
    text = tokenizer.decode(passage)
    return text[: max(1, len(text) // 3)].rstrip("\N{REPLACEMENT CHARACTER}") or default_prompt(tokenizer)


# Title on the page → how the sample is drawn.
_WAYS: dict[str, GenerationOptions] = {
    "greedy": {"temperature": 0.0},
    "temperature 0.8": {"temperature": 0.8, "seed": 1},
    "temperature 1, top-p 0.9": {"temperature": 1.0, "top_p": 0.9, "seed": 2},
}


def _samples(model: GPT, tokenizer: Tokenizer, prompt: str) -> list[Sample]:
    samples = []
    for title, way in _WAYS.items():
        options: GenerationOptions = {"max_new_tokens": SAMPLE_TOKENS, **way}
        samples.append(Sample(generate(model, tokenizer, prompt, **options), prompt, title))
    return samples


def _steps(out: Path, settings: DemoSettings, tokenizer: Tokenizer, passage: list[int]) -> list[Step]:
    def command(verb: str, *arguments: object, **options: object) -> str:
        words = ["headwise", verb, *map(str, arguments)]
        for name, value in options.items():
            words += [f"--{name.replace('_', '-')}", str(value)]
        return shlex.join(words)

    text: dict[str, Any] = {"data": settings.data, "tokenizer": settings.tokenizer}
    evaluation, ladder = settings.compare_eval_every, ",".join(PRESETS)
    return [
        Step(
            "Train",
            command(
                "train",
                **text,
                max_steps=settings.max_steps,
                eval_every=settings.eval_every,
                out="runs/again",
            ),
        ),
        Step(
            "Write",
            command(
                "generate",
                out / "model",
                prompt=_prompt(tokenizer, passage),
                max_new_tokens=SAMPLE_TOKENS,
                **_WAYS["temperature 0.8"],
            ),
        ),
        Step(
            "Compare",
            command(
                "compare",
                **text,
                rungs=",".join(RUNGS),
                seeds=settings.seeds,
                max_steps=settings.compare_steps,
                eval_every=evaluation,
            ),
        ),
        Step("What every head does", command("heads", out / "model")),
        Step("What each is worth", command("ablate", out / "model")),
        Step(
            "Look at heads", command("show", out / "model", text=tokenizer.decode(passage), out="heads.png")
        ),
        Step("What it costs", command("cost", out / "model") + " --verify"),
        Step(
            "Climb on",
            command("compare", **text, rungs=ladder, seeds=3),
            "Every rung of the ladder; about an hour on two cores.",
        ),
        Step("All of this page", command("demo", **dataclasses.asdict(settings), out=out)),
    ]
