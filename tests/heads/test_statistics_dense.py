"""Streaming statistics against dense formulas in float64, written straight from the definitions."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from headwise.attention import Mask, attention
from headwise.heads import AttentionCall, StatisticsCollector, streaming
from headwise.heads.sampled_queries import Sample
from headwise.heads.statistics_columns import ROW_COLUMNS
from headwise.heads.statistics_reduction import reduce_call
from headwise.hub import AttentionLayer, TokenBatch

ALL = Sample()


@dataclass
class Case:
    call: AttentionCall
    batch: TokenBatch
    allowed: Tensor
    """(B, H, T, S)"""


def layer(heads: int, groups: int, width: int, *, cross: bool = False, out: int = 10) -> AttentionLayer:
    projection = nn.Linear(heads * width, out)
    return AttentionLayer(
        0, "attention", projection, heads, groups, width, width, cross=cross, causal=None, o_proj=projection
    )


def tokens(real: Tensor, special: Tensor, punctuation: Tensor) -> TokenBatch:
    return TokenBatch(torch.randint(0, 50, real.shape), real, special, punctuation)


def make(
    seed: int,
    *,
    B: int = 2,
    H: int = 4,
    G: int = 2,
    T: int = 9,
    S: int | None = None,
    mask: str = "causal",
    padding: str = "none",
    dtype: torch.dtype = torch.float64,
    softcap: float | None = None,
    bias: bool = False,
    sink: bool = False,
    spread: float = 1.0,
) -> Case:
    torch.manual_seed(seed)
    cross = S is not None
    S = T if S is None else S
    q = (torch.randn(B, H, T, 6, dtype=dtype) * spread).contiguous()
    k, v = torch.randn(B, G, S, 6, dtype=dtype), torch.randn(B, G, S, 5, dtype=dtype)
    real = torch.ones(B, T, dtype=torch.bool)
    for b in range(B):
        cut = int(torch.randint(0, T, ()))
        if padding == "right":
            real[b, T - cut :] = False
        elif padding == "left":
            real[b, :cut] = False
    chosen = {
        "causal": Mask.causal(),
        "full": None,
        "window": Mask.window(3),
        "random": Mask.keep(torch.rand(B, H, T, S) < 0.6),
    }[mask]
    if padding != "none" and not cross:
        kept = Mask.keep(real[:, None, None, :])
        chosen = kept if chosen is None else chosen & kept
    options = {
        "mask": chosen,
        "bias": torch.randn(1, H, T, S, dtype=dtype) if bias else None,
        "softcap": softcap,
        "sink": torch.randn(H, dtype=dtype) if sink else None,
        "scale": 0.3,
    }
    out = attention(q, k, v, backend="reference", **options)
    call = AttentionCall(layer(H, G, 5, cross=cross), q, k, v, out, **options)
    batch = tokens(real, torch.rand(B, T) < 0.2, torch.rand(B, T) < 0.2)
    allowed = torch.ones(1, 1, T, S, dtype=torch.bool)
    if chosen is not None:
        allowed = chosen.to_tensor(T, S).reshape(
            -1 if chosen.to_tensor(T, S).ndim == 4 else 1,
            *(chosen.to_tensor(T, S).shape[1:] if chosen.to_tensor(T, S).ndim == 4 else (1, T, S)),
        )
    return Case(call, batch, allowed.expand(B, H, T, S))


def mean(values: Tensor, counts: Tensor) -> Tensor:
    """Average of values (B, H, T) over those that count, per head; NaN over nothing."""
    counts, values = counts.expand(values.shape), values.double()
    return torch.where(counts, values, 0.0).sum(dim=(0, 2)) / counts.sum(dim=(0, 2))


def dense(case: Case, sample: Sample = ALL) -> dict[str, Tensor]:
    """Every statistic by its definition, from the matrix of weights; of a sample, by its queries alone."""
    call, allowed = case.call, case.allowed
    H, G, T, S = call.q.shape[1], call.k.shape[1], call.q.shape[2], call.k.shape[2]
    q, k, v = call.q.double(), call.k.double(), call.v.double()
    k, v = k.repeat_interleave(H // G, 1), v.repeat_interleave(H // G, 1)
    s = call.scale * q @ k.mT
    if call.softcap is not None:
        s = call.softcap * torch.tanh(s / call.softcap)
    if call.bias is not None:
        s = s + call.bias.double()
    e = torch.where(allowed, s, -math.inf)
    top = e.amax(-1, keepdim=True)
    e = torch.where(allowed, (s - torch.where(top > -math.inf, top, 0.0)).exp(), 0.0)
    below = e.sum(-1, keepdim=True)
    if call.sink is not None:
        below = below + (call.sink.double()[:, None, None] - torch.where(top > -math.inf, top, 0.0)).exp()
    A = torch.where(allowed.any(-1, keepdim=True), e / below.clamp(min=1e-300), 0.0)
    A = torch.where(allowed, A, 0.0)
    n = allowed.sum(-1)
    taken = torch.zeros(T, dtype=torch.bool)
    taken[sample.start :: sample.step] = True
    rows = case.batch.real[:, None, :] & (n > 0) & taken
    i, j = torch.arange(T)[:, None], torch.arange(S)[None, :]
    found: dict[str, Tensor] = {}

    def mass(name: str, which: Tensor) -> None:
        which = which & allowed
        has = rows & which.any(-1)
        found[name] = mean((A * which).sum(-1), has)
        found[f"{name}_uniform"] = mean(which.sum(-1) / n.clamp(min=1), has)

    real, special, punctuation = case.batch.real, case.batch.special, case.batch.punctuation
    nan = torch.full((H,), math.nan, dtype=torch.float64)
    W = call.layer.o_proj.weight.detach().double()
    f = torch.stack([v[:, h] @ W[:, h * 5 : h * 5 + 5].T for h in range(H)], 1).norm(dim=-1)  # (B, H, S)
    z = A @ v
    written = torch.stack([z[:, h] @ W[:, h * 5 : h * 5 + 5].T for h in range(H)], 1).norm(dim=-1)
    found["output_norm"] = mean(written, rows)
    whole = written.sum(1, keepdim=True)
    found["output_share"] = mean(written / whole.clamp(min=1e-300), rows & (whole > 0))
    found["norm"] = mean((A * f[:, :, None]).sum(-1), rows)
    equal_weights = allowed / n.clamp(min=1)[..., None]
    found["norm_uniform"] = mean((equal_weights * f[:, :, None]).sum(-1), rows)
    if not call.layer.cross:
        is_real = real[:, None, None, :]
        is_first = (j == real.int().argmax(-1)[:, None, None, None]) & is_real
        is_special = special[:, None, None, :] & is_real
        apart = (is_first | is_special) & allowed
        for name, offset in (("self", 0), ("previous", -1), ("next", 1)):
            mass(name, j == i + offset)
        mass("band", (i - j).abs() <= 2)
        mass("first", is_first)
        mass("special", is_special)
        mass("punctuation", punctuation[:, None, None, :] & is_real)
        own, sees = (j == i) & allowed, is_first & allowed
        has = is_special & allowed
        for ending, weights in (("", A), ("_uniform", equal_weights)):
            of_length = weights * f[:, :, None]
            for name, which in (("self", own), ("first", sees), ("special", has)):
                found[f"{name}_norm{ending}"] = mean((of_length * which).sum(-1), rows & which.any(-1))
        found["distance"] = mean((A * (i - j).abs()).sum(-1), rows)
        found["distance_uniform"] = mean((allowed * (i - j).abs()).sum(-1) / n.clamp(min=1), rows)
        content = allowed & ~apart
        largest = torch.where(content, A, 0.0).amax(-1)
        found["content_confidence"] = mean(largest, rows & content.any(-1))
        found["content_confidence_uniform"] = mean(1 / n.clamp(min=1), rows & content.any(-1))
        for name, offset in (("argmax_previous", -1), ("argmax_next", 1)):
            there = (j == i + offset) & allowed
            mine = (A * there).amax(-1)
            others = torch.where(allowed & ~there, A, -1.0).amax(-1)
            found[name] = mean((mine > others).double(), rows & there.any(-1) & (n > 1))
        number = (rows[..., None] & sees).sum((2, 3))
        for ending, weights in (("", A), ("_uniform", equal_weights)):
            to_first = torch.where(rows[..., None] & sees, weights, 0.0).sum((2, 3))
            received = to_first / number.clamp(min=1)
            texts_with = (number > 0).sum(0)
            found[f"first_received{ending}"] = torch.where(number > 0, received, 0.0).sum(0) / texts_with
            found[f"sink{ending}"] = ((received > 0.3) & (number > 0)).double().sum(0) / texts_with
    else:
        unknown = "self previous next band first special punctuation self_norm first_norm special_norm"
        for name in (*unknown.split(), "distance", "content_confidence", "argmax_previous", "sink"):
            found[name] = nan
    logs = torch.where(A > 0, A.clamp(min=1e-300).log(), 0.0)
    H_i = -(A * logs).sum(-1)
    found["entropy"] = mean(H_i, rows)
    found["entropy_uniform"] = mean(n.clamp(min=1).double().log(), rows)
    found["normalised_entropy"] = mean(H_i / n.clamp(min=2).double().log(), rows & (n > 1))
    found["confidence"] = mean(A.amax(-1), rows)
    found["confidence_uniform"] = mean(1 / n.clamp(min=1), rows)
    found["missing"] = mean(1 - A.sum(-1), rows)
    share = torch.where(rows[..., None], A, 0.0).sum(2) / rows.sum(2, keepdim=True).clamp(min=1)  # (B, H, S)
    equal = torch.where(rows[..., None], allowed / n.clamp(min=1)[..., None], 0.0).sum(2)
    equal = equal / rows.sum(2, keepdim=True).clamp(min=1)
    texts = rows.any(2).sum(0)
    for name, t in (("", share), ("_uniform", equal)):
        found[f"received_max{name}"] = t.amax(2).sum(0) / texts
        found[f"received_concentration{name}"] = t.square().sum(2).sum(0) / texts
    return found


def streamed(case: Case, *, received: bool = True, every: int = 1) -> dict[str, Tensor]:
    collector = StatisticsCollector([case.call.layer], received=received, every=every)
    collector.update(case.call, case.batch)
    table = collector.result().table
    return {str(name): torch.tensor(table[name].to_numpy(dtype=float)) for name in table.columns}


def check(case: Case, tolerance: float = 1e-6, *, every: int = 1) -> None:
    got, wanted = streamed(case, every=every), dense(case, Sample.of(case.batch, every))
    for name, value in wanted.items():
        torch.testing.assert_close(
            got[name],
            value.double(),
            atol=tolerance,
            rtol=tolerance,
            equal_nan=True,
            msg=lambda m, n=name: f"{n}: {m}",
        )


@pytest.fixture(params=["one tile", "tiles"])
def small_tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many strips and tiles also in short texts."""
    if request.param == "tiles":
        monkeypatch.setattr(streaming, "_ROWS", 6)
        monkeypatch.setattr(streaming, "_KEYS", 4)
        monkeypatch.setattr(streaming, "_CPU_TILE_PER_THREAD", 64)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("mask", ["causal", "full", "window", "random"])
