"""Models go out to stock classes of transformers and come back, and compute the same there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from headwise.hub.export import export, save_transformers, to_transformers
from headwise.hub.import_ import from_transformers, import_folder
from headwise.model import GPT, PRESETS, GPTConfig, Sampling, generate_ids
from headwise.text import Tokenizer

TEXT = "the quick brown fox jumps over the lazy dog\n나는 학교에 버스로 갔다 🙂\n"
IDS = list(range(3, 15))

Make = Callable[..., GPT]

SHAPES: dict[str, dict[str, Any]] = {
    "gpt": {},
    "grouped": {"n_kv_head": 2},
    "mqa, wide heads": {"n_kv_head": 1, "d_head": 10},
    "other angles and eps": {"rope_base": 100.0, "norm_eps": 0.01},
    "biases, untied": {"bias": True, "tied_embeddings": False},
    "gelu and layer norm": {"norm": "layer", "mlp": "gelu", "n_kv_head": 2, "norm_eps": 0.01},
    "gelu, layer norm, biases": {"norm": "layer", "mlp": "gelu", "bias": True},
    "gpt2": PRESETS["gpt2"].model_dump(exclude_defaults=True),
    "gpt2 without biases": PRESETS["gpt2"].model_dump(exclude_defaults=True)
    | {"bias": False, "norm_eps": 0.01},
}
CLASSES = ["Llama", "Llama", "Llama", "Llama", "Llama", "Starcoder2", "Starcoder2", "GPT2", "GPT2"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train("bpe", [TEXT * 5], vocab_size=280)


@pytest.fixture
def make(tokenizer: Tokenizer) -> Make:
    def build(**changes: Any) -> GPT:
        torch.manual_seed(0)
        shape = {"n_layer": 2, "d_model": 24, "block_size": 32, "vocab_size": tokenizer.vocab_size}
        model = GPT(GPTConfig(**(shape | changes))).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        return model

    return build


@pytest.mark.parametrize(("shape", "kind"), list(zip(SHAPES.values(), CLASSES, strict=True)), ids=SHAPES)
@torch.no_grad()
def test_a_stock_class_computes_the_same_and_comes_back(shape: dict[str, Any], kind: str, make: Make) -> None:
    model = make(**shape)
    stock = to_transformers(model)
    assert type(stock).__name__.startswith(kind)
    ids = torch.tensor([IDS])
    logits = model(ids)
    assert float(logits.std()) > 0.1
    assert float((stock(input_ids=ids).logits - logits).abs().max()) < 1e-5
    back = from_transformers(stock)
    assert float((back(ids) - logits).abs().max()) < 1e-6
    assert back.config.kv_heads == model.config.kv_heads
    assert back.config.rope_base == model.config.rope_base


def test_a_fresh_process_loads_it_with_transformers_alone(
    make: Make, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    model = make(**SHAPES["grouped"])
    export(tmp_path / "out", model, tokenizer)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["num_key_value_heads"], config["head_dim"]) == (2, 6)
    code = """
import json, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
model = AutoModelForCausalLM.from_pretrained(sys.argv[1]).eval()
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
text = sys.argv[2]
ids = tokenizer(text, return_tensors="pt")["input_ids"]
with torch.no_grad():
    logits = model(input_ids=ids[:, :12]).logits
made = model.generate(ids[:, :12], attention_mask=torch.ones(1, 12, dtype=torch.long), max_new_tokens=12,
                      do_sample=False)
