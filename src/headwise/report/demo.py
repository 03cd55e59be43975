"""The tour: train a small model, let it write, compare one head with several, draw all heads, report."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from headwise.cost import Workload, from_config, sweep_from
from headwise.cost.cache import kv_cache_bytes, score_tensor_bytes
from headwise.cost.numbers import say_bytes
from headwise.model import GPT, PRESETS, generate, load_model
from headwise.report.cost_curves import cost_curves
from headwise.report.curves import comparison_plot, loss_curves
from headwise.report.figures import figure_svg
from headwise.report.page import Attention, Comparison, ReportData, Sample, Step, write_report
from headwise.text import TokenFile, Tokenizer
from headwise.training import Comparison as ComparisonResult
from headwise.training import Observer, RunConfig, TrainResult, compare, read_metrics, train, variants

RUNGS = ["single-head", "multi-head"]
PASSAGE_TOKENS = 48  # as many as can be read beside a map


def run_demo(
    out: Path,
    *,
    data: str = "python-docs",
    tokenizer: str = "char",
    max_steps: int = 1000,
    compare_steps: int = 300,
    seeds: int = 3,
    observer: Observer | None = None,
) -> Path:
    """Do everything and write `out/index.html`; the runs are kept beside it.

    Called again with the same arguments, what is done is not done again.

    Args:
        out: folder for the page, the trained model (`model/`) and the comparison (`compare/`).
        data: the text; see `headwise.text.open_corpus`.
        tokenizer: "char" or "bpe".
        max_steps: steps of the main training.
        compare_steps: steps of each run of the comparison.
        seeds: runs per variant of the comparison.
        observer: hears of every run.

    Returns:
        The path of the page.

    Raises:
        ValueError: as `train` and `compare`; also if `out` holds a demo with other arguments.
        Interrupted: (a KeyboardInterrupt) Ctrl-C; what is done is kept.
    """
    observer = observer or Observer()
    common = {"data": data, "tokenizer": tokenizer}
    config = RunConfig.from_toml(
        overrides=common | {"max_steps": max_steps, "eval_every": max(1, max_steps // 10)}
    )
    rungs = variants(
        "preset",
        RUNGS,
        overrides=common | {"max_steps": compare_steps, "eval_every": max(1, compare_steps // 5)},
    )
    folder = out / "model"
    observer.on_message("1 of 3: training a GPT")
    result = train(config, folder, resume=(folder / "config.toml").exists(), observer=observer)
    observer.on_message("2 of 3: one head against several, under equal conditions")
    comparison = compare(rungs, out / "compare", seeds=seeds, observer=observer)
    observer.on_message("3 of 3: writing, drawing every head, reporting")
    model, trained_tokenizer = load_model(folder)
    page = out / "index.html"
    write_report(page, _report(out, config, result, model, trained_tokenizer, comparison))
    return page


def _report(
    out: Path,
    config: RunConfig,
    result: TrainResult,
    model: GPT,
    tokenizer: Tokenizer,
    comparison: ComparisonResult,
) -> ReportData:
    held_out = TokenFile.open(out / "model" / "tokens" / "validation.tokens", tokenizer)
    ids = _passage(held_out, tokenizer, min(PASSAGE_TOKENS, model.config.block_size))
    passage = tokenizer.decode(ids)
    with torch.no_grad():
        _, weights = model(torch.tensor([ids]), return_weights=True)
    columns, rows = comparison.table()
    data = config.data.data
    losses = f"{result.val_loss:.3f}" if result.val_loss is not None else "none"
    architecture = from_config(model.config)
    workload = Workload(length=model.config.block_size, dtype="fp32")
    return ReportData(
        title="A small GPT and its heads",
        summary=f"Trained on {data} for {result.steps:,} steps, then looked at. Everything here was made on "
        "this machine and can be made again with the commands at the end.",
        figures=[
            (losses, "validation loss, nats per token"),
            (f"{result.bits_per_byte:.2f}" if result.bits_per_byte is not None else "none", "bits per byte"),
            (f"{result.parameters:,}", "parameters"),
            (f"{result.tokens_per_second or 0:,.0f}", "tokens per second"),
        ],
        facts=[
            ("text", data),
            ("tokens learned from", f"{result.tokens:,}"),
            ("tokens held out", f"{result.validation_tokens:,}"),
            (
                "vocabulary",
                f"{tokenizer.vocab_size:,} {'characters' if tokenizer.kind == 'char' else 'tokens'}",
            ),
            ("device", result.device),
            ("time in training steps", f"{result.seconds:.0f} s"),
        ],
        parameters=model.parameters_by_part(),
        config=config.model.model_dump() | config.training.model_dump(),
        loss_plot=figure_svg(loss_curves({"": read_metrics(out / "model")})),
        loss_note="Training loss: single batches. Validation loss: the same held-out batches each time.",
        samples=_samples(model, tokenizer, passage),
        comparison=Comparison(
            columns=columns,
            rows=rows,
            sentence=" ".join([v.conclusion for v in comparison.variants if v.conclusion] + comparison.notes),
            plot=figure_svg(comparison_plot(comparison.to_json())),
            samples=[Sample(v.sample, comparison.prompt, v.name) for v in comparison.variants],
        ),
        attention=Attention(
            weights=weights,
            labels=tokenizer.labels(ids),
            visible=np.tri(len(ids), dtype=bool),
            caption="A passage from the held-out text, which the model has not learned from.",
        ),
        cost_plot=figure_svg(cost_curves(sweep_from(architecture, workload))),
        cost_note=f"By formula, for this model and {workload.length} tokens in fp32. Its cache takes "
        f"{say_bytes(kv_cache_bytes(architecture, workload))}, the scores of one layer, if they are written "
        f"out, {say_bytes(score_tensor_bytes(architecture.layers[0].attention, workload))}.",
        steps=_steps(out, config, comparison, passage),
    )


def _passage(held_out: TokenFile, tokenizer: Tokenizer, length: int) -> list[int]:
    """Held-out tokens from the beginning of a line on: among the first lines, those with the most letters."""
    ids: list[int] = held_out.tokens[:4096].tolist()
    starts = [at + 1 for at, label in enumerate(tokenizer.labels(ids)) if "⏎" in label]
    passages = [ids[at : at + length] for at in [0, *starts] if at == 0 or at + length <= len(ids)]
    return max(passages, key=lambda passage: sum(map(str.isalpha, tokenizer.decode(passage))))


def _samples(model: GPT, tokenizer: Tokenizer, passage: str) -> list[Sample]:
    prompt = passage[: max(1, len(passage) // 3)].rstrip("\N{REPLACEMENT CHARACTER}")
    made = [
        ("greedy", {"temperature": 0.0}),
        ("temperature 0.8", {"temperature": 0.8, "seed": 1}),
        ("temperature 1, top-p 0.9", {"temperature": 1.0, "top_p": 0.9, "seed": 2}),
    ]
    return [
        Sample(generate(model, tokenizer, prompt, max_new_tokens=300, **options), prompt, title)  # type: ignore[arg-type]
        for title, options in made
    ]


def _steps(out: Path, config: RunConfig, comparison: ComparisonResult, passage: str) -> list[Step]:
    model, data, recipe = out / "model", config.data, config.training
    text = passage.replace("\n", " ").replace("'", "'\\''")
    what = f"--data {data.data} --tokenizer {data.tokenizer}"
    seeds = len(comparison.seeds)
    steps = comparison.variants[0].curves[0].steps[-1]
    return [
        Step(
            "Train",
            f"headwise train {what} --max-steps {recipe.max_steps} --eval-every {recipe.eval_every} "
            "--out runs/again",
        ),
        Step("Write", f"headwise generate {model} --temperature 0.8 --seed 1"),
        Step(
            "Compare",
            f"headwise compare {what} --rungs {','.join(RUNGS)} --seeds {seeds} --max-steps {steps}",
        ),
        Step("Look at heads", f"headwise show {model} --text '{text}' -o heads.png"),
        Step("What it costs", f"headwise cost {model} --verify"),
        Step(
            "Climb on",
            f"headwise compare {what} --rungs {','.join(PRESETS)} --seeds 3",
            "Every rung of the ladder; about half an hour on two cores.",
        ),
        Step("All of this page", "headwise demo"),
    ]
