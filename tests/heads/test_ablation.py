"""Ablation against passes run one by one, its intervals, its classes, its resuming, and what it refuses."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from headwise.heads import ablate, observe
from headwise.heads.documents import CLASSES, batches_of, bigrams_seen, make_documents
from headwise.heads.retrieval import retrieval_documents
from headwise.heads.sweep import Sweep
from headwise.hub.subject import OwnSubject
from headwise.student_t import mean_interval

Make = Callable[..., OwnSubject]


def losses(
    subject: OwnSubject, ids: list[int], gates: Tensor, fills: dict[int, Tensor] | None = None
) -> list[float]:
    """Return the loss of each predicted token of one text, alone, without padding."""
    with torch.no_grad(), observe(subject.model, gates=gates, fills=fills):
        logits = subject.gpt(torch.tensor([ids]))[0]
    each: list[float] = F.cross_entropy(logits[:-1], torch.tensor(ids[1:]), reduction="none").tolist()
    return each


def without(layer: int, head: int) -> Tensor:
    gates = torch.ones(3, 4)
    gates[layer, head] = 0.0
    return gates


def heads_out(subject: OwnSubject, ids: list[int]) -> dict[int, Tensor]:
    """Return what the heads give for one text, (H, T, V) by layer."""
    out: dict[int, Tensor] = {}
    with torch.no_grad(), observe(subject.model, lambda call: out.update({call.layer.index: call.out[0]})):
        subject.gpt(torch.tensor([ids]))
    return out


@pytest.mark.parametrize("changes", [{}, {"preset": "gpt2", "n_kv_head": 2}], ids=str)
def test_zero_ablation_is_the_loss_of_passes_with_that_head_shut(
    make_own: Make, texts: list[str], changes: dict[str, Any]
) -> None:
    subject = make_own(**changes)
    ablation = ablate(subject, texts, tokens=100)
    encoded = [subject.encode(text) for text in texts]
    clean = [losses(subject, ids, torch.ones(3, 4)) for ids in encoded]
    tokens = sum(map(len, clean))
    assert ablation.tokens["all"] == tokens == sum(len(ids) - 1 for ids in encoded)
    assert ablation.baseline["all"] == pytest.approx(sum(map(sum, clean)) / tokens, abs=1e-5)
    for row in ablation.table.itertuples():
        shut = [losses(subject, ids, without(row.layer, row.head)) for ids in encoded]
        assert row.delta == pytest.approx((sum(map(sum, shut)) - sum(map(sum, clean))) / tokens, abs=1e-5)
    assert list(zip(ablation.table["layer"], ablation.table["head"], strict=True)) == [
        (layer, head) for layer in range(3) for head in range(4)
    ]
    # the sign is kept: among random heads some hurt
    assert ablation.table["delta"].min() < 0 < ablation.table["delta"].max()


def test_mean_ablation_takes_the_pooled_mean_of_the_reference(make_own: Make, texts: list[str]) -> None:
    subject = make_own()
    reference = [texts[0], texts[2]]
    table = ablate(subject, texts, how="mean", reference=reference, retrieval=None).table
    outs = [heads_out(subject, subject.encode(text)) for text in reference]
    fills = {i: torch.cat([out[i] for out in outs], dim=1).mean(1)[None, :, None] for i in range(3)}
    check_deltas(subject, texts, table, [fills] * len(texts))


def test_the_mean_is_of_the_texts_themselves_by_default(make_own: Make, texts: list[str]) -> None:
    subject = make_own()
    a = ablate(subject, texts, how="mean", retrieval=None).table
    b = ablate(subject, texts, how="mean", reference=texts, retrieval=None).table
    zero = ablate(subject, texts, retrieval=None).table
    pd.testing.assert_frame_equal(a, b)
    assert not torch.allclose(torch.tensor(a["delta"]), torch.tensor(zero["delta"]), atol=1e-4)


def test_resampling_takes_another_text_at_the_same_position(make_own: Make, texts: list[str]) -> None:
    subject = make_own()
    from headwise.heads.silencing import Silencing

    documents = make_documents(subject, texts)
    partners = Silencing.make(subject, [documents], "resample", reference=[], tokens=64, seed=3).partners
    assert sorted(partners) == list(range(len(texts)))
    assert all(partner != i for i, partner in enumerate(partners))
    fills = []
    for text, partner in zip(texts, partners, strict=True):
        length = len(subject.encode(text))
        out = heads_out(subject, subject.encode(texts[partner]))
        fills.append({i: z[:, torch.arange(length) % z.shape[1]][None] for i, z in out.items()})
    table = ablate(subject, texts, how="resample", seed=3, retrieval=None).table
    check_deltas(subject, texts, table, fills)
    other = ablate(subject, texts, how="resample", seed=4, retrieval=None).table
    assert not torch.allclose(torch.tensor(table["delta"]), torch.tensor(other["delta"]), atol=1e-4)


def check_deltas(
    subject: OwnSubject, texts: list[str], table: pd.DataFrame, fills: list[dict[int, Tensor]]
) -> None:
    encoded = [subject.encode(text) for text in texts]
    clean = sum(sum(losses(subject, ids, torch.ones(3, 4))) for ids in encoded)
    tokens = sum(len(ids) - 1 for ids in encoded)
    for row in table.itertuples():
        shut = sum(
            sum(losses(subject, ids, without(row.layer, row.head), fill))
            for ids, fill in zip(encoded, fills, strict=True)
        )
        assert row.delta == pytest.approx((shut - clean) / tokens, abs=1e-5)


def test_the_bias_of_the_projection_stays(make_own: Make, texts: list[str]) -> None:
    """With one head and no values, silencing it changes nothing although the projection has a bias."""
    subject = make_own(preset="gpt2", n_head=1, n_layer=1)
    attention = subject.layers[0].module
    with torch.no_grad():
        attention.v_proj.weight.zero_()
        attention.v_proj.bias.zero_()
        attention.o_proj.bias.fill_(3.0)
    table = ablate(subject, texts).table
    assert table["delta"].tolist() == [0.0]


def test_intervals_are_paired_over_texts(make_own: Make) -> None:
    """With texts of one length the interval is that of the mean of per-text differences."""
    subject = make_own()
    texts = ["the quick fox", "a dog, a fox!", "jumps over it"]
    encoded = [subject.encode(text.replace("it", "a ")) for text in texts]
    table = ablate(subject, encoded, retrieval=None).table
    for row in table.itertuples():
        each = [
            statistics.fmean(losses(subject, ids, without(row.layer, row.head)))
            - statistics.fmean(losses(subject, ids, torch.ones(3, 4)))
            for ids in encoded
        ]
        low, high = mean_interval(each)
        assert (row.low, row.high) == pytest.approx((low, high), abs=1e-4)
        assert row.low <= row.delta <= row.high


def test_one_text_has_no_interval_and_says_so(make_own: Make, texts: list[str]) -> None:
    one = ablate(make_own(), texts[:1])
    assert one.table[["low", "high"]].isna().all(axis=None)
    assert not one.table["delta"].isna().any()
    assert any("no interval" in note for note in one.notes)
    several = ablate(make_own(), texts)
    assert not several.table[["low", "high"]].isna().any(axis=None)
    assert not any("no interval" in note for note in several.notes)


def test_bigrams_that_came_before_are_copies() -> None:
    assert bigrams_seen([1, 2, 1, 2, 3, 2, 1, 2]) == [False, False, False, True, False, False, True, True]
    assert bigrams_seen([5, 5, 5]) == [False, False, True]
    assert bigrams_seen([5]) == [False]


def test_classes_of_tokens_add_up(make_own: Make, texts: list[str]) -> None:
    subject = make_own()
    ablation = ablate(subject, texts, retrieval=None)
    encoded = [subject.encode(text) for text in texts]
    copied = sum(sum(bigrams_seen(ids)[1:]) for ids in encoded)
    marks = sum(sum(character in ".,;!" for character in text[1:]) for text in texts)
    count = ablation.tokens
    assert (count["copied"], count["punctuation"], count["retrieval"]) == (copied, marks, 0)
    assert count["first"] == count["all"] - copied
    assert count["other"] == count["all"] - marks
    table = ablation.table
    for pair in (("first", "copied"), ("punctuation", "other")):
        mixed = sum(table[f"delta_{name}"] * count[name] for name in pair) / count["all"]
        assert torch.allclose(torch.tensor(mixed), torch.tensor(table["delta"]), atol=1e-12)
    assert table["delta_retrieval"].isna().all()
    assert math.isnan(ablation.baseline["retrieval"])


def test_batches_do_not_matter(make_own: Make, texts: list[str]) -> None:
    subject = make_own()
    tables = [ablate(subject, texts, tokens=tokens).table for tokens in (1, 70, 10_000)]
    for table in tables[1:]:
        pd.testing.assert_frame_equal(table, tables[0], atol=1e-5)


def test_batches_hold_each_document_once_within_the_budget(make_own: Make, texts: list[str]) -> None:
    documents = make_documents(make_own(), texts)
    for budget in (1, 60, 100, 1000):
        shares = batches_of(documents, budget)
        assert sorted(number for share in shares for number in share) == list(range(len(texts)))
        for share in shares:
            longest = max(len(documents[number].ids) for number in share)
            assert len(share) == 1 or longest * len(share) <= budget


@pytest.mark.parametrize("task", ["repeat", "pairs"])
def test_retrieval_predicts_only_what_can_be_looked_up(make_own: Make, task: Any) -> None:
    subject = make_own()
    documents = retrieval_documents(subject, task, count=3, length=16)
    again = retrieval_documents(subject, task, count=3, length=16)
    assert documents == again
    assert len({document.ids for document in documents}) == 3
    for document in documents:
        ids = document.ids
        assert len(ids) == 16
        assert len(set(ids[:8])) == 8
        assert document.predicted == (7 if task == "repeat" else 4)
        for i, target in enumerate(document.targets):
            assert document.classes[CLASSES.index("retrieval")][i] == (target >= 0)
            if target < 0:
                continue
            earlier = [ids[j + 1] for j in range(i) if ids[j] == ids[i]]
            assert earlier == [target] == [ids[i + 1]]
    if task == "repeat":
        assert documents[0].ids[:8] == documents[0].ids[8:]
        assert documents[0].targets[7] < 0  # the second r_0 comes after a token that was last


def test_retrieval_is_measured_apart(make_own: Make, texts: list[str]) -> None:
    subject = make_own()
    with_it, without_it = ablate(subject, texts), ablate(subject, texts, retrieval=None)
    assert with_it.table["delta"].tolist() == pytest.approx(without_it.table["delta"].tolist(), abs=1e-6)
    documents = retrieval_documents(subject)
    clean = [losses(subject, list(d.ids), torch.ones(3, 4)) for d in documents]
    half = len(documents[0].ids) // 2
    wanted = sum(sum(each[half:]) for each in clean) / sum(len(each[half:]) for each in clean)
    assert with_it.baseline["retrieval"] == pytest.approx(wanted, abs=1e-5)
    row = with_it.table.iloc[5]
    shut = [losses(subject, list(d.ids), without(1, 1)) for d in documents]
    other = sum(sum(each[half:]) for each in shut) / sum(len(each[half:]) for each in shut)
    assert row["delta_retrieval"] == pytest.approx(other - wanted, abs=1e-5)
    assert row["retrieval_low"] < row["delta_retrieval"] < row["retrieval_high"]


def test_output_measures_the_turn_of_the_output(make_own: Make, texts: list[str]) -> None:
    subject = make_own()
    ablation = ablate(subject, texts[:2], measure="output", heads=[(1, 2)], retrieval=None)
    turns, count = 0.0, 0
    for text in texts[:2]:
        ids = torch.tensor([subject.encode(text)])
        with torch.no_grad():
            clean = subject.gpt(ids)[0]
            with observe(subject.model, gates=without(1, 2)):
                shut = subject.gpt(ids)[0]
        turns += float((1 - F.cosine_similarity(clean, shut, dim=-1)).sum())
        count += ids.shape[1]
    assert ablation.table["delta"].tolist() == pytest.approx([turns / count], abs=1e-6)
    assert ablation.baseline["all"] == pytest.approx(0.0, abs=1e-6)
    assert ablation.tokens["all"] == count


def test_chosen_heads_only(make_own: Make, texts: list[str]) -> None:
    subject = make_own()
    chosen = ablate(subject, texts, heads=[(2, 1), (0, 3)]).table
    everything = ablate(subject, texts).table.set_index(["layer", "head"])
    assert chosen[["layer", "head"]].to_numpy().tolist() == [[0, 3], [2, 1]]
    for row in chosen.itertuples():
        assert row.delta == pytest.approx(everything.loc[(row.layer, row.head), "delta"], abs=1e-6)


def test_progress_counts_up_to_the_whole(make_own: Make, texts: list[str]) -> None:
    told: list[tuple[int, int]] = []
    ablate(make_own(), texts, tokens=64, on_progress=lambda done, total: told.append((done, total)))
    assert told[-1][0] == told[-1][1]
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert len({total for _, total in told}) == 1


def test_a_broken_sweep_goes_on_where_it_was(
    make_own: Make, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = make_own()
    whole = ablate(subject, texts, tokens=64).table

    def stop(done: int, total: int) -> None:
        if done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ablate(subject, texts, tokens=64, folder=tmp_path / "sweep", on_progress=stop)
    computed: list[tuple[str, int]] = []
    before = Sweep._costs_of

    def counting(self: Sweep, numbers: Any, layers: Any, silenced: Any) -> Any:
        computed.extend((str(numbers), layer) for layer in layers)
        return before(self, numbers, layers, silenced)

    monkeypatch.setattr(Sweep, "_costs_of", counting)
    resumed = ablate(subject, texts, tokens=64, folder=tmp_path / "sweep")
    pd.testing.assert_frame_equal(resumed.table, whole, check_exact=True)
    batches = len({numbers for numbers, _ in computed})
    assert 0 < len(computed) < 3 * (batches + 1)
    computed.clear()
    again = ablate(subject, texts, tokens=64, folder=tmp_path / "sweep")
    assert computed == []
    pd.testing.assert_frame_equal(again.table, whole, check_exact=True)


@pytest.mark.parametrize(
    "changes",
    [{"how": "mean"}, {"seed": 1}, {"heads": [(0, 0)]}, {"retrieval": "pairs"}, {"tokens": 65}],
    ids=str,
)
def test_a_sweep_with_other_settings_is_not_continued(
    make_own: Make, texts: list[str], tmp_path: Path, changes: dict[str, Any]
) -> None:
    subject = make_own()
    ablate(subject, texts, tokens=64, folder=tmp_path)
    with pytest.raises(ValueError, match=f"other settings.*{next(iter(changes))}"):
        ablate(subject, texts, **({"tokens": 64, "folder": tmp_path} | changes))


def test_a_sweep_of_another_model_or_texts_is_not_continued(
    make_own: Make, texts: list[str], tmp_path: Path
) -> None:
    ablate(make_own(), texts, folder=tmp_path)
    with pytest.raises(ValueError, match="other settings.*model"):
        ablate(make_own(seed=1), texts, folder=tmp_path)
    with pytest.raises(ValueError, match="other settings.*texts"):
        ablate(make_own(), texts[:-1], folder=tmp_path)


def test_a_model_of_the_same_weights_that_reads_them_otherwise_is_another(
    make_own: Make, texts: list[str], tmp_path: Path
) -> None:
    subject = make_own()
    ablate(subject, texts, folder=tmp_path)
    subject.model.config = subject.model.config.model_copy(update={"rope_base": 500.0})
    with pytest.raises(ValueError, match="other settings.*model"):
        ablate(subject, texts, folder=tmp_path)


def cut_off(part: Path) -> None:
    part.write_bytes(part.read_bytes()[:40])


def one_bit(part: Path) -> None:
    content = bytearray(part.read_bytes())
    content[-1] ^= 64
    part.write_bytes(content)


def other_tensors(part: Path) -> None:
    save_file({"weight": torch.ones(2)}, part, {"settings": "no settings"})


def a_folder(part: Path) -> None:
    part.unlink()
    part.mkdir()


@pytest.mark.parametrize("damage", [cut_off, one_bit, other_tensors, a_folder])
def test_a_damaged_file_is_named(
    make_own: Make, texts: list[str], tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    ablate(make_own(), texts, folder=tmp_path)
    (part,) = tmp_path.iterdir()
    damage(part)
    with pytest.raises(ValueError, match=r"part-0.safetensors.*(is damaged|is a folder)"):
        ablate(make_own(), texts, folder=tmp_path)


def test_a_folder_that_cannot_be_made_is_refused_before_anything_runs(
    make_own: Make, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(Sweep, "run", None)
    with pytest.raises(ValueError, match="file is not a folder"):
        ablate(make_own(), texts, folder=tmp_path / "file" / "sweep")


def refusals() -> list[tuple[str, Any, dict[str, Any]]]:
    return [
        ("no texts", [], {}),
        ("got one string", "the fox", {}),
        ("text 1 is empty", ["the fox", ""], {}),
        ("text 1 has 1 token and at least 2", ["the fox", "a"], {}),
        ("text 0 has 65 tokens.*at most 64", ["a" * 65], {}),
        ("ids 0 … 99", [[0, 99]], {}),
        ("how must be one of zero, mean, resample, got 'none'", ["the fox"], {"how": "none"}),
        ("measure must be", ["the fox"], {"measure": "accuracy"}),
        ("names layer 3, but the model has layers 0 … 2", ["the fox"], {"heads": [(3, 0)]}),
        ("head 4 of layer 1, which has heads 0 … 3", ["the fox"], {"heads": [(1, 4)]}),
        ("names head -1", ["the fox"], {"heads": [(1, -1)]}),
        ("named twice", ["the fox"], {"heads": [(1, 1), (1, 1)]}),
        ("heads is empty", ["the fox"], {"heads": []}),
        ("retrieval task must be one of", ["the fox"], {"retrieval": "poem"}),
        ("at least two texts", ["the fox"], {"how": "resample"}),
        ("for how=.mean. only", ["the fox"], {"reference": ["the fox"]}),
        ("there are no texts", ["the fox"], {"how": "mean", "reference": []}),
        ("tokens must be at least 1", ["the fox"], {"tokens": 0}),
    ]


@pytest.mark.parametrize(("message", "texts", "options"), refusals(), ids=lambda case: str(case)[:30])
def test_mistakes_are_refused_before_anything_runs(
    make_own: Make, message: str, texts: Any, options: dict[str, Any]
) -> None:
    subject = make_own()
    ran: list[object] = []
    subject.gpt.register_forward_pre_hook(lambda *given: ran.append(given))
    with pytest.raises((ValueError, TypeError), match=message):
        ablate(subject, texts, **options)
    assert ran == []


def test_a_model_without_attention_is_refused(make_own: Make, texts: list[str]) -> None:
    with pytest.raises(ValueError, match="no attention that can be observed"):
        ablate(make_own(preset="bigram", n_layer=0, n_head=4), texts)