@pytest.mark.parametrize("padding", ["none", "left", "right"])
def test_equals_the_dense_formulas_under_every_mask_and_padding(mask: str, padding: str) -> None:
    check(make(1, mask=mask, padding=padding, T=17))


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("extra", ["softcap", "bias", "sink"])
@pytest.mark.parametrize("mask", ["causal", "full"])
def test_equals_the_dense_formulas_with_softcap_bias_and_learned_sink(extra: str, mask: str) -> None:
    check(make(2, mask=mask, T=13, **{extra: 1.5 if extra == "softcap" else True}))


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize(("H", "G"), [(4, 4), (4, 2), (4, 1), (6, 2)])
def test_query_heads_read_the_key_head_of_their_group(H: int, G: int) -> None:
    check(make(3, H=H, G=G, T=12))


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize(("T", "S"), [(5, 9), (9, 5), (7, 7), (1, 4)])
def test_cross_attention_says_nothing_about_neighbours(T: int, S: int) -> None:
    case = make(4, T=T, S=S, mask="full")
    check(case)
    got = streamed(case)
    for name in ("self", "previous", "next", "band", "distance", "self_norm", "argmax_next"):
        assert got[name].isnan().all()


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("T", [1, 2, 3])
@pytest.mark.parametrize("mask", ["causal", "full"])
def test_shortest_texts(T: int, mask: str) -> None:
    check(make(5, T=T, mask=mask))


