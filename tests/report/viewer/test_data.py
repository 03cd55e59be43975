"""The data of the page against the model that it is of."""

from __future__ import annotations

import base64
import zlib
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import tokenizers
import torch

from headwise.heads import statistics
from headwise.hub import Subject
from headwise.report.viewer import view_data, weights_data
from headwise.report.viewer.map_statistics import map_statistics
from headwise.report.viewer.pack import packed

TEXT = "abc abc\n가"


def unpacked(text: str, kind: type = np.uint8) -> np.ndarray:
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype=kind)


def test_maps_norms_and_numbers_are_those_of_the_model(subject: Subject) -> None:
    data = view_data(subject, TEXT)
    ids = subject.encode(TEXT)
    with torch.no_grad():
        _, weights = subject.model(torch.tensor([ids]), return_weights=True)
    lower = np.tri(len(ids), dtype=bool)
    for layer, maps in zip(weights, data.panes[0].layers, strict=True):
        for head, cells in zip(layer[0].numpy(), maps, strict=True):
            np.testing.assert_allclose(((cells - 1.0) / 254) ** 2, head[lower], atol=0.004)
    table = statistics(subject, [ids], repeated=True).table
    pd.testing.assert_frame_equal(data.table, table, check_dtype=False)
    assert data.norms is not None
    np.testing.assert_allclose(
        [
            (weights[layer][0, head].numpy() * data.norms[n]).sum(-1).mean()
            for n, (layer, head) in enumerate(data.heads)
        ],
        table["norm"],
        rtol=1e-4,
    )
    np.testing.assert_allclose([curve.mean() for curve in data.curves], table["entropy"], rtol=1e-5)
    assert data.layers[1].groups == (0, 0, 1, 1)


def test_the_packed_numbers_are_the_tables(subject: Subject) -> None:
    ablation = pd.DataFrame(
        [(layer, head, 0.1 * head, -1.0, 1.0) for layer in (1, 0) for head in (3, 2, 1, 0)],
        columns=["layer", "head", "delta", "low", "high"],
    )
    data = view_data(subject, TEXT, ablation=ablation)
    island = packed(data)
    numbers = unpacked(island["numbers"], np.float32).reshape(len(island["columns"]), 8)
    np.testing.assert_array_equal(
        numbers[island["columns"].index("entropy")], np.float32(data.table["entropy"])
    )
    np.testing.assert_allclose(numbers[island["columns"].index("delta")], [0, 0.1, 0.2, 0.3] * 2, atol=1e-6)
    assert "strength" in island["columns"]
    some = packed(view_data(subject, TEXT, ablation=ablation[1:]))
    delta = unpacked(some["numbers"], np.float32).reshape(-1, 8)[some["columns"].index("delta")]
    assert np.isnan(delta).tolist() == [False] * 7 + [True]
    lacking = replace(data, table=data.table[1:])
    with pytest.raises(ValueError, match="statistics has no row for layer 0, head 0"):
        packed(lacking)
    with pytest.raises(ValueError, match="more than one row"):
        packed(replace(data, ablation=pd.concat([ablation, ablation])))


def test_a_long_text_keeps_its_windows_and_their_norms(subject: Subject) -> None:
    data = view_data(subject, "abc " * 40, most_cells=20_000)
    assert len(data.queries) > 40
    assert data.panes[-1].block > 1
    island = packed(data)
    assert island["panes"][-1]["norms"] is None
    first = island["panes"][0]
    assert unpacked(first["norms"], np.float32).size == 8 * (first["columns"][1] - first["columns"][0])


def test_heads_that_were_removed_keep_their_numbers(subject: Subject) -> None:
    data = view_data(subject, TEXT, heads={1: [0, 2, 5, 7]})
    assert data.heads[4:] == [(1, 0), (1, 2), (1, 5), (1, 7)]
    assert data.table["head"].tolist() == [0, 1, 2, 3, 0, 2, 5, 7]
    with pytest.raises(ValueError, match="must name 4 different heads of layer 1"):
        view_data(subject, TEXT, heads={1: [0, 1]})