assert "headwise" not in sys.modules
print(json.dumps([ids[0].tolist(), tokenizer.decode(ids[0]), logits[0].tolist(), made[0, 12:].tolist()]))
"""
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "out"), TEXT], capture_output=True, text=True, check=True
    )
    ids, decoded, logits, made = json.loads(ran.stdout.splitlines()[-1])
    assert ids == tokenizer.encode(TEXT)
    assert decoded == TEXT
    with torch.no_grad():
        ours = model(torch.tensor([ids[:12]]))[0]
    assert float((torch.tensor(logits) - ours).abs().max()) < 1e-4
    assert made == list(generate_ids(model, ids[:12], 12, Sampling(0.0)))
    again, same = import_folder(tmp_path / "out")
    assert same.encode(TEXT) == ids
    with torch.no_grad():
        assert float((again(torch.tensor([ids[:12]]))[0] - ours).abs().max()) < 1e-6


@torch.no_grad()
def test_the_classic_preset_is_written_as_gpt2(make: Make, tokenizer: Tokenizer, tmp_path: Path) -> None:
    from transformers import GPT2LMHeadModel

    model = make(**SHAPES["gpt2"])
    export(tmp_path / "out", model, tokenizer)
    loaded: Any = GPT2LMHeadModel.from_pretrained(tmp_path / "out").eval()
    ids = torch.tensor([IDS])
    assert float((loaded(input_ids=ids).logits - model(ids)).abs().max()) < 1e-4
    options = {"max_new_tokens": 12, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    made = loaded.generate(ids, **options)[0, len(IDS) :].tolist()
    assert made == list(generate_ids(model, IDS, 12, Sampling(0.0)))


def test_a_character_tokenizer_goes_along(make: Make, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = Tokenizer.train("char", [TEXT])
    export(tmp_path / "out", make(vocab_size=tokenizer.vocab_size), tokenizer)
    loaded = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert loaded(TEXT)["input_ids"] == tokenizer.encode(TEXT)
    assert loaded.decode(tokenizer.encode(TEXT)) == TEXT
    assert import_folder(tmp_path / "out")[1].kind == "char"


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"mlp": "gelu"}, "position=rotary, norm=rms, mlp=gelu"),
        ({"position": "learned"}, "LlamaForCausalLM holds position=rotary, norm=rms, mlp=swiglu"),
        (SHAPES["gpt2"] | {"n_kv_head": 2}, "2 key/value heads for 4 query heads together with learned"),
        (SHAPES["gpt2"] | {"d_head": 10}, r"n_head · d_head = 40 apart from d_model=24"),
        ({"residual": False}, "residual=false"),
        ({"d_head": 6, "layer_heads": ((4, 2), (4, 4))}, "layers with different numbers of heads"),
    ],
)
def test_shapes_that_no_stock_class_holds_are_refused(
    shape: dict[str, Any], message: str, make: Make, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        export(tmp_path / "out", make(**shape), tokenizer)
    assert not (tmp_path / "out").exists()


def test_what_is_there_is_not_overwritten(make: Make, tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="is there already"):
        export(tmp_path / "out", make(), tokenizer)
    assert (tmp_path / "out" / "mine.txt").read_text() == "mine"


def test_what_is_written_can_be_read_by_others(make: Make, tokenizer: Tokenizer, tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        export(tmp_path / "out", make(), tokenizer)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "out").iterdir()}
    assert "model.safetensors" in modes
    assert set(modes.values()) == {0o644}


def test_a_write_that_breaks_off_leaves_nothing(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        def save_pretrained(self, folder: Path) -> None:
            raise OSError("No space left on device")

    with pytest.raises(OSError, match="No space"):
        save_transformers(tmp_path / "out", to_transformers(make()), Broken())
    assert list(tmp_path.iterdir()) == []


def test_foreign_features_are_refused_on_the_way_in() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    shape = {
        "vocab_size": 20,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
    }
    rope = {"rope_type": "linear", "factor": 2.0, "rope_theta": 50000.0}
    strange = LlamaForCausalLM(LlamaConfig(**shape, attention_bias=True, rope_parameters=rope))
    with pytest.raises(ValueError, match=r"no scaled rotary positions.*linear.*no biases in attention"):
        from_transformers(strange)
    with pytest.raises(
        ValueError, match="Qwen2ForCausalLM cannot become a GPT of headwise; these can: Llama"
    ):
        from_transformers(Qwen2ForCausalLM(Qwen2Config(**shape)))
