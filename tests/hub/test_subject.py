"""Any model through one door: texts in, logits out, whatever stands around the texts."""

from __future__ import annotations

import json
import math
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers as hf
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors
from torch import nn

from headwise.hub import Subject, open_subject
from headwise.hub.import_ import import_folder
from headwise.model import GPT, GPTConfig, save_model
from headwise.text import Tokenizer

KOREAN = "안녕, 세계!\n a"


def byte_level() -> hf.PreTrainedTokenizerFast:
    """The 256 bytes, one merge of the first two of 안, and <s> in front of each text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    first, second = "ì", "ķ"
    vocabulary = {symbol: index for index, symbol in enumerate([*alphabet, first + second])}
    engine = tokenizers.Tokenizer(models.BPE(vocabulary, [(first, second)]))
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    engine.add_special_tokens(["<s>", "</s>"])
    start = engine.token_to_id("<s>")
    engine.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", start)])
    return hf.PreTrainedTokenizerFast(tokenizer_object=engine, bos_token="<s>", eos_token="</s>")


def word_piece() -> hf.PreTrainedTokenizerFast:
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "play",
        "##ing",
        "##.",
        ".",
        "안녕",
        "##하",
        "the",
        "!",
    ]
    engine = tokenizers.Tokenizer(models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    engine.normalizer = normalizers.Lowercase()
    engine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    engine.decoder = decoders.WordPiece()
    ends = [("[CLS]", 2), ("[SEP]", 3)]
    engine.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=ends)
    engine.enable_truncation(4)  # as some published files have it
    engine.enable_padding(length=6)
    names = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "mask_token": "[MASK]"}
    return hf.PreTrainedTokenizerFast(tokenizer_object=engine, unk_token="[UNK]", **names)


def sentence_piece() -> hf.PreTrainedTokenizerFast:
    pieces = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁play",
        "ing",
        "▁",
        ".",
        "녕",
    ]
    scores = [(piece, -float(index)) for index, piece in enumerate(pieces)]
    engine = tokenizers.Tokenizer(models.Unigram(scores, unk_id=0, byte_fallback=True))
    engine.pre_tokenizer = pre_tokenizers.Metaspace()
    engine.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=engine, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 24,
}


def random(model: Any) -> Any:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.3, generator=generator)
    return model.eval()


def llama() -> Any:
    return random(hf.LlamaForCausalLM(hf.LlamaConfig(vocab_size=264, **SIZES, num_key_value_heads=2)))


def bert(kind: Any = hf.BertForMaskedLM, **more: Any) -> Any:
    return random(kind(hf.BertConfig(vocab_size=13, **SIZES, **more)))


def own() -> tuple[GPT, Tokenizer]:
    tokenizer = Tokenizer.train("char", ["안녕, 세계!\n a"])
    config = GPTConfig(vocab_size=tokenizer.vocab_size, block_size=8, n_layer=2, n_head=2, d_model=8)
    return random(GPT(config)), tokenizer


def test_a_model_of_ours():
    model, tokenizer = own()
    subject = Subject.of(model, tokenizer)
    assert (subject.name, subject.predicts, subject.causal, subject.max_tokens) == (
        "GPT",
        "next token",
        True,
        8,
    )
    ids = subject.encode("안녕, a")
    assert subject.decode(ids) == "안녕, a"
    assert subject.labels(ids) == ["안", "녕", ",", "␣", "a"]
    batch = subject.batch([ids, ids[:2]])
    assert batch.real.tolist() == [[True] * 5, [True, True, False, False, False]]
    assert batch.punctuation.tolist() == [[False, False, True, False, False], [False] * 5]
    assert not batch.special.any()
    with torch.no_grad():
        torch.testing.assert_close(subject.run(batch)[1, :2], model(torch.tensor([ids[:2]]))[0])
    assert [layer.name for layer in subject.layers] == ["blocks.0.attention", "blocks.1.attention"]


def test_a_folder_of_ours(tmp_path):
    model, tokenizer = own()
    save_model(tmp_path / "m", model, tokenizer)
    subject = open_subject(tmp_path / "m")
    ids = torch.tensor([subject.encode("안녕")])
    with torch.no_grad():
        assert torch.equal(subject.run(subject.batch(ids.tolist())), model(ids))
    assert (
        open_subject(tmp_path / "m", dtype=torch.bfloat16).run(subject.batch([[1]])).dtype == torch.bfloat16
    )


@pytest.mark.parametrize(
    ("texts", "padding", "message"),
    [
        ([[1], []], "right", "text 1 is empty"),
        ([], "right", "there are no texts"),
        ([[1] * 9], "right", "text 0 has 9 tokens but GPT reads at most 8; cut it"),
        ([[1, 99]], "right", "text 0 holds ids from 1 to 99, but those of GPT run from 0 to"),
        ([[-1]], "right", "ids from -1 to -1"),
        ([[1], [1, 2]], "left", "GPT counts positions from the left end"),
        ([[1]], "both", "padding must be 'right' or 'left', got 'both'"),
    ],
)
def test_texts_that_cannot_be_run_are_refused(texts, padding, message):
    with pytest.raises(ValueError, match=message):
        Subject.of(*own()).batch(texts, padding)


def test_ids_that_are_no_whole_numbers_are_refused_not_rounded(folder):
    with pytest.raises(TypeError, match=r"text 1 holds 1\.5; ids of tokens are whole numbers"):
        open_subject(folder).batch([[1, 2], [1, 1.5]])


def test_a_tokenizer_of_another_model_is_refused():
    model, tokenizer = own()
    with pytest.raises(ValueError, match=r"tokenizer has 3 tokens but the model 9"):
        Subject.of(model, Tokenizer.train("char", ["abc"]))
    with pytest.raises(TypeError, match=r"GPT needs the Tokenizer it was trained with, got \w+Backend"):
        Subject.of(model, byte_level())
    with pytest.raises(TypeError, match="LlamaForCausalLM needs a tokenizer of transformers, got Tokenizer"):
        Subject.of(llama(), tokenizer)
    with pytest.raises(TypeError, match="got Linear"):
        Subject.of(nn.Linear(1, 1), tokenizer)


def test_running_is_in_eval_mode_and_leaves_the_mode_as_it_was():
    model = bert(hidden_dropout_prob=0.5, attention_probs_dropout_prob=0.5).train()
    model.bert.encoder.layer[1].eval()
    modes = [module.training for module in model.modules()]
    subject = Subject.of(model, word_piece())
    batch = subject.batch([subject.encode("playing the play.")])
    with torch.no_grad():
        assert torch.equal(subject.run(batch), subject.run(batch))
    assert [module.training for module in model.modules()] == modes


def test_nothing_is_kept_for_a_generation_that_never_comes():
    subject = Subject.of(llama(), byte_level())
    kept = []
    subject.model.register_forward_hook(lambda *call: kept.append(call[-1].past_key_values))
    subject.run(subject.batch([[5, 6, 7]]))
    assert set(kept) == {None}


def test_byte_level_labels_show_spaces_newlines_and_parts_of_characters():
    subject = Subject.of(llama(), byte_level())
    ids = subject.encode("안 a\n")
    assert subject.labels(ids) == ["<s>", "‹EC 95›", "‹88›", "␣", "a", "⏎"]
    assert subject.decode(ids[1:]) == "안 a\n"
    assert subject.token_text(ids[1]) == "�"
    assert subject.special_ids == {257, 258}
    assert subject.vocab_size == 259  # the model has rows for more, but no tokens


def test_word_piece_labels_keep_the_mark_of_what_goes_on():
    subject = Subject.of(bert(), word_piece())
    ids = subject.encode("Playing 안녕하.")
    assert subject.labels(ids) == ["[CLS]", "play", "##ing", "안녕", "##하", ".", "[SEP]"]
    batch = subject.batch([ids])
    assert batch.special[0].tolist() == [True, False, False, False, False, False, True]
    assert batch.punctuation[0].tolist() == [False] * 5 + [True, False]
    assert subject.punctuation_ids == {7, 8, 12}  # ##. . !


def test_of_a_pair_the_model_is_told_which_text_is_which():
    model, tokenizer = bert(hf.BertModel), word_piece()
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    subject = Subject.of(model, tokenizer)
    ids, second = subject.encode_pair("Playing .", "안녕하 !")
    assert subject.labels(ids) == ["[CLS]", "play", "##ing", ".", "[SEP]", "안녕", "##하", "!", "[SEP]"]
    assert second == 5
    types = torch.tensor([[0] * 5 + [1] * 4])
    with torch.no_grad():
        wanted = model.eval()(torch.tensor([ids]), token_type_ids=types).last_hidden_state
        other = model(torch.tensor([ids])).last_hidden_state
        alone = subject.encode("Playing.")
        both = subject.run(subject.batch([ids, alone]))
        torch.testing.assert_close(subject.run(subject.batch([ids])), wanted, rtol=0, atol=0)
        assert (wanted - other).abs().max() > 1e-3
        torch.testing.assert_close(both[:1], wanted)
        torch.testing.assert_close(both[1, : len(alone)], model(torch.tensor([alone])).last_hidden_state[0])


def test_a_pair_for_a_model_without_segments_is_one_text_after_the_other():
    subject = Subject.of(llama(), sentence_piece())
    ids, second = subject.encode_pair("playing.", "안녕.")
    assert ids[:second] == subject.encode("playing.")
    assert ids[second:] == subject.encode("안녕.")


def test_sentence_piece_labels_show_spaces_and_bytes():
    subject = Subject.of(llama(), sentence_piece())
    ids = subject.encode("playing 안녕.")
    assert subject.labels(ids) == ["␣play", "ing", "␣", "‹EC›", "‹95›", "‹88›", "녕", "."]
    assert subject.decode(ids) == "playing 안녕."


def test_a_text_is_encoded_whole_whatever_the_tokenizer_file_says_of_length():
    subject = Subject.of(bert(), word_piece())
    assert len(subject.encode("the the the the the the the")) == 9
    assert len(subject.encode("the")) == 3


def test_no_text_gives_no_tokens():
    assert Subject.of(bert(), word_piece()).encode("") == []


def test_a_text_that_brings_its_own_start_gets_no_second_one():
    subject = Subject.of(llama(), byte_level())
    assert subject.encode("<s>a") == subject.encode("a") == [257, subject.encode("a")[1]]


@pytest.mark.parametrize("padding", ["right", "left"])
@torch.no_grad()
def test_padding_does_not_change_what_a_text_gives(reader, padding):
    for implementation in reader.implementations:
        subject = Subject.of(reader.make(implementation), word_piece())
        texts = [[2, 5, 6, 7, 8, 9, 11, 12], [2, 5, 11, 3]]
        batch = subject.batch(texts, padding)
        together = subject.run(batch)
        for row, text in enumerate(texts):
            alone = subject.run(subject.batch([text]))[0]
            torch.testing.assert_close(together[row][batch.real[row]], alone, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_an_encoder_that_cannot_be_told_positions_is_not_padded_on_the_left(make_family):
    bart = make_family("bart").make("sdpa")
    subject = Subject.of(bart.get_encoder(), word_piece())
    assert subject.predicts == "nothing"
    with pytest.raises(ValueError, match="cannot be padded on the left"):
        subject.batch([[2, 5, 3], [2, 3]], "left")
    subject.batch([[2, 5], [2, 3]], "left")  # nothing is padded
    batch = subject.batch([[2, 5, 3], [2, 3]])
    alone = subject.run(subject.batch([[2, 3]]))[0]
    torch.testing.assert_close(subject.run(batch)[1, :2], alone, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_the_encoder_of_t5_counts_distances_and_may_be_padded_on_either_side(make_family):
    subject = Subject.of(make_family("t5").make("sdpa").get_encoder(), word_piece())
    assert subject.max_tokens is None
    alone = subject.run(subject.batch([[2, 5, 3]]))[0]
    for side in ("right", "left"):
        batch = subject.batch([[2, 5, 6, 7, 3], [2, 5, 3]], side)
        torch.testing.assert_close(subject.run(batch)[1][batch.real[1]], alone, rtol=1e-4, atol=1e-4)


def test_an_encoder_decoder_is_refused_with_two_ways_out(make_family):
    with pytest.raises(ValueError, match=r"T5ForConditionalGeneration reads two texts.*get_encoder"):
        Subject.of(make_family("t5").make(), word_piece())


@pytest.mark.parametrize(
    ("kind", "predicts", "width"),
    [
        (hf.BertForMaskedLM, "masked token", 13),
        (hf.BertForPreTraining, "masked token", 13),
        (hf.BertModel, "nothing", 32),
        (hf.BertForSequenceClassification, "nothing", 32),
        (hf.BertForTokenClassification, "nothing", 32),
    ],
)
def test_what_an_encoder_gives_depends_on_its_head(kind, predicts, width):
    subject = Subject.of(bert(kind), word_piece())
    assert (subject.predicts, subject.causal) == (predicts, False)
    assert subject.run(subject.batch([[2, 5, 3]])).shape == (1, 3, width)
    assert [layer.causal for layer in subject.layers] == [False, False]


def test_a_decoder_without_a_head_predicts_nothing():
    model = llama().model
    subject = Subject.of(model, byte_level())
    assert (subject.predicts, subject.causal) == ("nothing", False)
    assert subject.run(subject.batch([[2, 5, 3]])).shape == (1, 3, 32)
    assert subject.layers[0].causal


def test_roberta_reads_fewer_tokens_than_it_has_positions():
    model = random(hf.RobertaForMaskedLM(hf.RobertaConfig(vocab_size=13, **SIZES)))
    subject = Subject.of(model, word_piece())
    assert subject.max_tokens == 24 - 2  # positions count from the padding id, 1, on
    subject.run(subject.batch([[5] * 22]))
    with pytest.raises(ValueError, match="23 tokens but .* reads at most 22"):
        subject.batch([[5] * 23])


def test_a_longer_text_than_there_are_positions_is_refused():
    with pytest.raises(ValueError, match="text 0 has 25 tokens but LlamaForCausalLM reads at most 24"):
        Subject.of(llama(), byte_level()).batch([[5] * 25])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    llama().save_pretrained(tmp_path / "llama")
    byte_level().save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


def change(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | fields
    path.write_text(json.dumps(config), encoding="utf-8")


@torch.no_grad()
def test_a_hugging_face_folder(folder, capfd):
    subject = open_subject(folder)
    assert subject.name == str(folder)
    assert isinstance(subject.model, hf.LlamaForCausalLM)
    assert not subject.model.training
    ids = subject.encode(KOREAN)
    assert torch.equal(subject.run(subject.batch([ids])), llama()(torch.tensor([ids])).logits)
    assert capfd.readouterr().err == ""  # no bars


def test_weights_come_in_float32_on_the_cpu_or_as_asked(folder):
    llama().to(torch.bfloat16).save_pretrained(folder)
    assert next(open_subject(folder).model.parameters()).dtype == torch.float32
    subject = open_subject(folder, dtype=torch.bfloat16)
    assert next(subject.model.parameters()).dtype == torch.bfloat16


def test_the_class_is_the_one_the_checkpoint_was_saved_from(tmp_path):
    bert().save_pretrained(tmp_path)
    word_piece().save_pretrained(tmp_path)
    assert open_subject(tmp_path).predicts == "masked token"


def test_a_folder_without_a_tokenizer_says_what_to_do(folder):
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match=r"has no tokenizer; put its tokenizer\.json there"):
        open_subject(folder)


def test_a_damaged_tokenizer_is_one_line(folder):
    (folder / "tokenizer.json").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match="tokenizer of .* cannot be read") as caught:
        open_subject(folder)
    assert "\n" not in str(caught.value)


def test_a_checkpoint_that_lacks_weights_is_refused(folder):
    change(folder, num_hidden_layers=3)
    with pytest.raises(
        ValueError, match=r"lack model\.layers\.2\.\S+, .* and more, which LlamaForCausalLM has"
    ):
        open_subject(folder)


@pytest.mark.parametrize("size", [0, 7, 1000, -1])
def test_weights_of_which_only_a_part_arrived_are_one_line(folder, size):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(ValueError, match="damaged or only half there") as caught:
        open_subject(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"hidden_size": "x"},
        {"hidden_size": 1024},
        {"num_attention_heads": 0},
        {"num_key_value_heads": 0},
        {"vocab_size": -5},
        {"hidden_act": "nope"},
        {"rope_parameters": 3},
        {"architectures": ["BertModel"]},
        {"pad_token_id": 10**9},
    ],
)
def test_a_configuration_that_makes_no_model_is_one_line(folder, fields):
    change(folder, **fields)
    with pytest.raises(ValueError, match="cannot be read|describes a model of|must be at least") as caught:
        open_subject(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kept", [["model_type"], ["model_type", "architectures", "hidden_size"]])
def test_a_configuration_without_sizes_builds_nothing_large(folder, kept, monkeypatch):
    """What it lacks would become the sizes of the largest model, 27 GB of noise."""
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({name: config[name] for name in kept}), encoding="utf-8")
    monkeypatch.setattr(hf.PreTrainedModel, "from_pretrained", lambda *_, **__: pytest.fail("built it"))
    for read in (open_subject, import_folder):
        with pytest.raises(ValueError, match=r"describes a model of .*[\d,]+ numbers, but its weights are"):
            read(folder)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"num_hidden_layers": 10**30}, r"num_hidden_layers=1e\+30, and more than 100,000 makes no sense"),
        ({"num_hidden_layers": 99_999}, "describes a model of more than"),
        ({"num_hidden_layers": -1}, "num_hidden_layers=-1, which must be at least 0"),
        ({"hidden_size": 0}, "hidden_size=0, which must be at least 1"),
        ({"num_attention_heads": -4}, "cannot be read|num_attention_heads=-4"),
        ({"vocab_size": 10**12}, "describes a model of more than"),
        ({"num_labels": 10**12}, "num_labels=1,000,000,000,000, and more than"),
        ({"text_config": {"num_local_experts": 10**9}}, "num_local_experts=1,000,000,000, and more than"),
        ({"pad_token_id": 10**30}, r"pad_token_id=1e\+30, and more than"),
        ({"attention_dropout": math.nan}, "attention_dropout is not a number"),
        ({"architectures": -1}, "architectures=-1, which should list"),
        ({"architectures": {"a": 1}}, "which should list"),
        ({"architectures": [1]}, "which should list"),
    ],
)
@pytest.mark.parametrize("weights", ["whole", "damaged"])
def test_absurd_numbers_of_a_configuration_are_refused_at_once(folder, fields, says, weights):
    change(folder, **fields)
    if weights == "damaged":
        (folder / "model.safetensors").write_bytes(b"no" * 100)
    start = time.perf_counter()
    with pytest.raises(ValueError, match=says if weights == "whole" else f"{says}|damaged") as caught:
        open_subject(folder)
    assert "\n" not in str(caught.value)
    assert time.perf_counter() - start < 5


def test_nothing_but_our_own_words_is_printed(tmp_path, capfd):
    """The library would report weights that the model has no use for."""
    bert(hf.BertForMaskedLM).save_pretrained(tmp_path)
    word_piece().save_pretrained(tmp_path)
    change(tmp_path, architectures=["BertModel"])
    verbosity = hf.utils.logging.get_verbosity()
    capfd.readouterr()
    assert open_subject(tmp_path).predicts == "nothing"
    assert capfd.readouterr() == ("", "")
    assert hf.utils.logging.get_verbosity() == verbosity


@pytest.mark.parametrize("name", ["", "  "])
def test_no_name_is_not_the_current_folder(name, folder, monkeypatch):
    monkeypatch.chdir(folder)
    with pytest.raises(ValueError, match="model is named by a folder .* got ''"):
        open_subject(name)


def test_settings_of_the_tokenizer_of_another_form_are_one_line(folder):
    (folder / "tokenizer_config.json").write_text("[1]", encoding="utf-8")
    with pytest.raises(ValueError, match="tokenizer of .* cannot be read"):
        open_subject(folder)


def test_pickled_weights_are_not_read(folder):
    (folder / "model.safetensors").unlink()
    torch.save(llama().state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match="no weights in safetensors files") as caught:
        open_subject(folder)
    assert "\n" not in str(caught.value)


def test_quantised_weights_are_refused(folder):
    change(folder, quantization_config={"quant_method": "gptq", "bits": 4})
    with pytest.raises(ValueError, match="quantised with gptq.*open the original model"):
        open_subject(folder)


def test_code_from_a_repository_is_not_run(folder):
    (folder / "own.py").write_text("raise SystemExit('was run')", encoding="utf-8")
    change(folder, model_type="own", auto_map={"AutoConfig": "own.Config", "AutoModel": "own.Model"})
    with pytest.raises(ValueError, match="needs code from its repository, which headwise does not run"):
        open_subject(folder)


def test_a_kind_of_model_that_the_library_does_not_know_is_refused(folder):
    change(folder, architectures=["NextYearForCausalLM"])
    with pytest.raises(ValueError, match=r"NextYearForCausalLM, which transformers [\d.]+ does not know"):
        open_subject(folder)
    change(folder, model_type="nextyear")
    with pytest.raises(ValueError, match="cannot be read by transformers") as caught:
        open_subject(folder)
    assert "\n" not in str(caught.value)


def test_a_damaged_configuration_is_an_error_of_our_own(folder):
    (folder / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match=r"config\.json is damaged"):
        open_subject(folder)


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all", "a/b/c"])
def test_a_path_that_is_not_there_is_no_name(name):
    with pytest.raises(FileNotFoundError, match="no model folder at"):
        open_subject(name)


def test_an_unknown_name_without_a_network_is_one_line(monkeypatch, tmp_path):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(
        FileNotFoundError, match="no folder nobody/nothing, and no model of that name"
    ) as caught:
        open_subject("nobody/nothing")
    assert "\n" not in str(caught.value)


def test_without_a_name_server_nothing_is_asked_again_and_again(monkeypatch, tmp_path):
    import socket

    import huggingface_hub.constants

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    monkeypatch.setattr("urllib.request.getproxies", dict)
    with pytest.raises(FileNotFoundError, match="there is no folder runs/mine, and no model of that name"):
        open_subject("runs/mine")


def test_without_transformers_the_error_names_the_extra(folder, monkeypatch):
    import importlib

    found = importlib.import_module

    def missing(name: str, package: str | None = None) -> Any:
        if name.split(".")[0] == "transformers":
            raise ModuleNotFoundError(f"No module named {name!r}")
        return found(name, package)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ValueError, match=r"pip install headwise\[hf\]"):
        open_subject(folder)


def test_a_copied_folder_is_the_same_model(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "한글 폴더")
    subject = open_subject(tmp_path / "한글 폴더")
    assert subject.name.endswith("한글 폴더")
