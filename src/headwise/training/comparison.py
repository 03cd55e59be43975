"""Comparing variants under equal conditions: the same batches, steps and recipe, paired by seed."""

from __future__ import annotations

import dataclasses
import re
import shutil
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwise.files import write_json
from headwise.model import generate, load_model
from headwise.student_t import mean_interval
from headwise.text import Prepared
from headwise.training.config import DataConfig, RunConfig
from headwise.training.config_file import parse_value
from headwise.training.loop import check_machine, train
from headwise.training.metrics import read_metrics, tokens_per_second
from headwise.training.observer import Observer
from headwise.training.run_data import check_text, prepare_runs
from headwise.training.run_folder import RunFolder, TrainResult

SAMPLE_TOKENS = 200
PROMPT_TOKENS = 16


@dataclass(frozen=True)
class Curve:
    """Loss on the fixed validation batches as training went on."""

    seed: int
    steps: list[int]
    losses: list[float]


@dataclass(frozen=True)
class VariantResult:
    """What became of one variant."""

    name: str
    losses: list[float]
    """Loss over the whole validation split, one per seed."""
    mean_loss: float
    difference: float
    """Mean, over the seeds, of this loss minus the first variant's; 0 for the first itself."""
    interval: tuple[float, float] | None
    """95 % t-interval of the mean difference; None for the first variant and with one seed."""
    conclusion: str
    """What that says, in a sentence; empty for the first variant."""
    parameters: int
    tokens_per_second: float | None
    sample: str
    curves: list[Curve]
    folder: str
    """The run of the first seed, a model folder."""


