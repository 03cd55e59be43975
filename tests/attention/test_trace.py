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
    mha = MultiHeadAttention(
        30, 6, n_kv_head=3, rotary=Rotary(10), qk_norm=True, d_head=10, d_value=4, d_out=11
    )
    sizes = {"B": 2, "T": 7, "D": 30, "H": 6, "G": 3, "K": 10, "V": 4, "O": 11}
    records = trace_shapes(mha, torch.zeros(2, 7, 30))
    assert records[-1].letters == "B T O"
    for record in records:
        assert record.shape == tuple(
            torch.tensor([sizes[letter] for letter in part.split("·")]).prod().item()
            for part in record.letters.split(" ")
        )


def test_norms_and_turns_are_steps_where_the_module_has_them() -> None:
    def steps(**options: object) -> list[str]:
        records = trace_shapes(MultiHeadAttention(8, 2, **options), torch.zeros(1, 3, 8))  # type: ignore[arg-type]
        return list(dict.fromkeys(record.step for record in records))

    assert steps()[:3] == ["project", "split", "scores"]
    assert steps(qk_norm=True)[1:4] == ["split", "norm", "scores"]
    assert steps(rotary=Rotary(4))[1:4] == ["split", "rotate", "scores"]
    both = MultiHeadAttention(8, 4, n_kv_head=2, rotary=Rotary(2), qk_norm=True)
    assert trace_shapes(both, torch.zeros(1, 3, 8))[6:10] == [
        ("norm", "q", "B H T K", (1, 4, 3, 2)),
        ("norm", "k", "B G T K", (1, 2, 3, 2)),
        ("rotate", "q", "B H T K", (1, 4, 3, 2)),
        ("rotate", "k", "B G T K", (1, 2, 3, 2)),
    ]


def test_tracing_leaves_the_module_as_it_was() -> None:
    mha, x = MultiHeadAttention(8, 2), torch.randn(1, 3, 8)
    before = mha(x)
    assert trace_shapes(mha, x) == trace_shapes(mha, x.to("meta"))
    assert torch.equal(mha(x), before)
    assert {p.device.type for p in mha.parameters()} == {"cpu"}


def test_inputs_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"x must be \(batch, length, 8\)"):
        trace_shapes(MultiHeadAttention(8, 2), torch.zeros(3, 8))
