"""Reading config.json: what is missing, odd or unknown is named, and layers may differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from headwise.cost import Workload, from_hf_config, read_architecture
from headwise.cost.cache import kv_cache_bytes
from headwise.cost.parameters import parameters, parameters_by_part
from headwise.model import GPT, PRESETS, GPTConfig, save_model
from headwise.text import Tokenizer

Published = dict[str, dict[str, Any]]


@pytest.mark.parametrize(
    "missing", ["hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"]
)
def test_a_missing_field_is_named(missing: str, published: Published) -> None:
    values = {name: value for name, value in published["llama-3-8b"].items() if name != missing}
    with pytest.raises(ValueError, match=f"the llama config has no {missing}"):
        from_hf_config(values)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"hidden_size": "4096"},
            "hidden_size in the llama config must be a whole number of at least 1, got '4096'",
        ),
        ({"hidden_size": -1}, "at least 1, got -1"),
        ({"num_hidden_layers": 2.5}, "got 2.5"),
        ({"num_hidden_layers": 10**30}, "num_hidden_layers in the llama config must be at most 10,000, got"),
        ({"num_hidden_layers": 10**6}, "at most 10,000, got 1,000,000"),
        ({"num_attention_heads": True}, "got True"),
        ({"num_key_value_heads": 5}, "n_head=32 query heads cannot share n_kv_head=5"),
        ({"num_attention_heads": 30, "num_key_value_heads": 30}, "cannot be divided among n_head=30"),
        (
            {"tie_word_embeddings": "no"},
            "tie_word_embeddings in the llama config must be true or false, got 'no'",
        ),
        ({"model_type": "mamba"}, "model_type 'mamba' is not one whose costs are known; known are cohere"),
        ({"model_type": None}, "model_type must be a name such as 'llama', got None"),
        ({"model_type": "mistral"}, "the mistral config has no sliding_window"),
        ({"layer_types": ["linear_attention"] * 32}, "layers of type 'linear_attention' cannot be read"),
        ({"layer_types": ["full_attention"]}, "layer_types in the llama config must name 32 layers"),
        ({"layer_types": ["sliding_attention"] * 32}, "the llama config has no sliding_window"),
        ({"num_key_value_heads": [8, 4]}, "num_key_value_heads in the llama config lists 2 layers"),
        ({"per_layer_config": {"32": {}}}, "names layer '32', but layers are 0 … 31"),
        ({"per_layer_config": [1]}, "per_layer_config in the llama config must map layers to fields"),
    ],
)
def test_odd_fields_are_one_sentence(changes: dict[str, Any], words: str, published: Published) -> None:
    with pytest.raises(ValueError, match=".") as caught:
        from_hf_config(published["llama-3-8b"] | changes)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "opt", "ffn_dim": 8, "word_embed_proj_dim": 3}, "opt with word_embed_proj_dim=3"),
        (
            {"model_type": "opt", "ffn_dim": 8, "do_layer_norm_before": False},
            "opt with do_layer_norm_before=False",
        ),
        ({"model_type": "gemma3"}, "the gemma3 config has no text_config"),
        ({"model_type": "gpt2", "add_cross_attention": True}, "gpt2 with add_cross_attention=True"),
        ({"model_type": "gpt2", "per_layer_config": {"0": {}}}, "per_layer_config cannot be read for gpt2"),
    ],
)
def test_what_is_not_counted_is_refused(changes: dict[str, Any], words: str, published: Published) -> None:
    with pytest.raises(ValueError, match=words):
        from_hf_config(published["llama-2-7b"] | changes)


def test_layers_with_their_own_counts(published: Published) -> None:
    even = published["llama-3-8b"] | {"num_hidden_layers": 3, "head_dim": 128}
    listed = from_hf_config(even | {"num_key_value_heads": [8, 4, 2]})
    overlaid = from_hf_config(
        even | {"per_layer_config": {"1": {"num_key_value_heads": 4}, "2": {"num_key_value_heads": 2}}}
    )
    assert [layer.attention.n_kv_head for layer in listed.layers] == [8, 4, 2]
    assert overlaid.layers == listed.layers
    assert kv_cache_bytes(listed, Workload(length=10)) == 2 * 128 * 10 * 2 * (8 + 4 + 2)
    assert parameters(from_hf_config(even)) - parameters(listed) == 2 * 4096 * 128 * (4 + 6)


def test_fewer_query_heads_in_one_layer(published: Published) -> None:
    even = published["llama-3-8b"] | {"num_hidden_layers": 2, "head_dim": 128}
    pruned = from_hf_config(even | {"per_layer_config": {"0": {"num_attention_heads": 16}}})
    assert parameters(from_hf_config(even)) - parameters(pruned) == 2 * 16 * 128 * 4096


def test_the_text_part_of_a_model_that_also_sees(published: Published) -> None:
    text = published["llama-3-8b"] | {"num_hidden_layers": 7, "head_dim": 128, "sliding_window": 8}
    model = from_hf_config({"model_type": "gemma3", "text_config": text, "vision_config": {}})
    assert [layer.attention.window for layer in model.layers] == [8, 8, 8, 8, 8, None, 8]
    assert model.notes == ("Only the text model is counted, not what reads images.",)


def test_quantised_weights_are_said_not_to_be_counted(published: Published) -> None:
    model = from_hf_config(published["llama-3-8b"] | {"quantization_config": {"bits": 4}})
    assert "Quantised weights are not counted as such" in model.notes[0]


@pytest.mark.parametrize("preset", list(PRESETS))
def test_our_model_folder(preset: str, tmp_path: Path) -> None:
    tokenizer = Tokenizer.train("char", ["나는 학교에 버스로 갔다"])
    settings = PRESETS[preset].model_dump() | {"d_model": 32}
    model = GPT(GPTConfig(**settings, vocab_size=tokenizer.vocab_size))
    save_model(tmp_path / "book", model, tokenizer)
    architecture, dtype = read_architecture(tmp_path / "book")
    assert (architecture.name, dtype) == ("book", "fp32")
    assert parameters_by_part(architecture) == model.parameters_by_part()


def test_the_type_is_that_of_the_weights_beside_the_config(tmp_path: Path, published: Published) -> None:
    tokenizer = Tokenizer.train("char", ["나는 학교에 버스로 갔다"])
    model = GPT(GPTConfig(d_model=32, n_layer=1, vocab_size=tokenizer.vocab_size))
    save_model(tmp_path, model.to(torch.bfloat16), tokenizer)
    assert read_architecture(tmp_path)[1] == "bf16"
    (tmp_path / "config.json").write_text(json.dumps(published["tinyllama"] | {"dtype": None}), "utf-8")
    assert read_architecture(tmp_path)[1] == "bf16"
    (tmp_path / "config.json").rename(tmp_path / "other.json")  # which may be of other weights
    assert read_architecture(tmp_path / "other.json")[1] is None
    (tmp_path / "model.safetensors").write_bytes(b"no")
    (tmp_path / "other.json").rename(tmp_path / "config.json")
    with pytest.raises(ValueError, match="are damaged"):
        read_architecture(tmp_path)


def test_a_hugging_face_folder_and_its_file(tmp_path: Path, published: Published) -> None:
    file = tmp_path / "tiny" / "config.json"
    file.parent.mkdir()
    file.write_text(json.dumps(published["tinyllama"] | {"torch_dtype": "bfloat16"}), "utf-8")
    assert read_architecture(file.parent) == read_architecture(file)
    architecture, dtype = read_architecture(file)
    assert (architecture.name, dtype) == ("tiny (llama)", "bf16")


def test_files_that_are_no_config(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere is missing; give a model folder or a config.json"):
        read_architecture(tmp_path / "nowhere")
    file = tmp_path / "config.json"
    file.write_text("{", "utf-8")
    with pytest.raises(ValueError, match="is not a config.json"):
        read_architecture(file)
    file.write_text("[]", "utf-8")
    with pytest.raises(ValueError, match="must hold a JSON object, got list"):
        read_architecture(file)
