"""Comparing variants: equal conditions, paired differences, honest words, nothing done twice."""

from __future__ import annotations

import json
import os
import signal
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headwise.model import load_model
from headwise.student_t import mean_interval
from headwise.text import Corpus, open_corpus, prepare
from headwise.training import Interrupted, RunConfig, check_comparison, compare, comparison, variants
from headwise.training.comparison import conclude
from headwise.training.config_file import write_config
from headwise.training.metrics import read_metrics
from headwise.training.run_folder import RunFolder


@pytest.fixture
def heads(tiny: Callable[..., RunConfig]) -> dict[str, RunConfig]:
    return {f"n_head={n}": tiny(n_head=n) for n in (1, 2)}


def test_variants_differ_in_one_field_only(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("[training]\nmax_steps = 7\n")
    made = variants("n_head", ["1", "2", "32"], path, {"seed": 3})
    assert list(made) == ["n_head=1", "n_head=2", "n_head=32"]
    base = made["n_head=1"]
    for name, config in made.items():
        assert config.training == base.training
        assert (config.training.max_steps, config.training.seed) == (7, 3)
        assert config.model == base.model.model_copy(update={"n_head": int(name.partition("=")[2])})


def test_rungs_are_values_of_preset_and_options_apply_to_all() -> None:
    made = variants("preset", ["single-head", "gpt"], None, {"d_model": 64})
    assert made == {
        "single-head": RunConfig.from_toml(None, {"preset": "single-head", "d_model": 64}),
        "gpt": RunConfig.from_toml(None, {"preset": "gpt", "d_model": 64}),
    }


@pytest.mark.parametrize(
    ("field", "values", "overrides", "wanted"),
    [
        ("tokenizer", ["char", "bpe"], {}, "losses over different tokens do not compare"),
        ("seed", ["1", "2"], {}, "every variant runs with every seed"),
        ("n_head", ["2"], {}, "at least two different values"),
        ("n_head", ["2", "2"], {}, "at least two different values"),
        ("n_head", ["1", "2"], {"n_head": 4}, "n_head is what varies"),
        ("n_heads", ["1", "2"], {}, "did you mean n_head"),
        ("n_head", ["3", "5"], {}, "n_head=5: d_model=128 cannot be divided among n_head=5"),
        ("preset", ["gpt", "gtp"], {}, "gtp: preset must be one of"),
    ],
)
def test_what_cannot_be_varied_is_refused(
    field: str, values: list[str], overrides: dict[str, Any], wanted: str
) -> None:
    with pytest.raises(ValueError, match=field if field != "preset" else "gtp") as caught:
        variants(field, values, None, overrides)
    assert wanted in str(caught.value)


def test_all_variants_see_the_same_batches_and_are_paired_by_seed(
    heads: dict[str, RunConfig], tmp_path: Path
) -> None:
    result = compare(heads, tmp_path / "c", seeds=3)
    assert result.seeds == [0, 1, 2]
    first, second = result.variants
    assert [v.name for v in result.variants] == ["n_head=1", "n_head=2"]
    for variant in result.variants:
        runs = [RunFolder(tmp_path / "c" / "runs" / variant.name / f"seed-{seed}") for seed in range(3)]
        assert variant.losses == [run.read_result().val_loss for run in runs]
        assert variant.mean_loss == statistics.fmean(variant.losses)
        assert [run.read_config().training.seed for run in runs] == [0, 1, 2]
        total = sum(run.read_result().seconds for run in runs)
        assert variant.tokens_per_second == pytest.approx(3 * 6 * 32 / total)
        for curve, run in zip(variant.curves, runs, strict=True):
            records = [r for r in read_metrics(run.path) if r["event"] == "validation"]
            assert curve.steps == [0, 2, 4, 6]
            assert curve.losses == [r["loss"] for r in records]
    differences = [b - a for a, b in zip(first.losses, second.losses, strict=True)]
    assert second.difference == pytest.approx(statistics.fmean(differences))
    assert second.interval == pytest.approx(mean_interval(differences))
    assert (first.difference, first.interval, first.conclusion) == (0, None, "")
    assert first.parameters == second.parameters
    assert json.loads((tmp_path / "c" / "comparison.json").read_text()) == json.loads(
        json.dumps(result.to_json())
    )


def test_equal_variants_are_within_noise_to_the_last_bit(
    tiny: Callable[..., RunConfig], tmp_path: Path
) -> None:
    """Grouping with as many groups as heads is the same model: any difference would be unequal conditions."""
    pair = {"plain": tiny(dropout=0.2), "grouped": tiny(dropout=0.2, n_kv_head=2)}
    result = compare(pair, tmp_path / "c", seeds=2)
    assert result.variants[1].losses == result.variants[0].losses
    assert result.variants[1].interval == (0, 0)
    assert "within noise" in result.variants[1].conclusion
    assert result.variants[0].sample == result.variants[1].sample


def test_a_real_difference_is_called_one(tiny: Callable[..., RunConfig], tmp_path: Path) -> None:
    pair = {
        "slow": tiny(max_steps=20, learning_rate=1e-6, matrix_learning_rate=1e-6),
        "fast": tiny(max_steps=20),
    }
    result = compare(pair, tmp_path / "c", seeds=3)
    fast = result.variants[1]
    assert fast.conclusion.startswith("fast is better than slow (-")
    assert fast.interval is not None
    assert fast.interval[1] < 0


@pytest.mark.parametrize(
    ("differences", "start"),
    [
        ([-0.1, -0.11, -0.09], "b is better than a (-0.100, 95 % interval -0.125 to -0.075, 3 seeds)."),
        ([0.1, 0.11, 0.09], "b is worse than a (+0.100"),
        ([0.1, -0.11, 0.02], "b and a: within noise (+0.003, 95 % interval"),
        ([-0.5], "b ends 0.500 lower than a, but one seed cannot tell"),
    ],
)
def test_the_sentence_claims_no_more_than_the_interval(differences: list[float], start: str) -> None:
    assert conclude("b", "a", differences).startswith(start)


def test_one_seed_gives_no_interval(heads: dict[str, RunConfig], tmp_path: Path) -> None:
    second = compare(heads, tmp_path / "c", seeds=1).variants[1]
    assert second.interval is None
    assert "one seed cannot tell" in second.conclusion


def test_samples_continue_the_held_out_text(heads: dict[str, RunConfig], tmp_path: Path, text: Path) -> None:
    result = compare(heads, tmp_path / "c", seeds=1)
    held_out = text.read_text(encoding="utf-8")
    assert result.prompt == held_out[int(len(held_out) * 0.9) :][:8]
    for variant in result.variants:
        model, _ = load_model(variant.folder)
        assert len(variant.sample) == 200
        assert set(variant.sample) <= set(held_out)
        assert model.num_parameters() == variant.parameters


def test_again_nothing_is_run_twice_and_more_seeds_add_to_it(
    heads: dict[str, RunConfig], tmp_path: Path, new_run: Callable[[str], Any]
) -> None:
    out = tmp_path / "c"
    first = compare(heads, out, seeds=2)
    listener = new_run("x").Listener()
    assert compare(heads, out, seeds=2, observer=listener) == first
    assert listener.starts == []
    more = compare(heads, out, seeds=3, observer=listener)
    assert len(listener.starts) == 2
    assert more.variants[0].losses[:2] == first.variants[0].losses
    assert [len(v.losses) for v in more.variants] == [3, 3]


def test_a_stopped_comparison_goes_on_where_it_was(
    heads: dict[str, RunConfig], tmp_path: Path, new_run: Callable[[str], Any]
) -> None:
    straight = compare(heads, tmp_path / "straight", seeds=2)
    kit = new_run("x")
    seen = []

    def ctrl_c() -> None:
        seen.append(1)
        if len(seen) == 3:  # in the third of four runs
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        compare(heads, tmp_path / "c", seeds=2, observer=kit.Listener({4: ctrl_c}))
    listener = kit.Listener()
    result = compare(heads, tmp_path / "c", seeds=2, observer=listener)
    assert [start.step for start in listener.starts] == [4, 0]
    for variant, other in zip(result.variants, straight.variants, strict=True):
        assert variant.losses == other.losses
        assert variant.sample == other.sample


def test_runs_of_another_comparison_are_not_mixed_in(
    heads: dict[str, RunConfig], tiny: Callable[..., RunConfig], tmp_path: Path
) -> None:
    compare(heads, tmp_path / "c", seeds=1)
    other = {name: tiny(n_head=int(name[-1]), max_steps=8) for name in heads}
    with pytest.raises(ValueError, match=r"holds a run of n_head=1 with other settings; choose another"):
        compare(other, tmp_path / "c", seeds=1)


def test_runs_on_a_changed_text_are_not_mixed_in(tiny: Callable[..., RunConfig], tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_text("abcdefghij" * 40)
    pair = {f"n_head={n}": tiny(n_head=n, data=str(path)) for n in (1, 2)}
    compare(pair, tmp_path / "c", seeds=1)
    path.write_text("abcdefghij" * 41)
    with pytest.raises(ValueError, match="has changed since the run in .*seed-0 began"):
        compare(pair, tmp_path / "c", seeds=2)


def test_tokens_are_made_once_and_checkpoints_of_finished_runs_go(
    heads: dict[str, RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    real = comparison.prepare_runs
    monkeypatch.setattr(comparison, "prepare_runs", lambda *a, **k: calls.append(1) or real(*a, **k))
    compare(heads, tmp_path / "c", seeds=2)
    assert calls == [1]
    assert len(list((tmp_path / "c").rglob("train.tokens"))) == 1
    assert list((tmp_path / "c").rglob("checkpoints")) == []
    assert len(list((tmp_path / "c").rglob("model.safetensors"))) == 4


def test_tokens_that_are_there_are_used(
    heads: dict[str, RunConfig], tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = compare(heads, tmp_path / "own", seeds=1)
    prepared = prepare(open_corpus(str(text)), "char", tmp_path / "shared", block_size=8)
    monkeypatch.setattr(Corpus, "chunks", lambda _: pytest.fail("the text is read again"))
    shared = compare(heads, tmp_path / "c", seeds=1, prepared=prepared)
    assert not (tmp_path / "c" / "tokens").exists()
    assert [v.losses for v in shared.variants] == [v.losses for v in own.variants]
    assert shared.prompt == own.prompt
    assert compare(heads, tmp_path / "c", seeds=1, prepared=prepared) == shared

    monkeypatch.undo()
    other = prepare(Corpus.from_text(text.read_text("utf-8") * 2), "char", tmp_path / "other", block_size=8)
    with pytest.raises(ValueError, match="has changed since the run in .* began"):
        compare(heads, tmp_path / "c", seeds=2, prepared=other)
    assert not list((tmp_path / "c").rglob("seed-1"))
    whole = prepare(Corpus.from_text("ab" * 50), "char", tmp_path / "w", block_size=8, validation_fraction=0)
    with pytest.raises(ValueError, match="needs held-out text"):
        compare(heads, tmp_path / "d", seeds=1, prepared=whole)


def test_a_comparison_reads_its_text_no_more_than_it_must(
    heads: dict[str, RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once to know it and once to encode it; to see that it is still the same, once."""
    readings: list[str] = []
    real = Corpus.chunks
    monkeypatch.setattr(Corpus, "chunks", lambda corpus: readings.append(corpus.name) or real(corpus))
    compare(heads, tmp_path / "c", seeds=1)
    assert len(readings) == 2
    compare(heads, tmp_path / "c", seeds=1)
    assert len(readings) == 3


def test_a_comparison_can_be_checked_before_anything_is_read_or_run(
    heads: dict[str, RunConfig], tiny: Callable[..., RunConfig], tmp_path: Path
) -> None:
    nowhere = {f"n_head={n}": tiny(n_head=n, data="nowhere.txt") for n in (1, 2)}
    check_comparison(nowhere, tmp_path / "c", seeds=2)
    assert not (tmp_path / "c").exists()
    for wrong, seeds, wanted in (
        ({"a": tiny()}, 1, "at least two variants"),
        (heads, 0, "seeds must be at least 1"),
        ({"a": tiny(), "b": tiny(seed=1)}, 1, "same first seed"),
        ({"a": tiny(), "b": tiny(device="quantum")}, 1, "'quantum' is not one of"),
    ):
        with pytest.raises(ValueError, match=wanted):
            check_comparison(wrong, tmp_path / "c", seeds=seeds)
    compare(heads, tmp_path / "c", seeds=1)
    with pytest.raises(ValueError, match="with other settings"):
        check_comparison({name: tiny(n_head=int(name[-1]), max_steps=8) for name in heads}, tmp_path / "c")


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"validation_fraction": 0.2}, "same data"),
        ({"seed": 1}, "same first seed"),
    ],
)
def test_unequal_data_or_seeds_are_refused(
    tiny: Callable[..., RunConfig], tmp_path: Path, change: dict[str, Any], wanted: str
) -> None:
    with pytest.raises(ValueError, match=wanted):
        compare({"a": tiny(), "b": tiny(**change)}, tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_a_comparison_needs_variants_seeds_and_held_out_text(
    heads: dict[str, RunConfig], text: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="at least two variants, got 1"):
        compare({"a": heads["n_head=1"]}, tmp_path / "c")
    with pytest.raises(ValueError, match="seeds must be at least 1, got 0"):
        compare(heads, tmp_path / "c", seeds=0)
    bare = RunConfig.from_toml(None, {"data": str(text), "validation_fraction": 0.0})
    with pytest.raises(ValueError, match="needs held-out text"):
        compare({"a": bare, "b": bare}, tmp_path / "c")
    with pytest.raises(ValueError, match="too alike"):
        compare({"a b": heads["n_head=1"], "a/b": heads["n_head=2"]}, tmp_path / "c")


def test_unequal_conditions_are_noted(tiny: Callable[..., RunConfig], tmp_path: Path) -> None:
    unequal = {f"batch_size={n}": tiny(batch_size=n) for n in (2, 4, 8)}
    notes = compare(unequal, tmp_path / "c", seeds=2).notes
    assert notes[0] == "batch_size differs, so the variants do not learn from the same batches."
    assert "among 2 pairs" in notes[1]


def test_early_stopping_at_different_steps_is_noted(tiny: Callable[..., RunConfig], tmp_path: Path) -> None:
    common = {"early_stop_patience": 1, "eval_every": 1, "max_steps": 12, "schedule": "constant"}
    wild = {"learning_rate": 0.5, "matrix_learning_rate": 0.5}
    notes = compare({"calm": tiny(**common), "wild": tiny(**common, **wild)}, tmp_path / "c", seeds=1).notes
    runs = [RunFolder(tmp_path / "c" / "runs" / name / "seed-0").read_result() for name in ("calm", "wild")]
    few, many = sorted(run.steps for run in runs if run)
    assert few < many
    assert notes == [
        f"Early stopping ended runs after {few} to {many} steps, so the variants do not learn from the same "
        "batches."
    ]


def test_the_table_has_a_row_for_each_variant(heads: dict[str, RunConfig], tmp_path: Path) -> None:
    result = compare(heads, tmp_path / "c", seeds=2)
    columns, rows = result.table()
    assert [row[0] for row in rows] == ["n_head=1", "n_head=2"]
    assert all(len(row) == len(columns) for row in rows)
    assert rows[1][1] == f"{result.variants[1].mean_loss:.4f}"
    assert rows[0][2:4] == ["", ""]
    low, high = result.variants[1].interval or (0, 0)
    assert rows[1][3] == f"{low:+.4f} … {high:+.4f}"


def test_a_config_read_back_is_recognised_as_the_same(tiny: Callable[..., RunConfig], tmp_path: Path) -> None:
    """What tells runs of one comparison from those of another."""
    for config in (tiny(), tiny(preset="gpt2", n_kv_head=1), tiny(optimizer="adamw", learning_rate=1e-7)):
        path = tmp_path / "c.toml"
        path.write_text(write_config(config), encoding="utf-8")
        assert RunConfig.from_toml(path) == config
