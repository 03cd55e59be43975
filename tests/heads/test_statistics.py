"""Statistics over texts: collecting, merging, writing, refusing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pandas as pd
import pytest
import torch
from torch import Tensor

from headwise import heads
from headwise.attention import Mask
from headwise.heads import AttentionCall, HeadStatistics, StatisticsCollector, induction_scores, observe
from headwise.heads.repeated import REPEATED_COLUMNS, repeated_tokens
from headwise.hub import Subject, TokenBatch, attention_layers
from headwise.model import GPT, GPTConfig

SPECIAL, COMMA = 0, 1


class Letters(Subject):
    """A small model of letters; the id 0 is special and the comma is 1."""

    name = "letters"
    predicts = "next token"
    pad_id = SPECIAL
    special_ids = frozenset({SPECIAL})
    punctuation_ids = frozenset({COMMA})
    vocab_size = 40

    def __init__(self, length: int = 120) -> None:
        torch.manual_seed(0)
        self.model = GPT(
            GPTConfig(
                vocab_size=40,
                block_size=length,
                n_layer=2,
                n_head=4,
                n_kv_head=2,
                d_model=32,
                position="rotary",
            )
        ).eval()
        for parameter in self.model.parameters():
            parameter.data.mul_(3.0)  # heads that are far from uniform
        self.max_tokens = length

    def encode(self, text: str) -> list[int]:
        return [{"<": SPECIAL, ",": COMMA}.get(letter, 2 + ord(letter) % 38) for letter in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join("<,"[i] if i < 2 else chr(97 + i) for i in ids)

    def labels(self, ids: Sequence[int]) -> list[str]:
        return list(self.decode(ids))

    def token_bytes(self, index: int) -> bytes:
        return self.decode([index]).encode()

    def token_text(self, index: int) -> str:
        return self.decode([index])

    def forward(self, batch: TokenBatch) -> Tensor:
        logits: Tensor = self.model(batch.ids)
        return logits


TEXTS = ["<once, upon a time", "a", "<to be, or not to be, that is the question" * 2, "no comma"]


@pytest.fixture(scope="module")
def subject() -> Letters:
    return Letters()


def same(a: HeadStatistics, b: HeadStatistics) -> None:
    pd.testing.assert_frame_equal(a.table, b.table, atol=1e-6, rtol=1e-5)
    pd.testing.assert_frame_equal(a.counts, b.counts)


def test_one_row_per_layer_and_head_with_uniform_beside(subject: Letters) -> None:
    result = heads.statistics(subject, TEXTS)
    assert list(zip(result.table["layer"], result.table["head"], strict=True)) == [
        (layer, head) for layer in range(2) for head in range(4)
    ]
    described = result.describe().set_index("column")
    assert set(described.index) == set(result.table.columns) - {"layer", "head"}
    assert (described["averaged_over"].str.len() > 0).all()
    tokens = sum(map(len, TEXTS))
    assert (result.counts["entropy"] == tokens).all()
    assert (result.counts["previous"] == tokens - len(TEXTS)).all()  # the first token has none before it
    assert (result.counts["sink"] == len(TEXTS)).all()
    assert (result.counts["next"] == 0).all()


def test_texts_side_by_side_count_as_they_do_alone(subject: Letters) -> None:
    together = heads.statistics(subject, TEXTS)
    same(together, heads.statistics(subject, TEXTS, batch_tokens=1))
    parts = [heads.statistics(subject, [text]) for text in TEXTS]
    merged = parts[0]
    for part in parts[1:]:
        merged = HeadStatistics.merge(merged, part)
    same(together, merged)


def test_states_of_processes_add_up(subject: Letters) -> None:
    def collected(texts: list[str]) -> StatisticsCollector:
        collector = StatisticsCollector(subject.layers)
        batch = subject.batch([subject.encode(text) for text in texts])
        with torch.no_grad(), observe(subject.model, lambda call: collector.update(call, batch)):
            subject.run(batch)
        return collector

    a, b, nothing = collected(TEXTS[:2]), collected(TEXTS[2:]), StatisticsCollector(subject.layers)
    assert {name: t.shape for name, t in nothing.state().items()} == {
        name: t.shape for name, t in a.state().items()
    }  # a process without texts takes part in the sum
    a.add_state(b.state())
    a.add_state(nothing.state())
    same(a.result(), heads.statistics(subject, TEXTS))
    with pytest.raises(ValueError, match="state is of"):
        a.add_state(StatisticsCollector(subject.layers, received=False).state())


def test_maps_are_those_of_the_chosen_heads_without_padding(subject: Letters) -> None:
    result = heads.statistics(subject, TEXTS, maps=[(1, 2), (0, 3)], curves=[(1, 2)])
    assert set(result.maps) == {(1, 2), (0, 3)}
    for (layer, head), maps in result.maps.items():
        for text, found in zip(TEXTS, maps, strict=True):
            ids = torch.tensor([subject.encode(text)])
            _, weights = subject.model(ids, return_weights=True)
            torch.testing.assert_close(found.weights, weights[layer][0, head].detach(), atol=1e-5, rtol=1e-4)
            assert found.labels == tuple(subject.labels(ids[0].tolist()))
    for found, curve in zip(result.maps[1, 2], result.received[1, 2], strict=True):
        torch.testing.assert_close(curve.float(), found.weights.mean(0), atol=1e-6, rtol=1e-4)


def test_statistics_follow_from_the_maps(subject: Letters) -> None:
    text = TEXTS[2]
    result = heads.statistics(subject, [text], maps=[(1, 0)])
    A, row = result.maps[1, 0][0].weights.double(), result.table.set_index(["layer", "head"]).loc[1, 0]
    ids = torch.tensor(subject.encode(text))
    assert row["previous"] == pytest.approx(A.diagonal(-1).mean().item(), rel=1e-5)
    assert row["first"] == pytest.approx(A[:, 0].mean().item(), rel=1e-5)
    sees = torch.arange(len(ids)) >= ids.tolist().index(COMMA)
    assert row["punctuation"] == pytest.approx(A[sees][:, ids == COMMA].sum(1).mean().item(), rel=1e-5)
    assert row["special"] == pytest.approx(A[:, ids == SPECIAL].sum(1).mean().item(), rel=1e-5)


def test_numbers_of_every_nth_query_say_how_many_they_are_of(subject: Letters) -> None:
    text = TEXTS[2]
    found = heads.statistics(subject, [text, text], every=8, repeated=True, batch_tokens=1)
    whole = heads.statistics(subject, [text])
    queries = int(found.counts["entropy"][0])
    assert abs(queries / 2 - len(text) / 8) < 1
    assert found.every == 8
    assert list(found.table.columns)[:20] == list(whole.table.columns)[:20]
    assert found.table["induction"].notna().all()
    with pytest.raises(ValueError, match="different columns or samples"):
        HeadStatistics.merge(found, whole)


@pytest.mark.parametrize(
    ("every", "error", "says"),
    [(0, ValueError, "at least 1"), (2.5, TypeError, "whole number, got 2.5"), (True, TypeError, "got True")],
)
def test_every_is_a_whole_number_from_1(
    subject: Letters, every: int, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        heads.statistics(subject, TEXTS, every=every)


def test_progress_counts_texts(subject: Letters) -> None:
    told: list[tuple[int, int]] = []
    heads.statistics(subject, TEXTS, batch_tokens=1, progress=lambda *n: told.append(n))
    assert told == [(n, len(TEXTS)) for n in range(1, len(TEXTS) + 1)]


def test_a_nan_in_padding_reaches_nothing(subject: Letters) -> None:
    """Keys that nobody sees and queries that do not count may hold anything."""
    calls: list[AttentionCall] = []
    batch = subject.batch([subject.encode(text) for text in TEXTS])
    with torch.no_grad(), observe(subject.model, calls.append):
        subject.run(batch)
    padding = ~batch.real[:, None, :, None]
    for call in calls:
        seen = Mask.causal() & Mask.keep(batch.real[:, None, None, :])
        clean = replace(call, mask=seen)
        dirty = replace(
            clean,
            **{name: getattr(call, name).masked_fill(padding, torch.nan) for name in ("q", "k", "v", "out")},
        )
        results = []
        for each in (clean, dirty):
            collector = StatisticsCollector([call.layer])
            collector.update(each, batch)
            results.append(collector.result())
        same(*results)


def test_calls_and_tokens_that_disagree_are_refused(subject: Letters) -> None:
    collector = StatisticsCollector(subject.layers)
    batch, other = subject.batch([[3, 4, 5]]), subject.batch([[3, 4]])
    with (
        pytest.raises(ValueError, match=r"tokens of shape \(1, 2\).*1 texts of 3 queries"),
        observe(subject.model, lambda call: collector.update(call, other)),
    ):
        subject.run(batch)
    stranger = StatisticsCollector(subject.layers[:1])
    with (
        pytest.raises(ValueError, match="layer 1 .* is not among"),
        observe(subject.model, lambda call: stranger.update(call, batch)),
    ):
        subject.run(batch)


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        ([], {}, "there are no texts"),
        (["abc", ""], {}, "text 1 is empty"),
        (["a" * 121], {}, "text 0 has 121 tokens, but letters reads at most 120"),
        (["abc"], {"maps": [(2, 0)]}, "layer 2, but the model has layers 0 … 1"),
        (["abc"], {"maps": [(1, 4)]}, "head 4 of layer 1, which has heads 0 … 3"),
        (["abc"], {"curves": [(0, -1)]}, "head -1"),
        (["abc"], {"batch_tokens": 0}, "batch_tokens must be at least 1, got 0"),
        (["abc"], {"curves": [(0, 1)], "received": False}, "received=True"),
        (
            ["abcdef"],
            {"maps": [(0, 1)], "map_tokens": 5},
            "text 0 has 6 tokens, but maps are kept of at most 5",
        ),
    ],
)
def test_bad_input_is_named(
    subject: Letters, texts: list[str], options: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        heads.statistics(subject, texts, **options)  # type: ignore[arg-type]


def test_one_text_instead_of_a_list_is_refused(subject: Letters) -> None:
    with pytest.raises(TypeError, match=r"give \[text\]"):
        heads.statistics(subject, "abc")


def test_statistics_of_other_models_do_not_merge(subject: Letters) -> None:
    a = heads.statistics(subject, ["abc"])
    with pytest.raises(ValueError, match="different columns or samples"):
        HeadStatistics.merge(a, heads.statistics(subject, ["abc"], received=False))
    smaller = StatisticsCollector(subject.layers[:1]).result()
    with pytest.raises(ValueError, match="different layers"):
        HeadStatistics.merge(a, smaller)


def test_repeated_scores_are_those_of_the_weights(subject: Letters) -> None:
    table = induction_scores(subject, period=12, sequences=3, seed=5)
    names = {column.name: column.uniform is not None for column in REPEATED_COLUMNS}
    assert set(table.columns) == {"layer", "head", *names} | {
        f"{n}_uniform" for n, has in names.items() if has
    }
    ids = repeated_tokens(subject, 12, 2, 3, seed=5)
    _, weights = subject.model(ids, return_weights=True)
    for _, row in table.iterrows():
        A = weights[int(row["layer"])][:, int(row["head"])].detach()
        later = range(12, 24)
        assert row["induction"] == pytest.approx(A[:, later, [i - 11 for i in later]].mean().item(), rel=1e-4)
        assert row["duplicate"] == pytest.approx(A[:, later, [i - 12 for i in later]].mean().item(), rel=1e-4)


def test_what_equal_weights_score_on_repeated_tokens_stands_beside(subject: Letters) -> None:
    table = induction_scores(subject, period=8, sequences=2)
    one_copy = sum(1 / (i + 1) for i in range(8, 16)) / 8  # one of i + 1 keys
    for name in ("duplicate", "induction"):
        assert table[f"{name}_uniform"].tolist() == pytest.approx([one_copy] * 8, rel=1e-6)
    before = sum(1 / (i + 1) for i in range(1, 16)) / 15
    assert table["repeated_previous_uniform"].tolist() == pytest.approx([before] * 8, rel=1e-6)
    copies = sum((i // 25) / (i + 1) for i in range(25, 100)) / 75
    assert table["prefix_matching_uniform"].tolist() == pytest.approx([copies] * 8, rel=1e-6)


def test_a_short_repeat_makes_no_induction_head_of_equal_weights() -> None:
    table = induction_scores(Letters(length=10), sequences=2)  # periods of 5
    equal = table.assign(induction=table["induction_uniform"], duplicate=table["duplicate_uniform"])
    assert heads.roles(equal)["strength"].tolist() == pytest.approx([0.0] * len(equal))


def test_random_tokens_are_seeded_different_and_never_special(subject: Letters) -> None:
    make = partial(repeated_tokens, subject, 39, 2, 20)
    ids = make(seed=1)
    assert torch.equal(ids, make(seed=1))
    assert not torch.equal(ids, make(seed=2))
    assert not (ids == SPECIAL).any()
    assert torch.equal(ids[:, :39], ids[:, 39:])
    assert all(len(set(row[:39].tolist())) == 39 for row in ids)


def test_scores_fit_short_models_and_small_vocabularies() -> None:
    short = Letters(length=10)
    table = induction_scores(short, sequences=2)
    assert table["induction"].notna().all()  # periods of 5
    assert table["prefix_matching"].isna().all()  # four copies of 3 do not fit
    with pytest.raises(ValueError, match="reads at most 10"):
        induction_scores(short, period=6)
    with pytest.raises(ValueError, match="3 tokens or more"):
        induction_scores(short, period=2)
    with pytest.raises(ValueError, match="vocabulary has 39"):
        induction_scores(Letters(), period=40)


def test_layers_are_found_in_the_order_in_which_they_run(subject: Letters) -> None:
    assert [layer.index for layer in attention_layers(subject.model)] == [0, 1]