@pytest.mark.parametrize("bias", [False, True])
def test_a_layer_that_sees_nothing_at_all(bias: bool) -> None:
    case = make(6, T=5, bias=bias)
    nothing = replace(case.call, mask=Mask.causal() & ~Mask.causal())
    got = streamed(Case(nothing, case.batch, torch.zeros_like(case.allowed)))
    for name in ("entropy", "norm", "norm_uniform", "first", "received_max"):
        assert got[name].isnan().all(), name


@given(
    seed=st.integers(0, 2**16),
    B=st.integers(1, 3),
    heads=st.sampled_from([(1, 1), (3, 3), (4, 2), (4, 1)]),
    T=st.integers(1, 40),
    mask=st.sampled_from(["causal", "full", "window", "random"]),
    padding=st.sampled_from(["none", "left", "right"]),
    softcap=st.sampled_from([None, 2.0]),
    bias=st.booleans(),
    sink=st.booleans(),
    spread=st.sampled_from([0.1, 1.0, 10.0]),
    every=st.sampled_from([1, 1, 2, 3, 8, 50]),
)
@settings(max_examples=60, deadline=None)
def test_streaming_equals_dense(
    seed: int, B: int, heads: tuple[int, int], T: int, mask: str, padding: str, every: int, **options: object
) -> None:
    H, G = heads
    check(make(seed, B=B, H=H, G=G, T=T, mask=mask, padding=padding, **options), every=every)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrow_inputs_are_summed_in_float32(dtype: torch.dtype) -> None:
    case = make(6, T=150, H=2, G=1, dtype=dtype)
    # the heads' output is rounded to the input's dtype; all else comes from q, k and v
    exact = replace(
        case.call,
        out=attention(
            *(t.double() for t in (case.call.q, case.call.k, case.call.v)), mask=case.call.mask, scale=0.3
        ),
    )
    check(Case(exact, case.batch, case.allowed), tolerance=3e-6)


