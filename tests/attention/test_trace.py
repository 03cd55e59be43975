"""The shape trace: the steps in order, their shapes as they really come out."""

from __future__ import annotations

import pytest
import torch

from headwise.attention import MultiHeadAttention, Rotary, ShapeRecord, trace_shapes


def test_the_only_shape_with_the_length_twice_is_the_score_tensor() -> None:
    with torch.device("meta"):
        records = trace_shapes(MultiHeadAttention(512, 8), torch.zeros(32, 128, 512))
    assert {r.shape for r in records if r.shape.count(128) == 2} == {(32, 8, 128, 128)}
    assert [r.step for r in records if r.shape.count(128) == 2] == ["scores", "weights"]
    assert list(dict.fromkeys(r.step for r in records)) == [
        "project",
        "split",
        "scores",
        "weights",
        "weigh",
        "join",
        "mix",
    ]


def test_cross_attention_with_free_widths() -> None:
    mha = MultiHeadAttention(20, 6, n_kv_head=2, d_head=5, d_value=3, d_context=7)
    records = trace_shapes(mha, torch.zeros(2, 4, 20), torch.zeros(2, 9, 7))
    assert records == [
        ("project", "q", "B T H·K", (2, 4, 30)),
        ("project", "k", "B S G·K", (2, 9, 10)),
        ("project", "v", "B S G·V", (2, 9, 6)),
        ("split", "q", "B H T K", (2, 6, 4, 5)),
        ("split", "k", "B G S K", (2, 2, 9, 5)),
        ("split", "v", "B G S V", (2, 2, 9, 3)),
        ("scores", "scores", "B H T S", (2, 6, 4, 9)),
        ("weights", "weights", "B H T S", (2, 6, 4, 9)),
        ("weigh", "heads", "B H T V", (2, 6, 4, 3)),
        ("join", "joined", "B T H·V", (2, 4, 18)),
        ("mix", "output", "B T D", (2, 4, 20)),
    ]
    assert all(isinstance(record, ShapeRecord) for record in records)


def test_letters_name_the_sizes_of_every_record() -> None:
    mha = MultiHeadAttention(30, 6, n_kv_head=3, rotary=Rotary(10), d_head=10, d_value=4)
    sizes = {"B": 2, "T": 7, "D": 30, "H": 6, "G": 3, "K": 10, "V": 4}
    for record in trace_shapes(mha, torch.zeros(2, 7, 30)):
        assert record.shape == tuple(
            torch.tensor([sizes[letter] for letter in part.split("·")]).prod().item()
            for part in record.letters.split(" ")
        )


def test_tracing_leaves_the_module_as_it_was() -> None:
    mha, x = MultiHeadAttention(8, 2), torch.randn(1, 3, 8)
    before = mha(x)
    assert trace_shapes(mha, x) == trace_shapes(mha, x.to("meta"))
    assert torch.equal(mha(x), before)
    assert {p.device.type for p in mha.parameters()} == {"cpu"}


def test_inputs_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"x must be \(batch, length, 8\)"):
        trace_shapes(MultiHeadAttention(8, 2), torch.zeros(3, 8))
