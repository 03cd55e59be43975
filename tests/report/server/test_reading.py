"""Numbers of the live page: those of an ablation, and of the plain model."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from headwise.heads import ablate
from headwise.hub import Subject
from headwise.report.server.looking import Looker
from headwise.report.server.reading import reading
from headwise.report.server.switched import Switched, document_of
from headwise.report.viewer.data import view_data
from headwise.report.viewer.pack import packed

TEXT = "abc cab, 가나 abc cab"


@pytest.mark.parametrize("how", ["zero", "mean"])
@pytest.mark.parametrize("head", [(0, 1), (1, 3)])
def test_a_head_switched_off_costs_what_the_ablation_says(
    subject: Subject, how: Any, head: tuple[int, int]
) -> None:
    ids = subject.encode(TEXT)
    found = reading(subject, ids, [head], how, None)["loss"]
    measured = ablate(subject, [TEXT], how=how, heads=[head], retrieval=None)
    assert found["plain"] == pytest.approx(measured.baseline["all"], abs=1e-6)
    assert found["delta"] == pytest.approx(measured.table["delta"][0], abs=1e-6)
    assert abs(found["delta"]) > 1e-4


def test_with_all_heads_on_the_model_is_the_plain_one(subject: Subject) -> None:
    ids = subject.encode(TEXT)
    with torch.no_grad():
        logits = subject.model(torch.tensor([ids]))[0]
        with Switched(subject, document_of(subject, ids), [], "zero").on():
            assert torch.equal(subject.run(subject.batch([ids]))[0], logits)
    found = reading(subject, ids, [], "zero", 3)
    assert found["losses"]["silent"] is None
    losses = F.cross_entropy(logits[:-1], torch.tensor(ids[1:]), reduction="none").tolist()
    assert found["losses"]["plain"] == [None, *losses]
    shares = torch.softmax(logits[3].double(), 0)
    assert [(one["id"], one["plain"]) for one in found["candidates"]] == [
        (index, float(shares[index])) for index in shares.topk(8).indices.tolist()
    ]


def test_candidates_are_the_likeliest_of_both(subject: Subject) -> None:
    ids = subject.encode(TEXT)
    off = [(0, 0), (0, 1), (1, 2)]
    found = reading(subject, ids, off, "zero", 5)
    assert found["at"] == 5
    gates = torch.ones(2, 4)
    for layer, head in off:
        gates[layer, head] = 0
    from headwise.heads import observe

    with torch.no_grad(), observe(subject.model, gates=gates):
        silent = torch.softmax(subject.model(torch.tensor([ids]))[0, 5].double(), 0)
    for one in found["candidates"]:
        assert one["silent"] == float(silent[one["id"]])
    assert set(silent.topk(8).indices.tolist()) <= {one["id"] for one in found["candidates"]}


def test_one_token_has_candidates_and_no_loss(subject: Subject) -> None:
    found = reading(subject, subject.encode("a"), [(0, 0)], "mean", None)
    assert found["loss"] == {"plain": None, "silent": None, "delta": None}
    assert len(found["candidates"]) >= 8


@pytest.mark.parametrize(
    ("off", "at", "told"),
    [
        ([(0, 4)], None, "head 4 of layer 0"),
        ([(2, 0)], None, "names layer 2"),
        ([(0, 0)] * 2, None, "twice"),
        ([], 99, "token 99"),
    ],
)
def test_what_is_not_there_is_refused(
    subject: Subject, off: list[tuple[int, int]], at: int | None, told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        reading(subject, subject.encode(TEXT), off, "zero", at)


def test_damaged_weights_are_told(make_broken: Callable[[], Subject]) -> None:
    broken = make_broken()
    with pytest.raises(ValueError, match="not finite"):
        reading(broken, broken.encode("abc"), [], "zero", None)


@pytest.fixture
def make_broken(subject: Subject) -> Callable[[], Subject]:
    def make() -> Subject:
        import copy

        model = copy.deepcopy(subject.model)
        next(iter(model.parameters())).data[0] = math.nan
        return Subject.of(model, subject.tokenizer, "broken")  # type: ignore[attr-defined]

    return make


def test_what_is_looked_at_is_what_view_shows(subject: Subject) -> None:
    ids = subject.encode(TEXT)
    island = Looker(subject).look(ids)
    assert island == packed(view_data(subject, ids))
    both = Looker(subject).look(ids, [(0, 1)], "zero")
    other = both.pop("other")
    assert both["panes"][0]["layers"] == island["panes"][0]["layers"]
    assert other["panes"][0]["layers"][0] == island["panes"][0]["layers"][0]  # before it, nothing has changed
    assert other["panes"][0]["layers"][1] != island["panes"][0]["layers"][1]
    assert "induction" in both["columns"]
    assert "induction" not in other["columns"]


@pytest.fixture(scope="module", params=["fills in", "predicts nothing"])
def encoder(request: pytest.FixtureRequest) -> Subject:
    hf = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
    engine = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="[UNK]"))
    engine.pre_tokenizer = pre_tokenizers.Whitespace()
    engine.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    marks = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
    torch.manual_seed(0)
    kind = hf.BertForMaskedLM if request.param == "fills in" else hf.BertModel
    model = kind(hf.BertConfig(vocab_size=len(words), initializer_range=0.5, **sizes))
    return Subject.of(model, hf.PreTrainedTokenizerFast(tokenizer_object=engine, **marks), request.param)


@pytest.mark.parametrize("how", ["zero", "mean"])
def test_an_encoder_is_measured_as_its_ablation_measures_it(encoder: Subject, how: Any) -> None:
    ids = encoder.encode("a b c d e f g h a b c d")
    fills_in = encoder.predicts == "masked token"
    found = reading(encoder, ids, [(0, 2)], how, 4)
    measured = ablate(
        encoder, [ids], how=how, measure="loss" if fills_in else "output", heads=[(0, 2)], retrieval=None
    )
    assert found["loss"]["delta"] == pytest.approx(measured.table["delta"][0], abs=2e-6)
    if fills_in:
        hidden = [4 if at == 4 else index for at, index in enumerate(ids)]
        with torch.no_grad():
            shares = torch.softmax(encoder.run(encoder.batch([hidden]))[0, 4].double(), 0)
        assert {one["id"]: one["plain"] for one in found["candidates"]} == {
            one["id"]: float(shares[one["id"]]) for one in found["candidates"]
        }
        assert reading(encoder, ids, [], how, 0)["candidates"] == []  # a special token stands there
    else:
        assert found["candidates"] == []
        assert found["losses"]["plain"] is None
