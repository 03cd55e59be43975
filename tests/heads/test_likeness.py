"""How alike heads are, against formulas on whole outputs and maps, and on heads that were made alike."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

from headwise.attention import Mask, attention
from headwise.heads import AttentionCall, compare, observe, similarity
from headwise.heads.map_distance import map_distances
from headwise.hub.subject import OwnSubject
from headwise.report.head_tables import change_lines

Make = Callable[..., OwnSubject]


def dense(subject: OwnSubject, texts: list[str]) -> tuple[Tensor, list[Tensor]]:
    """Return what heads add to the stream, (L, H, N, D), and the maps (L, H, T, T) of each text."""
    outputs, maps = [], []
    for text in texts:
        ids = torch.tensor([subject.encode(text)])
        calls: list[AttentionCall] = []
        with torch.no_grad(), observe(subject.model, calls.append):
            subject.gpt(ids)
        added = []
        for call in calls:
            weight = call.layer.output_weight
            assert weight is not None
            parts = weight.split(call.out.shape[3], dim=1)
            added.append(torch.stack([z @ w.T for z, w in zip(call.out[0], parts, strict=True)]))
        outputs.append(torch.stack(added).detach())
        with torch.no_grad():
            maps.append(torch.stack(subject.gpt(ids, return_weights=True)[1])[:, 0])
    return torch.cat(outputs, dim=2).double(), [each.double() for each in maps]


def block(table: pd.DataFrame, row: int, column: int) -> Tensor:
    """Return what a matrix of similarities says of two layers, (H, H)."""
    chosen = table.xs(row, level="layer").xs(column, level="layer", axis=1)
    return torch.tensor(chosen.to_numpy())


def cka(x: Tensor, y: Tensor) -> float:
    x, y = x - x.mean(0), y - y.mean(0)
    return float((x.T @ y).norm() ** 2 / ((x.T @ x).norm() * (y.T @ y).norm()))


def correlation(x: Tensor, y: Tensor) -> float:
    x, y = x - x.mean(0), y - y.mean(0)
    return float((x * y).sum() / (x.norm() * y.norm()))


def jensen_shannon(p: Tensor, q: Tensor) -> Tensor:
    """Return the distance of each row."""

    def entropy(w: Tensor) -> Tensor:
        return -(w * w.clamp(min=1e-300).log()).sum(-1)

    divergence = entropy((p + q) / 2) - (entropy(p) + entropy(q)) / 2
    return (divergence / math.log(2)).clamp(0, 1).sqrt()


@pytest.mark.parametrize("changes", [{}, {"n_kv_head": 2, "d_head": 6}], ids=str)
@pytest.mark.parametrize("tokens", [50, 10_000])
def test_streamed_equals_dense(
    make_own: Make, texts: list[str], changes: dict[str, Any], tokens: int
) -> None:
    subject = make_own(**changes)
    outputs, maps = dense(subject, texts)
    heads = [(layer, head) for layer in range(3) for head in range(4)]
    tables = {
        by: similarity(subject, texts, by=by, across_layers=True, tokens=tokens)
        for by in ("outputs", "correlation", "maps")
    }
    queries = sum(len(each[0, 0]) - 1 for each in maps)
    for i, a in enumerate(heads):
        for j, b in enumerate(heads):
            x, y = outputs[a], outputs[b]
            distance = sum(float(jensen_shannon(each[a], each[b])[1:].sum()) for each in maps) / queries
            assert tables["outputs"].iloc[i, j] == pytest.approx(cka(x, y), abs=1e-6)
            assert tables["correlation"].iloc[i, j] == pytest.approx(correlation(x, y), abs=1e-6)
            assert tables["maps"].iloc[i, j] == pytest.approx(1 - distance, abs=1e-4 if i != j else 1e-6)
    assert list(tables["maps"].index) == heads == list(tables["maps"].columns)


def test_other_layers_are_left_out_by_default(make_own: Make, texts: list[str]) -> None:
    subject = make_own()
    for by in ("outputs", "maps"):
        within, everywhere = (similarity(subject, texts, by=by, across_layers=x) for x in (False, True))
        for layer in range(3):
            assert torch.allclose(block(within, layer, layer), block(everywhere, layer, layer))
            assert block(within, layer, (layer + 1) % 3).isnan().all()
            assert not block(everywhere, layer, (layer + 1) % 3).isnan().any()


def test_twin_heads_are_alike(make_own: Make, texts: list[str]) -> None:
    """Head 2 looks where head 0 looks and tells the same, negated; head 3 tells something else."""
    subject = make_own(n_layer=1)
    attention_module = subject.layers[0].module
    with torch.no_grad():
        for part in ("q_proj", "k_proj"):
            weight = getattr(attention_module, part).weight.view(4, 8, 32)
            weight[2], weight[3] = weight[0], weight[0]
        values = attention_module.v_proj.weight.view(4, 8, 32)
        values[2] = values[0]
        out = attention_module.o_proj.weight.view(32, 4, 8)
        out[:, 2] = -2 * out[:, 0]
    maps, outputs, signed = (
        similarity(subject, texts, by=by).to_numpy() for by in ("maps", "outputs", "correlation")
    )
    assert maps[0, 2] == pytest.approx(1.0, abs=1e-3)
    assert maps[0, 3] == pytest.approx(1.0, abs=1e-3)
    assert maps[0, 1] < 0.9
    assert outputs[0, 2] == pytest.approx(1.0, abs=1e-6)
    assert signed[0, 2] == pytest.approx(-1.0, abs=1e-6)
    assert outputs[0, 3] < 0.9
    assert outputs[0, 1] < 0.9


def test_heads_without_a_projection_stand_side_by_side(make_own: Make, texts: list[str]) -> None:
    """They write into different places, so nothing correlates."""
    subject = make_own(output_projection="identity")
    table = block(similarity(subject, texts, by="correlation"), 1, 1)
    assert torch.allclose(table, torch.eye(4, dtype=torch.float64), atol=1e-9)


@pytest.mark.parametrize("strip", [1, 100, 10**6])
def test_strips_and_sinks(make_own: Make, strip: int) -> None:
    torch.manual_seed(0)
    layer = make_own().layers[0]
    q, k, v = torch.randn(2, 4, 9, 8), torch.randn(2, 2, 9, 8), torch.randn(2, 2, 9, 8)
    sink, mask = torch.randn(4), Mask.causal() & Mask.lengths(torch.tensor([9, 5]))
    real = torch.arange(9) < torch.tensor([[9], [5]])
    with_sink = AttentionCall(layer, q, k, v, q, mask, 0.4, None, 5.0, sink)
    without = AttentionCall(layer, q, k, v, q, mask, 0.4, None, 5.0, None)
    tables = []
    for given in (sink, None):
        weights = attention(q, k, v, mask=mask, scale=0.4, softcap=5.0, sink=given, return_weights=True)[1]
        tables.append(torch.cat([weights, 1 - weights.sum(3, keepdim=True)], dim=3).double().clamp(min=0))
    for a, b, one, two in (
        (with_sink, with_sink, tables[0], tables[0]),
        (with_sink, without, tables[0], tables[1]),
    ):
        got = map_distances(a, b, real, strip=strip)
        for i in range(4):
            for j in range(4):
                expected = jensen_shannon(one[:, i], two[:, j])[real].sum()
                assert float(got[i, j]) == pytest.approx(float(expected), abs=5e-3)


def test_a_model_equals_itself(make_own: Make, texts: list[str]) -> None:
    subject = make_own()
    table = compare(subject, make_own(), texts)
    assert table["map_distance"].abs().max() < 2e-3
    assert table["output_likeness"].tolist() == pytest.approx([1.0] * 12)
    assert table["output_correlation"].tolist() == pytest.approx([1.0] * 12)
    assert table["map_match"].tolist() == table["output_match"].tolist() == [0, 1, 2, 3] * 3


def test_heads_that_changed_places_are_found(make_own: Make, texts: list[str]) -> None:
    a, b = make_own(), make_own()
    order = [2, 0, 3, 1]
    with torch.no_grad():
        for layer in b.layers:
            module = layer.module
            for part in ("q_proj", "k_proj", "v_proj"):
                weight = getattr(module, part).weight
                weight.copy_(weight.view(4, 8, 32)[order].reshape(32, 32))
            weight = module.o_proj.weight
            weight.copy_(weight.view(32, 4, 8)[:, order].reshape(32, 32))
    table = compare(a, b, texts)
    where = [order.index(head) for head in range(4)]
    assert table["map_match"].tolist() == table["output_match"].tolist() == where * 3
    assert table["map_match_distance"].abs().max() < 2e-3
    assert table["output_match_likeness"].min() > 1 - 1e-6
    assert table["map_distance"].min() > 0.01


def test_models_of_different_heads(make_own: Make, texts: list[str]) -> None:
    table = compare(make_own(n_head=4), make_own(n_head=2, d_head=8), texts)
    assert table["map_distance"].isna().tolist() == [False, False, True, True] * 3
    assert table["map_match"].isin([0, 1]).all()
    assert not table["output_match_likeness"].isna().any()


def test_a_head_that_writes_the_same_everywhere_is_like_none(make_own: Make, texts: list[str]) -> None:
    a, b = make_own(), make_own(seed=1)
    with torch.no_grad():
        a.layers[1].module.v_proj.weight[:8] = 0.0  # its bias stays
    table = compare(a, b, texts, statistics=False)
    table = table[(table["layer"] == 1) & (table["head"] == 0)]
    row = table.iloc[0]
    assert row[["output_likeness", "output_match", "output_match_likeness"]].isna().all()
    assert not row[["map_distance", "map_match"]].isna().any()
    assert change_lines(table, most=1)[3].endswith("–")


def test_texts_of_one_token_cannot_be_compared(make_own: Make) -> None:
    subject = make_own()
    for call in (partial(compare, subject, subject), partial(similarity, subject)):
        with pytest.raises(ValueError, match="one token each"):
            call(["a", "d"])


def test_models_that_cannot_be_compared(make_own: Make, texts: list[str]) -> None:
    subject = make_own()
    with pytest.raises(ValueError, match="small has 3 layers and small 2"):
        compare(subject, make_own(n_layer=2), texts)
    other = make_own()
    other.encode = lambda _: [1, 2, 3]  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="read text 0 as different tokens"):
        compare(subject, other, texts)
    with pytest.raises(ValueError, match="by must be one of"):
        similarity(subject, texts, by="names")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no texts"):
        compare(subject, make_own(), [])