def test_far_larger_scores_stay_exact() -> None:
    case = make(7, T=40, spread=300.0, dtype=torch.float32)
    got, wanted = streamed(case), dense(case)
    for name in ("entropy", "confidence", "previous", "distance"):
        torch.testing.assert_close(got[name], wanted[name], atol=1e-3, rtol=1e-3)
        assert got[name].isfinite().all()


def test_rows_level_says_the_same_without_what_keys_receive() -> None:
    case = make(8, T=21)
    every, rows = streamed(case), streamed(case, received=False)
    assert set(every) - set(rows) == {
        f"received_{name}{uniform}" for name in ("max", "concentration") for uniform in ("", "_uniform")
    }
    for name, value in rows.items():
        torch.testing.assert_close(value, every[name], equal_nan=True)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("mask", ["causal", "full", "window", "random"])
@pytest.mark.parametrize("padding", ["none", "left", "right"])
def test_every_nth_query_equals_the_dense_formulas_of_those_queries(mask: str, padding: str) -> None:
    for every in (2, 5):
        check(make(9, mask=mask, padding=padding, T=33), every=every)


@pytest.mark.parametrize(("T", "S"), [(9, 5), (5, 9)])
def test_every_nth_query_of_cross_attention(T: int, S: int) -> None:
    check(make(10, T=T, S=S, mask="full"), every=3)


def test_every_nth_query_in_bfloat16() -> None:
    case = make(11, T=90, H=2, G=1, dtype=torch.bfloat16)
    got, wanted = streamed(case, every=4), dense(case, Sample.of(case.batch, 4))
    for name in ("previous", "entropy", "confidence", "distance", "received_max", "norm"):
        torch.testing.assert_close(got[name], wanted[name], atol=3e-6, rtol=3e-6)


@pytest.mark.parametrize("padding", ["none", "left"])
def test_samples_add_up_to_all_queries(padding: str) -> None:
    """So an average over queries has no bias, wherever the count begins."""
    case = make(12, T=29, mask="window", padding=padding, sink=True)
    factors = torch.eye(5, dtype=torch.float64).expand(4, -1, -1)

    def sums(sample: Sample) -> Tensor:
        found = reduce_call(case.call, case.batch, None, factors, received=True, sample=sample)
        return found.values[:, : len(ROW_COLUMNS)]

    parts = torch.stack([sums(Sample(start, 4)) for start in range(4)])
    torch.testing.assert_close(parts.sum(dim=0), sums(ALL), atol=1e-9, rtol=1e-9)


def test_samples_depend_on_the_tokens_alone_and_begin_anywhere() -> None:
    starts = set()
    for seed in range(100):
        torch.manual_seed(seed)
        real = torch.ones(2, 30, dtype=torch.bool)
        batch = tokens(real, ~real, ~real)
        starts.add(Sample.of(batch, 8).start)
        assert Sample.of(batch, 8) == Sample.of(replace(batch, ids=batch.ids.clone()), 8)
        assert Sample.of(batch, 1000).start < 30  # one query at least
    assert starts == set(range(8))