@dataclass(frozen=True)
class Comparison:
    """Variants side by side; the first is what the others are measured against."""

    seeds: list[int]
    prompt: str
    variants: list[VariantResult]
    notes: list[str]
    """Where the conditions were not equal, and how to read the numbers."""

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return dataclasses.asdict(self)

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Headings and one row per variant, as texts."""
        columns = ["variant", "validation loss", "difference", "95 % interval", "parameters", "tokens/s"]
        rows = []
        for index, variant in enumerate(self.variants):
            low_high = variant.interval
            rows.append(
                [
                    variant.name,
                    f"{variant.mean_loss:.4f}",
                    f"{variant.difference:+.4f}" if index else "",
                    f"{low_high[0]:+.4f} … {low_high[1]:+.4f}" if low_high else "",
                    f"{variant.parameters:,}",
                    f"{variant.tokens_per_second:,.0f}" if variant.tokens_per_second else "",
                ]
            )
        return columns, rows


def variants(
    field: str,
    values: Sequence[str],
    path: Path | str | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> dict[str, RunConfig]:
    """One configuration per value of `field`, all else equal.

    Args:
        field: any field of model or training but the seed; or `preset`, for which values are rungs.
        values: as text, such as "4", "0.1", "true", "rotary".
        path, overrides: the rest of the configuration, see `RunConfig.from_toml`.

    Raises:
        ValueError: fewer than two different values, a field that cannot be varied, or a value that does not
            work; all of those are listed.
    """
    if field in DataConfig.model_fields:
        raise ValueError(f"{field} cannot be varied: losses over different tokens do not compare")
    if field == "seed":
        raise ValueError("seed cannot be varied: every variant runs with every seed (see seeds)")
    if len(set(values)) != len(values) or len(values) < 2:
        raise ValueError(f"a comparison needs at least two different values of {field}, got {list(values)}")
    if field in (overrides or {}):
        raise ValueError(f"{field} is what varies; do not also set it")
    made, problems = {}, []
    for text in values:
        name = text if field == "preset" else f"{field}={text}"
        try:
            made[name] = RunConfig.from_toml(path, {**(overrides or {}), field: parse_value(field, text)})
        except ValueError as error:
            problems.append(f"{name}: {error}")
    if problems:
        raise ValueError("; ".join(problems))
    return made


def check_comparison(variants: Mapping[str, RunConfig], out: Path | str, *, seeds: int = 5) -> None:
    """Say what is wrong with the arguments of a comparison; nothing is run or written, no text is read.

    Raises:
        ValueError: fewer than two variants, no seed, variants on different data, a device that is not there,
            or `out` holding runs with other settings.
    """
    _plan(variants, Path(out), seeds)


def compare(
    variants: Mapping[str, RunConfig],
    out: Path | str,
    *,
    seeds: int = 5,
    observer: Observer | None = None,
    prepared: Prepared | None = None,
) -> Comparison:
    """Train every variant with every seed and say what the differences are worth.

    Seeds count up from the variants' `seed`. For one seed, all variants see the same batches in the same
    order, so differences are paired. Tokens are made once. Each run is kept in `out/runs` with its model,
    metrics and result; called again with the same arguments, or with more seeds or variants, only what is
    missing is run.

    Args:
        variants: name → configuration; the first is the one the others are measured against.
        out: folder for the runs and `comparison.json`.
        seeds: number of runs per variant.
        observer: hears of every run.
        prepared: the variants' text as tokens, where they are there already; otherwise made in `out/tokens`.

    Raises:
        ValueError: what `check_comparison` raises, no validation split, or `out` holding runs on
            another text.
        Interrupted: (a KeyboardInterrupt) Ctrl-C; what is done is kept.
    """
    observer = observer or Observer()
    out = Path(out)
    plan = _plan(variants, out, seeds)
    prepared = prepared or prepare_runs(list(variants.values()), out / "tokens")
    if prepared.validation is None:
        data = next(iter(variants.values())).data.data
        raise ValueError(
            f"a comparison needs held-out text, but validation_fraction is 0 or {data!r} is too short"
        )
    for config, folder in plan.values():
        done = folder.read_result()
        if done is not None:
            check_text(config, folder, done.text_hash, prepared.text_hash)
    results: dict[tuple[str, int], TrainResult] = {}
    for count, (key, (config, folder)) in enumerate(plan.items(), 1):
        observer.on_run(*key, count, len(plan))
        results[key] = _run(config, folder, prepared, observer)
    numbers = sorted({seed for _, seed in plan})
    prompt = _prompt(prepared, min(config.model.block_size for config in variants.values()))
    comparison = Comparison(
        seeds=numbers,
        prompt=prompt,
        variants=[
            _judge(
                name,
                next(iter(variants)),
                [results[name, seed] for seed in numbers],
                [results[next(iter(variants)), seed] for seed in numbers],
                [_curve(plan[name, seed][1], seed) for seed in numbers],
                _sample(plan[name, numbers[0]][1], prompt),
            )
            for name in variants
        ],
        notes=_notes(variants, seeds) + _notes_on_steps(results),
    )
    write_json(out / "comparison.json", comparison.to_json())
    return comparison


def conclude(name: str, baseline: str, differences: Sequence[float]) -> str:
    """Say in one sentence what paired differences in loss (`name` minus `baseline`) show."""
    mean = statistics.fmean(differences)
    way = "lower" if mean < 0 else "higher"
    if len(differences) < 2:
        return (
            f"{name} ends {abs(mean):.3f} {way} than {baseline}, but one seed cannot tell whether that is "
            "more than chance."
        )
    low, high = mean_interval(differences)
    numbers = f"{mean:+.3f}, 95 % interval {low:+.3f} to {high:+.3f}, {len(differences)} seeds"
    if low <= 0 <= high:
        return f"{name} and {baseline}: within noise ({numbers})."
    return f"{name} is {'better' if mean < 0 else 'worse'} than {baseline} ({numbers})."


def _judge(
    name: str,
    baseline: str,
    results: Sequence[TrainResult],
    baseline_results: Sequence[TrainResult],
    curves: list[Curve],
    sample: str,
) -> VariantResult:
    losses, others = _losses(results), _losses(baseline_results)
    differences = [loss - other for loss, other in zip(losses, others, strict=True)]
    is_first = name == baseline
    return VariantResult(
        name=name,
        losses=losses,
        mean_loss=statistics.fmean(losses),
        difference=statistics.fmean(differences),
        interval=None if is_first or len(losses) < 2 else mean_interval(differences),
        conclusion="" if is_first else conclude(name, baseline, differences),
        parameters=results[0].parameters,
        tokens_per_second=tokens_per_second(sum(r.tokens for r in results), sum(r.seconds for r in results)),
        sample=sample,
        curves=curves,
        folder=str(results[0].folder),
    )


def _losses(results: Sequence[TrainResult]) -> list[float]:
    return [result.val_loss for result in results if result.val_loss is not None]


def _plan(
    variants: Mapping[str, RunConfig], out: Path, seeds: int
) -> dict[tuple[str, int], tuple[RunConfig, RunFolder]]:
    """The runs by variant and seed, seed by seed, so that what is done early is paired."""
    if len(variants) < 2:
        raise ValueError(f"a comparison needs at least two variants, got {len(variants)}")
    if seeds < 1:
        raise ValueError(f"seeds must be at least 1, got {seeds}")
    if len({slug(name) for name in variants}) != len(variants):
        raise ValueError(f"the names of the variants are too alike for folders: {', '.join(variants)}")
    first = next(iter(variants.values()))
    for config in variants.values():
        if config.data != first.data or config.training.seed != first.training.seed:
            raise ValueError("variants must have the same data and the same first seed to be compared")
        check_machine(config)
    plan = {}
    for seed in range(first.training.seed, first.training.seed + seeds):
        for name, variant in variants.items():
            config, folder = _with_seed(variant, seed), RunFolder(out / "runs" / slug(name) / f"seed-{seed}")
            if folder.config.is_file() and folder.read_config() != config:
                raise ValueError(
                    f"{folder.path} holds a run of {name} with other settings; choose another --out"
                )
            plan[name, seed] = config, folder
    return plan


def _with_seed(config: RunConfig, seed: int) -> RunConfig:
    return config.model_copy(update={"training": config.training.model_copy(update={"seed": seed})})


def slug(name: str) -> str:
    """`name` as the name of a folder."""
    return re.sub(r"[^\w.=+-]+", "-", name)


def _run(config: RunConfig, folder: RunFolder, prepared: Prepared, observer: Observer) -> TrainResult:
    result = folder.read_result()
    if result is None:
        resume = folder.config.is_file()
        result = train(config, folder.path, resume=resume, observer=observer, prepared=prepared)
        # Nothing is left to resume, and many runs add up.
        shutil.rmtree(folder.checkpoints)
    return result


def _prompt(prepared: Prepared, block_size: int) -> str:
    """The first tokens of the held-out text."""
    source = prepared.validation or prepared.train
    ids = source.tokens[: min(PROMPT_TOKENS, block_size)].tolist()
    return prepared.tokenizer.decode(ids).rstrip("\N{REPLACEMENT CHARACTER}") or prepared.tokenizer.decode(
        ids
    )


def _sample(folder: RunFolder, prompt: str) -> str:
    model, tokenizer = load_model(folder.path)
    return generate(model, tokenizer, prompt, max_new_tokens=SAMPLE_TOKENS, temperature=0.8, seed=0)


def _curve(folder: RunFolder, seed: int) -> Curve:
    records = [record for record in read_metrics(folder.path) if record["event"] == "validation"]
    return Curve(seed, [r["step"] for r in records], [r["loss"] for r in records])


def _notes_on_steps(results: Mapping[tuple[str, int], TrainResult]) -> list[str]:
    by_seed: dict[int, set[int]] = {}
    for (_, seed), result in results.items():
        by_seed.setdefault(seed, set()).add(result.steps)
    equal = all(len(steps) == 1 for steps in by_seed.values())
    if equal or not any(result.stopped_early for result in results.values()):
        return []
    seen = set.union(*by_seed.values())
    return [
        f"Early stopping ended runs after {min(seen)} to {max(seen)} steps, so the variants do not learn "
        "from the same batches."
    ]


def _notes(variants: Mapping[str, RunConfig], seeds: int) -> list[str]:
    notes = []
    for name in ("batch_size", "grad_accumulation", "max_steps", "block_size"):
        if len({config.values()[name] for config in variants.values()}) > 1:
            notes.append(f"{name} differs, so the variants do not learn from the same batches.")
    if len(variants) > 2 and seeds > 1:
        notes.append(
            f"Each interval is for its pair alone; among {len(variants) - 1} pairs one may miss by chance."
        )
    return notes
