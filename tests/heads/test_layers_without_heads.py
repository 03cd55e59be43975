"""A model of which a layer has lost all its heads: the others keep their numbers."""

from __future__ import annotations

import copy

import pandas as pd
import pytest
import torch
import torch.nn.functional as F

from headwise import heads
from headwise.compress import prune
from headwise.heads import StatisticsCollector, observe
from headwise.heads.documents import NOTHING, make_batch, make_documents
from headwise.hub import attention_layers
from headwise.hub.subject import OwnSubject
from headwise.hub.surgery import layer_handles
from headwise.report import view
from headwise.report.head_tables import change_lines

MIDDLE = [(1, head) for head in range(4)]
KEPT = [(layer, head) for layer in (0, 2) for head in range(4)]


@pytest.fixture
def whole(make_own) -> OwnSubject:
    return make_own()


@pytest.fixture
def pruned(whole: OwnSubject) -> OwnSubject:
    return OwnSubject(prune(copy.deepcopy(whole.gpt), MIDDLE).model, whole.tokenizer, "pruned")


def places(table: pd.DataFrame) -> list[tuple[int, int]]:
    return list(zip(table["layer"], table["head"], strict=True))


def test_a_layer_has_the_number_of_its_block(pruned: OwnSubject) -> None:
    layers = attention_layers(pruned.model)
    assert [(layer.index, layer.name, layer.n_head) for layer in layers] == [
        (index, f"blocks.{index}.attention", count) for index, count in enumerate([4, 0, 4])
    ]
    for handle in layer_handles(pruned.model):  # surgery names the same layers
        assert layers[handle.index].module is handle.module


def test_statistics_are_those_of_the_whole_model_with_the_layer_silent(
    whole: OwnSubject, pruned: OwnSubject, texts: list[str]
) -> None:
    batch = whole.batch([whole.encode(text) for text in texts])
    collector = StatisticsCollector(whole.layers)
    with (
        torch.no_grad(),
        observe(
            whole.model,
            lambda call: collector.update(call, batch),
            gates=torch.tensor([[1.0] * 4, [0.0] * 4, [1.0] * 4]),
        ),
    ):
        whole.run(batch)
    wanted = collector.result().table
    found = heads.statistics(pruned, texts, maps=[(2, 3)], curves=[(2, 3)], repeated=True)
    assert places(found.table) == KEPT
    wanted = wanted[wanted["layer"] != 1].reset_index(drop=True)
    pd.testing.assert_frame_equal(found.table[wanted.columns], wanted, atol=1e-5, rtol=1e-4)
    assert len(found.maps[2, 3]) == len(found.received[2, 3]) == len(texts)
    assert found.table["induction"].notna().all()
    with pytest.raises(ValueError, match="head 0 of layer 1, which has no heads left"):
        heads.statistics(pruned, texts, maps=[(1, 0)])


def test_ablation_and_importance_name_the_heads_that_are_there(pruned: OwnSubject, texts: list[str]) -> None:
    found = heads.ablate(pruned, texts, retrieval=None)
    assert places(found.table) == KEPT
    documents = make_documents(pruned, texts)
    batch = make_batch(pruned, documents, list(range(len(texts))))
    there = batch.targets != NOTHING

    def loss(gates: dict[int, torch.Tensor]) -> float:
        with torch.no_grad(), observe(pruned.model, gates=gates):
            logits = pruned.run(batch.tokens)
        return float(F.cross_entropy(logits[there], batch.targets[there]))

    silent = torch.tensor([1.0, 1.0, 0.0, 1.0])
    for layer in (0, 2):
        row = found.table.set_index(["layer", "head"]).loc[layer, 2]
        assert row["delta"] == pytest.approx(loss({layer: silent}) - loss({}), abs=1e-5)
    assert places(heads.importance(pruned, texts)) == KEPT
    assert set(places(heads.greedy(pruned, texts, budget=2))) <= set(KEPT)
    assert list(heads.similarity(pruned, texts).index) == KEPT
    assert heads.similarity(pruned, texts, across_layers=True).notna().all(axis=None)
    for how in ("mean", "resample"):
        assert places(heads.ablate(pruned, texts, how=how).table) == KEPT
    with pytest.raises(ValueError, match="head 0 of layer 1, which has no heads left"):
        heads.ablate(pruned, texts, heads=[(1, 0)])


def test_the_whole_model_is_compared_with_it(whole: OwnSubject, pruned: OwnSubject, texts: list[str]) -> None:
    table = heads.compare(whole, pruned, texts).set_index(["layer", "head"])
    assert len(table) == 12
    assert table.loc[0, "map_distance"].max() < 1e-3
    assert table.loc[1].drop(columns=[c for c in table if c.startswith("change_")]).isna().all(axis=None)
    assert table.loc[2, "map_match"].notna().all()
    told = change_lines(table.reset_index(), most=12)
    assert sum("no head left" in line for line in told) == 4
    back = heads.compare(pruned, whole, texts)
    assert places(back) == KEPT


def test_a_page_shows_the_layers_by_their_numbers(pruned: OwnSubject, texts: list[str]) -> None:
    page = view(pruned, texts[0])
    assert {layer for layer, _ in places(page.data.table)} == {0, 2}


def test_a_model_without_any_heads_is_refused(whole: OwnSubject) -> None:
    bare = prune(whole.gpt, [(layer, head) for layer in range(3) for head in range(4)]).model
    with pytest.raises(ValueError, match="all layers of GPT have lost their heads"):
        attention_layers(bare)