def test_texts_without_tokens_or_with_too_many_are_refused(subject: Subject) -> None:
    with pytest.raises(ValueError, match="holds no tokens"):
        view_data(subject, "")
    with pytest.raises(ValueError, match="reads at most 128"):
        view_data(subject, "x" * 129)


def test_map_statistics_of_planted_heads() -> None:
    rows = np.arange(10)
    seen = np.tri(10, dtype=bool)
    previous = np.zeros((10, 10), dtype=np.float32)
    previous[rows, np.maximum(rows - 1, 0)] = 1
    found = map_statistics(previous, seen, cross=False)
    assert found["previous"] == 1
    assert found["self"] == pytest.approx(0.1)
    assert found["entropy"] == 0
    assert np.isnan(found["next"])
    even = (seen / seen.sum(1, keepdims=True)).astype(np.float32)
    found = map_statistics(even, seen, cross=False)
    for name in ("previous", "self", "first", "entropy", "confidence"):
        assert found[name] == pytest.approx(found[f"{name}_uniform"], rel=1e-6)
    assert found["normalised_entropy"] == pytest.approx(1)


def test_weights_of_any_origin(subject: Subject) -> None:
    weights = np.random.default_rng(0).dirichlet(np.ones(5), size=(2, 3, 4))
    data = weights_data(weights, list("abcd"), key_labels=list("ABCDE"))
    assert data.keys is not None
    assert not data.causal
    assert data.table["head"].tolist() == [0, 1, 2, 0, 1, 2]
    with pytest.raises(ValueError, match="add up to at most 1"):
        weights_data(weights * 3, list("abcd"), key_labels=list("ABCDE"))
    with pytest.raises(ValueError, match="one text per token"):
        weights_data(weights, list("abc"), key_labels=list("ABCDE"))


def test_models_of_other_tokens_or_pieces_are_not_put_side_by_side(subject: Subject) -> None:
    first = view_data(subject, "abc")
    with pytest.raises(ValueError, match="cut the text into different tokens"):
        packed(first, view_data(subject, "abd"))
    long = "abc " * 40
    with pytest.raises(ValueError, match="show different pieces"):
        packed(view_data(subject, long), view_data(subject, long, most_cells=20_000))
    assert packed(first, first)["other"]["title"] == "tiny"


def test_an_encoder_sees_both_ways_and_its_special_tokens_are_known() -> None:
    hf = pytest.importorskip("transformers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "play", "##s", "."]
    engine = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({word: at for at, word in enumerate(words)}, unk_token="[UNK]")
    )
    engine.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    engine.decoder = tokenizers.decoders.WordPiece()
    engine.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer = hf.PreTrainedTokenizerFast(
        tokenizer_object=engine,
        cls_token="[CLS]",
        sep_token="[SEP]",
        pad_token="[PAD]",
        unk_token="[UNK]",
        mask_token="[MASK]",
    )
    torch.manual_seed(0)
    config = hf.BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
        attn_implementation="eager",
    )
    model = hf.BertForMaskedLM(config).eval()
    data = view_data(Subject.of(model, tokenizer, "encoder"), "the cat plays.")
    assert data.queries.labels == ("[CLS]", "the", "cat", "play", "##s", ".", "[SEP]")
    assert data.queries.word_labels == ("[CLS]", "the", "cat", "plays", ".", "[SEP]")
    assert data.queries.special == (True, *[False] * 5, True)
    assert not data.causal
    assert not data.panes[0].triangle
    with torch.no_grad():
        ids = torch.tensor([tokenizer("the cat plays.")["input_ids"]])
        (weights,) = model(ids, output_attentions=True).attentions
    cells = np.stack(data.panes[0].layers[0]).reshape(2, 7, 7)
    np.testing.assert_allclose(((cells - 1.0) / 254) ** 2, weights[0].numpy(), atol=0.004)
