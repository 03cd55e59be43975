"""What fits, what to choose, what changed, and the numbers behind the curves."""

from __future__ import annotations

from itertools import pairwise

import pytest

from headwise.cost import Workload, advise, compare, estimate, fits, from_sizes, sweep
from headwise.cost.cache import kv_cache_bytes
from headwise.cost.parameters import parameters
from headwise.cost.sweeps import sweep_from
from headwise.cost.training import step_peak

GiB = 2**30


def test_what_fits_fits_and_one_more_does_not() -> None:
    sizes = from_sizes(256, 4, n_kv_head=2, n_layer=3, d_ff=1024, vocab_size=500, norm="rms")
    w, memory = Workload(batch=2, length=300, dtype="fp32"), 200 * 2**20

    def inference(asked: Workload) -> int:
        return 4 * parameters(sizes) + kv_cache_bytes(sizes, asked)

    needed = [
        inference,
        lambda asked: step_peak(sizes, asked, tiled=True),
        lambda asked: step_peak(sizes, asked, tiled=False),
    ]
    for fit, need in zip(fits(sizes, w, memory), needed, strict=True):
        assert fit.longest_context is not None
        assert fit.largest_batch is not None
        assert (
            need(w.with_(length=fit.longest_context))
            <= memory
            < need(w.with_(length=fit.longest_context + 1))
        )
        assert need(w.with_(batch=fit.largest_batch)) <= memory < need(w.with_(batch=fit.largest_batch + 1))


def test_llama_2_7b_cache_in_the_memory_left_by_its_weights() -> None:
    sizes = from_sizes(4096, 32, n_layer=32)
    weights = 2 * parameters(sizes)
    fit = fits(sizes, Workload(length=4096), weights + 5 * 2 * GiB)[0]
    assert (fit.purpose, fit.longest_context, fit.largest_batch) == ("inference", 5 * 4096, 5)


def test_nothing_fits_too_little_and_windows_end_the_growth() -> None:
    sizes = from_sizes(64, 4, window=8)
    assert fits(sizes, Workload(), 10)[0].longest_context == 0
    assert fits(sizes, Workload(), 2**20)[0].longest_context is None
    with pytest.raises(ValueError, match="memory_bytes must be at least 1"):
        fits(sizes, Workload(), 0)


def test_advice_is_every_choice_within_band_and_budget() -> None:
    w = Workload(length=4096)
    found = advise(4096, GiB // 2, w, n_layer=32)
    choices = {(c.n_head, c.n_kv_head, c.d_head) for c in found}
    assert choices == {
        *((32, g, 128) for g in (1, 2, 4, 8)),
        *((64, g, 64) for g in (1, 2, 4, 8, 16)),
    }
    assert found[0].kv_cache_bytes == GiB // 2
    assert (found[0].n_head, found[0].n_kv_head) == (32, 8)  # the fewer scores of two equal caches
    assert [c.kv_cache_bytes for c in found] == sorted((c.kv_cache_bytes for c in found), reverse=True)
    for c in found:
        sizes = from_sizes(4096, c.n_head, n_kv_head=c.n_kv_head, n_layer=32)
        assert c.kv_cache_bytes == kv_cache_bytes(sizes, w)


def test_advice_that_cannot_be_given() -> None:
    with pytest.raises(ValueError, match="the smallest, multi-query attention, takes 2,097,152 bytes"):
        advise(256, 1000, Workload(length=4096), n_layer=2)
    with pytest.raises(ValueError, match="d_model=62 has no head width from 64 to 128"):
        advise(62, GiB, Workload(), n_layer=2)
    with pytest.raises(TypeError, match="d_model must be a whole number"):
        advise(64.0, GiB, Workload(), n_layer=2)  # type: ignore[arg-type]


def test_before_and_after() -> None:
    w = Workload(length=100)
    before = estimate(from_sizes(64, 8, n_layer=3), w)
    after = estimate(from_sizes(64, 8, n_kv_head=[4, 2, 1], n_layer=3), w)
    changes = {change.cost: change for change in compare(before, after)}
    cache = changes["kv_cache_bytes"]
    assert cache.ratio == pytest.approx(7 / 24)
    assert cache.difference == -2 * 8 * 100 * 2 * (24 - 7)
    assert changes["score_tensor_bytes_all_layers"].ratio == 1.0
    assert not any(
        "second" in name or "speed" in name for name in changes
    )  # speed is measured, not predicted
    assert cache.to_json() == {
        "before": before.kv_cache_bytes,
        "after": after.kv_cache_bytes,
        "difference": cache.difference,
        "ratio": cache.ratio,
    }


def test_only_like_is_compared_with_like() -> None:
    sizes = from_sizes(64, 8)
    with pytest.raises(ValueError, match=r"these differ in batch \(1 and 2\), length \(5 and 6\)"):
        compare(estimate(sizes, Workload(1, 5)), estimate(sizes, Workload(2, 6)))
    whole, half = (estimate(sizes, Workload(dtype=dtype)) for dtype in ("fp32", "bf16"))
    changes = {change.cost: change.ratio for change in compare(whole, half)}
    assert (changes["parameters"], changes["weights_bytes"], changes["kv_cache_bytes"]) == (1, 0.5, 0.5)


def test_the_curves_have_the_shapes_they_are_drawn_to_show() -> None:
    s = sweep(1024, 16, Workload(length=512), n_kv_head=4, n_layer=2)
    assert {p for p, _ in s.heads.values()} == {4 * 1024**2}
    assert {scores // h for h, (_, scores) in s.heads.items()} == {512**2 * 2}
    assert {cache / g for g, cache in s.kv_heads.items()} == {2 * 64 * 512 * 2 * 2}
    assert list(s.kv_heads) == [1, 2, 4, 8, 16]
    lengths = list(s.lengths.items())
    for (t, (scores, cache)), (t2, (scores2, cache2)) in pairwise(lengths):
        assert (t2 / t, scores2 / scores, cache2 / cache) == (2, 4, 2)
    assert s.band == (8, 16)
    assert sweep(32, 4, Workload()).band is None


def test_curves_of_layers_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match="curves need layers with the same heads"):
        sweep_from(from_sizes(64, [4, 2], n_layer=2, d_head=16), Workload())
    with pytest.raises(ValueError, match="with a window"):
        sweep_from(from_sizes(64, 4, window=3), Workload())


def test_json_keys_say_bytes_or_are_counts() -> None:
    values = estimate(from_sizes(64, 8), Workload(cache_dtype="int8")).to_json()
    for key in ("parameters", "score_tensor_bytes", "kv_cache_bytes", "flops_forward", "flops_backward"):
        assert isinstance(values[key], int)
    assert (values["batch"], values["length"], values["cache_scales"]) == (1, 1024, "token-head")
