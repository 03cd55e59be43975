"""Heads whose weights are known exactly score exactly that in every statistic."""

from __future__ import annotations

import math
from collections.abc import Callable

import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from headwise.attention import Mask, WeightsOf, attention
from headwise.heads import AttentionCall, StatisticsCollector, streaming_threads
from headwise.heads.kernel import kernel
from headwise.heads.repeated import score_repeated
from headwise.heads.weights import weights_of
from headwise.hub import AttentionLayer, TokenBatch

PERIOD = 4
STRONG = 32.0
"""As a query and as a key, so that a score is 1024 or 0: exp(-1024) is 0."""

Targets = Callable[[int, int], list[int]]
"""For a query and the number of tokens, counted from the first real one, the keys with equal weight."""

HEADS: dict[str, Targets] = {
    "previous": lambda i, _: [max(i - 1, 0)],
    "next": lambda i, n: [min(i + 1, n - 1)],
    "self": lambda i, _: [i],
    "first": lambda _i, _n: [0],
    "uniform": lambda _i, _n: [],
    "block": lambda i, n: [j for j in range(n) if j // 4 == i // 4],
    "duplicate": lambda i, _: [j for j in range(i) if (i - j) % PERIOD == 0] or [i],
    "induction": lambda i, _: [j + 1 for j in range(i) if (i - j) % PERIOD == 0] or [i],
}


@pytest.fixture(autouse=True, params=["tiles", "compiled"])
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sum up tile by tile, or by the compiled pass, whatever the size."""
    if request.param == "compiled" and kernel() is None:
        pytest.skip("there is no C compiler")
    monkeypatch.setattr(streaming_threads, "WORTH_COMPILING", 0 if request.param == "compiled" else math.inf)


def planted(
    n: int,
    *,
    causal: bool,
    padding: str = "none",
    groups: int = 8,
    dtype: torch.dtype = torch.float32,
) -> tuple[AttentionCall, TokenBatch]:
    """Return a call of eight heads on one text of n tokens; keys say where they are."""
    pad = 0 if padding == "none" else 3
    T = n + pad
    start = pad if padding == "left" else 0
    q = torch.zeros(1, len(HEADS), T, T)
    for h, targets in enumerate(HEADS.values()):
        for i in range(n):
            q[0, h, start + i, [start + j for j in targets(i, n)]] = STRONG
    k = (torch.eye(T) * STRONG).expand(1, groups, T, T)
    v = torch.randn(1, groups, T, 3)
    real = torch.zeros(1, T, dtype=torch.bool)
    real[:, start : start + n] = True
    mask = Mask.keep(real[:, None, None, :])
    if causal:
        mask = mask & Mask.causal()
    q, k, v = (t.to(dtype) for t in (q, k, v))
    out = attention(q, k, v, mask=mask, scale=1.0)
    projection = nn.Linear(24, 6)
    layer = AttentionLayer(0, "planted", projection, len(HEADS), groups, T, 3, False, causal, projection)
    nothing = torch.zeros_like(real)
    batch = TokenBatch(torch.zeros_like(real, dtype=torch.int64), real, nothing, nothing)
    return AttentionCall(layer, q, k, v, out, mask, 1.0), batch


def table_of(call: AttentionCall, batch: TokenBatch) -> pd.DataFrame:
    collector = StatisticsCollector([call.layer])
    collector.update(call, batch)
    return collector.result().table.set_index(pd.Index(HEADS))


def close(got: object, wanted: float) -> None:
    assert got == pytest.approx(wanted, abs=1e-6)


each_kind = pytest.mark.parametrize(
    ("groups", "dtype"), [(8, torch.float32), (2, torch.float32), (1, torch.float32), (2, torch.bfloat16)]
)
each_padding = pytest.mark.parametrize("padding", ["none", "left", "right"])


@each_kind
@each_padding
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("n", [2, 150])
def test_each_head_scores_its_role_exactly(
    n: int, causal: bool, padding: str, groups: int, dtype: torch.dtype
) -> None:
    table = table_of(*planted(n, causal=causal, padding=padding, groups=groups, dtype=dtype))
    close(table.loc["previous", "previous"], 1.0)
    close(table.loc["previous", "argmax_previous"], 1.0)
    close(table.loc["previous", "self"], 1 / n)  # the first token has none before it
    close(table.loc["previous", "distance"], (n - 1) / n)
    close(table.loc["self", "self"], 1.0)
    close(table.loc["self", "previous"], 0.0)
    close(table.loc["self", "distance"], 0.0)
    for name in ("first", "first_received", "sink", "received_max", "received_concentration"):
        close(table.loc["first", name], 1.0)
    close(table.loc["first", "distance"], (n - 1) / 2)
    for head in ("previous", "self", "first"):
        close(table.loc[head, "entropy"], 0.0)
        close(table.loc[head, "confidence"], 1.0)
        close(table.loc[head, "missing"], 0.0)
    if causal:
        assert table["next"].isna().all()
        assert table["argmax_next"].isna().all()
    else:
        close(table.loc["next", "next"], 1.0)
        close(table.loc["next", "argmax_next"], 1.0)
        close(table.loc["next", "self"], 1 / n)
        close(table.loc["next", "previous"], 0.0)


@each_kind
@each_padding
@pytest.mark.parametrize("causal", [True, False])
def test_uniform_head_scores_what_stands_beside_each_mass(
    causal: bool, padding: str, groups: int, dtype: torch.dtype
) -> None:
    n = 16
    table = table_of(*planted(n, causal=causal, padding=padding, groups=groups, dtype=dtype))
    head = table.loc["uniform"]
    for name in [str(c) for c in table.columns if f"{c}_uniform" in table.columns]:
        if not math.isnan(head[f"{name}_uniform"]):
            close(head[name], head[f"{name}_uniform"])
    close(head["normalised_entropy"], 1.0)
    close(head["argmax_previous"], 0.0)  # a tie is not the one largest weight
    seen = range(1, n + 1) if causal else [n] * n
    close(head["entropy"], sum(map(math.log, seen)) / n)
    close(head["self"], sum(1 / m for m in seen) / n)
    close(head["first"], sum(1 / m for m in seen) / n)
    previous = [1 / m for m in seen][1:]
    close(head["previous"], sum(previous) / (n - 1))


@each_kind
@each_padding
@pytest.mark.parametrize("causal", [True, False])
def test_block_local_head(causal: bool, padding: str, groups: int, dtype: torch.dtype) -> None:
    head = table_of(*planted(16, causal=causal, padding=padding, groups=groups, dtype=dtype)).loc["block"]
    sizes = [1, 2, 3, 4] if causal else [4] * 4
    close(head["entropy"], sum(map(math.log, sizes)) / 4)
    close(head["confidence"], sum(1 / size for size in sizes) / 4)
    close(head["distance"], (0 + 1 / 2 + 1 + 3 / 2) / 4 if causal else 1.25)


@pytest.mark.parametrize("causal", [True, False])
def test_single_token(causal: bool) -> None:
    table = table_of(*planted(1, causal=causal))
    for name in ("self", "first", "band", "confidence", "received_max", "first_received"):
        assert table[name].to_list() == pytest.approx([1.0] * len(HEADS))
    assert table["entropy"].to_list() == pytest.approx([0.0] * len(HEADS))
    assert table["distance"].to_list() == pytest.approx([0.0] * len(HEADS))
    for name in ("previous", "next", "normalised_entropy", "argmax_previous", "content_confidence"):
        assert table[name].isna().all(), name


@each_kind
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("copies", [2, 4])
def test_duplicate_and_induction_heads_score_one_however_many_copies(
    copies: int, causal: bool, groups: int, dtype: torch.dtype
) -> None:
    call, _ = planted(PERIOD * copies, causal=causal, groups=groups, dtype=dtype)
    found = score_repeated(weights_of(call, WeightsOf(heads=list(range(8)))), PERIOD)
    names = list(HEADS)
    close(found.duplicate[names.index("duplicate")].item(), 1.0)
    close(found.induction[names.index("duplicate")].item(), 0.0)
    close(found.induction[names.index("induction")].item(), 1.0)
    close(found.duplicate[names.index("induction")].item(), 0.0)
    close(found.previous[names.index("previous")].item(), 1.0)
    close(found.induction[names.index("previous")].item(), 0.0)


def test_a_sink_is_no_induction_head() -> None:
    """The last query of the first copy stands on the induction diagonal, at key 0, where a sink is."""
    weights = torch.zeros(1, 1, 2 * PERIOD, 2 * PERIOD, dtype=torch.float64)
    weights[..., 0] = 1.0
    found = score_repeated(weights, PERIOD)
    close(found.induction.item(), 0.0)
    close(found.duplicate.item(), 1 / PERIOD)  # the one query whose earlier copy is the first token


def test_mass_is_averaged_over_queries_of_later_copies_only() -> None:
    weights = torch.zeros(1, 1, 2 * PERIOD, 2 * PERIOD, dtype=torch.float64)
    for i in range(PERIOD, 2 * PERIOD):
        weights[..., i, i - PERIOD + 1] = 1.0  # nothing at all in the first copy
    close(score_repeated(weights, PERIOD).induction.item(), 1.0)


def test_own_length_counts_not_that_of_the_padded_batch() -> None:
    alone = table_of(*planted(16, causal=True))
    for padding in ("left", "right"):
        padded = table_of(*planted(16, causal=True, padding=padding))
        columns = [c for c in alone.columns if "norm" not in str(c) and c != "output_share"]
        pd.testing.assert_frame_equal(alone[columns], padded[columns], atol=1e-6)


def test_norms_are_weights_times_lengths_of_what_is_written() -> None:
    call, batch = planted(16, causal=True, groups=2)
    table = table_of(call, batch)
    weight: Tensor = call.layer.o_proj.weight.detach().double()
    v = call.v.double().repeat_interleave(4, 1)[0]
    written = [(v[h] @ weight[:, 3 * h : 3 * h + 3].T).norm(dim=1) for h in range(8)]
    names = list(HEADS)
    first, own = names.index("first"), names.index("self")
    assert table["first_norm"].iloc[first] == pytest.approx(written[first][0].item(), rel=1e-5)
    assert table["output_norm"].iloc[first] == pytest.approx(written[first][0].item(), rel=1e-5)
    assert table["self_norm"].iloc[own] == pytest.approx(written[own].mean().item(), rel=1e-5)
    assert table["norm"].iloc[own] == pytest.approx(written[own].mean().item(), rel=1e-5)
    assert table["output_share"].sum() == pytest.approx(1.0)
