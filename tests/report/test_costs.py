"""Costs as curves and as text."""

from __future__ import annotations

from headwise.cost import Workload, advise, compare, estimate, fits, from_sizes, sweep
from headwise.cost.verification import Check
from headwise.report.cost_curves import cost_curves
from headwise.report.cost_tables import advice_lines, change_lines, check_lines, cost_lines, fit_lines


def test_the_panels_hold_the_numbers_of_the_sweep_and_mark_the_band() -> None:
    s = sweep(1024, 16, Workload(length=512), n_kv_head=4, n_layer=2)
    figure = cost_curves(s)
    flat, scores, groups, lengths = figure.axes
    assert set(flat.lines[0].get_ydata()) == {4 * 1024**2}
    assert dict(zip(scores.lines[0].get_xdata(), scores.lines[0].get_ydata(), strict=True)) == {
        h: bytes_ for h, (_, bytes_) in s.heads.items()
    }
    assert dict(zip(groups.lines[0].get_xdata(), groups.lines[0].get_ydata(), strict=True)) == s.kv_heads
    assert [list(line.get_ydata()) for line in lengths.lines] == [
        list(c) for c in zip(*s.lengths.values(), strict=True)
    ]
    for axes in (flat, scores):
        (band,) = axes.patches
        assert (band.get_x(), band.get_x() + band.get_width()) == (8, 16)
    assert "Narrower heads make more scores" in figure.get_supxlabel()
    assert [label.get_text() for label in groups.get_xticklabels()] == ["1", "2", "4", "8", "16"]


def test_a_narrow_model_has_no_band_to_mark() -> None:
    figure = cost_curves(sweep(32, 4, Workload()))
    assert not figure.axes[0].patches


def test_everything_is_said_exactly_and_what_is_missing_is_named() -> None:
    sizes = from_sizes(4096, 32, n_kv_head=8, n_layer=32, context=2048)
    cost = estimate(sizes, Workload(length=4096, cache_dtype="int8"))
    lines = list(cost_lines(sizes, cost))
    assert lines[0] == "these sizes: D=4096  L=32  H=32  G=8  K=128"
    assert lines[1] == "B=1  T=4096  fp16  (cache: int8, a scale per token-head)"
    assert lines[2] == "Note: the model was made for at most 2,048 tokens."
    text = "\n".join(lines)
    assert f"{cost.kv_cache_bytes:,}  bytes" in text
    assert "1,073,741,824  bytes (1 GiB)" in text
    assert (
        lines[-1] == "Not counted, because not given: feed-forward parts, embeddings and output layer, norms."
    )


def test_layers_that_differ_are_listed() -> None:
    sizes = from_sizes(64, 8, n_kv_head=[8, 2], n_layer=2, window=5)
    first = next(iter(cost_lines(sizes, estimate(sizes, Workload()))))
    assert first == "these sizes: D=64  L=2  H=8  G=8,2  K=8  window=5 in 2 of 2 layers"


def test_what_fits_says_none_and_any() -> None:
    sizes = from_sizes(64, 4, window=8)
    cost = estimate(sizes, Workload())
    table = list(fit_lines(fits(sizes, Workload(), 2**20), cost))
    assert table[1] == "What fits 1,048,576 bytes (1 MiB), the model's own context aside"
    assert table[3].split()[:2] == ["inference", "any"]
    assert table[5].split()[-1] == "none"


def test_checks_that_disagree_stand_out() -> None:
    lines = list(
        check_lines([Check("a", 1, 2, 0.0, "x"), Check("b", 2, 2, 0.0, "y"), Check("c", 95, 100, 0.1, "z")])
    )
    assert [line.split()[3] for line in lines[1:]] == ["DIFFERS", "equal", "-5.0%"]


def test_before_and_after_are_columns() -> None:
    sizes = [from_sizes(64, 8, n_kv_head=g) for g in (8, 2)]
    before, after = ((each, estimate(each, Workload())) for each in sizes)
    lines = list(change_lines(before, after))
    assert lines[:2] == [f"{before[1].name}: D=64  L=1  H=8  G={g}  K=8" for g in (8, 2)]
    cells = {line.split("  ")[0]: line.split("  ")[1:] for line in lines[4:]}
    cache = [cell.strip() for cell in cells["KV cache, all layers"] if cell.strip()]
    assert cache == ["256 KiB", "64 KiB", "25.0 %"]
    assert len(lines) == 2 + 1 + 1 + 1 + len(compare(before[1], after[1])) + 1 + 1 + 2
    assert not any("_" in line for line in lines)  # names are words, not code


def test_advice_is_cut_to_what_can_be_read_and_gives_its_reason() -> None:
    found = advise(4096, 2**40, Workload(), n_layer=1)
    lines = list(advice_lines(found, most=3))
    assert len(lines) == 1 + 1 + 3 + 1 + 3
    assert lines[5] == f"  … and {len(found) - 3} with smaller caches (--json lists all)"
    assert "tiles of 64 to 128" in " ".join(lines[6:])
