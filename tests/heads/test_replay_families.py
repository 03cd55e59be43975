"""Replay and ablation on families of transformers models: decoders, encoders, with and without a head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tokenizers
import torch
import torch.nn.functional as F
import transformers as hf
from tokenizers import models, pre_tokenizers, processors

from headwise.heads import ablate, compare, importance, observe, pairs, similarity
from headwise.heads.documents import make_batch, make_documents
from headwise.heads.replay import Replayer
from headwise.hub import Subject

COMMON: dict[str, Any] = {
    "vocab_size": 32,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 32,
}
GROUPED = COMMON | {"num_key_value_heads": 2}


def _gpt2() -> Any:
    return hf.GPT2Config(
        vocab_size=32, n_embd=32, n_layer=3, n_head=4, n_positions=32, bos_token_id=1, eos_token_id=2
    )


def _opt() -> Any:
    return hf.OPTConfig(
        vocab_size=32,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        ffn_dim=48,
        max_position_embeddings=32,
        word_embed_proj_dim=32,
    )


def _distilbert() -> Any:
    return hf.DistilBertConfig(
        vocab_size=32, dim=32, n_layers=3, n_heads=4, hidden_dim=48, max_position_embeddings=32
    )


FAMILIES: dict[str, Callable[[], Any]] = {
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**GROUPED)),
    "qwen3": lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**GROUPED, head_dim=16)),
    "gemma3": lambda: hf.Gemma3ForCausalLM(hf.Gemma3TextConfig(**GROUPED, head_dim=16, sliding_window=4)),
    "gpt2": lambda: hf.GPT2LMHeadModel(_gpt2()),
    "gpt-neox": lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**COMMON)),
    "opt": lambda: hf.OPTForCausalLM(_opt()),
    "bert": lambda: hf.BertForMaskedLM(hf.BertConfig(**COMMON)),
    "distilbert": lambda: hf.DistilBertForMaskedLM(_distilbert()),
    "roberta": lambda: hf.RobertaModel(hf.RobertaConfig(**COMMON)),
    "albert": lambda: hf.AlbertModel(hf.AlbertConfig(**COMMON, embedding_size=16)),
}

TEXTS = ["abcdabcd.", "the fox, the dog", "abc", "over and over again."]


def tokenizer() -> Any:
    """One token per letter, in [CLS] … [SEP]."""
    names = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz., "[:28]]
    engine = tokenizers.Tokenizer(models.WordLevel({n: i for i, n in enumerate(names)}, unk_token="a"))
    engine.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    engine.add_special_tokens(names[:4])
    ends = [("[CLS]", 1), ("[SEP]", 2)]
    engine.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=ends)
    given = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "mask_token": "[MASK]"}
    return hf.PreTrainedTokenizerFast(tokenizer_object=engine, **given)


def subject_of(name: str, seed: int = 0) -> Subject:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = FAMILIES[name]()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.2)
    return Subject.of(model.eval(), tokenizer(), name)


@pytest.mark.parametrize("name", list(FAMILIES))
def test_replay_equals_a_gated_pass(name: str) -> None:
    subject = subject_of(name)
    documents = make_documents(subject, TEXTS, measure="output")
    batch = make_batch(subject, documents, list(range(len(TEXTS)))).tokens
    recording = Replayer(subject).record(batch)
    # ALBERT runs one layer several times, so nothing of it can be handed out; the others take the short way
    expected: list[str | None] = [
        None if name == "albert" else "projection" if name in ("bert", "roberta") else "attention"
    ]
    assert recording._shortcuts == expected * len(subject.layers)
    torch.manual_seed(0)
    fills = {layer.index: torch.randn(1, 4, 1, layer.d_value) for layer in subject.layers}
    filled = Replayer(subject).record(batch, silenced={0: [2]}, fills=fills)
    for layer in subject.layers:
        for head, output in recording.silence(layer, [0, 3]):
            gates = {layer.index: (torch.arange(4) != head).float()}
            with torch.no_grad(), observe(subject.model, gates=gates):
                wanted = subject.run(batch)
            assert float((output - wanted)[batch.real].abs().max()) < 1e-5 * float(wanted.abs().max())
            assert float((recording.output - wanted)[batch.real].abs().max()) > 1e-3
        for head, output in filled.silence(layer, [1]):
            gates = {0: torch.tensor([1.0, 1, 0, 1])}
            gates[layer.index] = gates.get(layer.index, torch.ones(4)) * (torch.arange(4) != head)
            with torch.no_grad(), observe(subject.model, gates=gates, fills=fills):
                wanted = subject.run(batch)
            assert float((output - wanted)[batch.real].abs().max()) < 1e-5 * float(wanted.abs().max())
    assert all("forward" not in vars(module) for module in subject.model.modules())


@pytest.mark.parametrize(
    ("name", "before"), [("llama", "layers.0."), ("gpt2", "h.0."), ("bert", "layer.0.")], ids=lambda x: x
)
def test_what_stands_before_is_not_run_again(name: str, before: str) -> None:
    subject = subject_of(name)
    documents = make_documents(subject, TEXTS)
    recording = Replayer(subject).record(make_batch(subject, documents, [0, 1]).tokens)
    ran: list[str] = []
    for path, module in subject.model.named_modules():
        if hasattr(module, "weight") and module.weight.ndim == 2:
            module.register_forward_hook(lambda *_, path=path: ran.append(path))
    list(recording.silence(subject.layers[1], range(4)))
    own = subject.layers[1].name
    assert not [path for path in ran if before in path or path.startswith(own)]
    assert any(path.startswith(subject.layers[2].name) for path in ran)


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert"])
def test_ablation_equals_passes_with_gates(name: str) -> None:
    subject = subject_of(name)
    documents = make_documents(subject, TEXTS)
    table = ablate(subject, TEXTS, tokens=50).table
    for layer, head in ((0, 1), (2, 3)):
        difference, count = 0.0, 0
        for i, document in enumerate(documents):
            batch = make_batch(subject, documents, [i])
            losses = []
            for gate in (torch.ones(4), (torch.arange(4) != head).float()):
                with torch.no_grad(), observe(subject.model, gates={layer: gate}):
                    logits = subject.run(batch.tokens)
                losses.append(float(F.cross_entropy(logits[0], batch.targets[0], reduction="sum")))
            difference += losses[1] - losses[0]
            count += document.predicted
        row = table[(table["layer"] == layer) & (table["head"] == head)].iloc[0]
        assert row["delta"] == pytest.approx(difference / count, abs=2e-5)


def test_an_encoder_fills_in_what_the_seed_draws() -> None:
    subject = subject_of("bert")
    first, again, other = (make_documents(subject, TEXTS, seed=seed) for seed in (0, 0, 1))
    assert first == again
    assert first != other
    for text, document in zip(TEXTS, first, strict=True):
        ids = subject.encode(text)
        masked = [i for i, index in enumerate(document.ids) if index == 3]
        assert len(masked) == document.predicted == max(1, round(0.15 * len(text)))
        assert all(document.targets[i] == ids[i] and 0 < i < len(ids) - 1 for i in masked)
        assert [x for i, x in enumerate(document.ids) if i not in masked] == [
            x for i, x in enumerate(ids) if i not in masked
        ]


def test_special_tokens_are_no_class_of_words() -> None:
    ablation = ablate(subject_of("llama"), TEXTS, heads=[(0, 0)], retrieval=None)
    letters, marks = sum(map(len, TEXTS)), sum(text.count(".") + text.count(",") for text in TEXTS)
    assert ablation.tokens["all"] == letters + len(TEXTS)  # [SEP] is predicted as well
    assert ablation.tokens["punctuation"] == marks
    assert ablation.tokens["other"] == letters - marks


def test_an_encoder_without_a_head_has_an_output_but_no_loss() -> None:
    subject = subject_of("roberta")
    with pytest.raises(ValueError, match="roberta predicts no tokens.*measure=.output."):
        ablate(subject, TEXTS)
    with pytest.raises(ValueError, match="predicts no tokens"):
        importance(subject, TEXTS)
    table = ablate(subject, TEXTS, measure="output").table
    assert (table["delta"] > 0).all()
    assert not table[["low", "high", "delta_retrieval"]].isna().any(axis=None)


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_everything_else_takes_them_too(name: str) -> None:
    subject = subject_of(name)
    gradients = importance(subject, TEXTS)
    measured = ablate(subject, TEXTS, how="resample", heads=[(0, 1), (1, 2)])
    assert -1 <= measured.agreement(gradients).predicted <= 1
    assert len(pairs(subject, TEXTS, [(0, 1), (2, 2)], how="mean")) == 1
    assert similarity(subject, TEXTS, by="maps").shape == (12, 12)
    same = compare(subject, subject_of(name), TEXTS)
    assert same["map_distance"].abs().max() < 2e-3
    changes = [column for column in same.columns if column.startswith("change_")]
    assert "change_entropy" in changes
    assert float(same[changes].abs().max(axis=None)) < 1e-5
