"""headwise cost."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from headwise.model import GPT, GPTConfig, save_model
from headwise.text import Tokenizer

NUMBERS = ["--d-model", "4096", "--n-head", "32", "--n-layer", "32", "--length", "4096", "--dtype", "fp16"]


@pytest.fixture
def book(tmp_path: Path) -> Path:
    tokenizer = Tokenizer.train("char", ["나는 학교에 버스로 갔다"])
    config = GPTConfig(vocab_size=tokenizer.vocab_size, d_model=32, n_layer=2, n_kv_head=2, block_size=16)
    save_model(tmp_path / "book", GPT(config), tokenizer)
    return tmp_path / "book"


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    values = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 100, "num_hidden_layers": 2}
    values |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 99, "dtype": "bfloat16"}
    values |= {"max_position_embeddings": 32}
    path = tmp_path / "llama.json"
    path.write_text(json.dumps(values), "utf-8")
    return path


def test_numbers_give_exact_bytes_then_gib(headwise: Callable) -> None:
    out = headwise("cost", *NUMBERS).out
    assert "KV cache, all layers  2,147,483,648  bytes (2 GiB)" in " ".join(out.split("\n")).replace(
        "   ", "  "
    )
    assert "GB" not in out.replace("GiB", "")


def test_json_is_one_object_whose_keys_say_bytes_or_counts(headwise: Callable) -> None:
    (line,) = headwise("cost", *NUMBERS, "--n-kv-head", "8", "--json").out.splitlines()
    values = json.loads(line)
    assert values["kv_cache_bytes"] == 2**29
    assert values["score_tensor_bytes"] == 2**30
    assert values["parameters"] == 32 * (2 * 4096**2 + 2 * 4096 * 1024)
    assert {"flops_forward", "flops_backward", "flops_prefill", "flops_decode_token"} <= values.keys()
    assert values["dtype"] == "fp16"


def test_counts_by_layer(headwise: Callable) -> None:
    arguments = [
        "--d-model",
        "64",
        "--n-head",
        "8",
        "--n-kv-head",
        "8,4,1",
        "--n-layer",
        "3",
        "--length",
        "10",
    ]
    assert json.loads(headwise("cost", *arguments, "--json").out)["kv_cache_bytes"] == 2 * 8 * 10 * 2 * 13


def test_our_model_in_its_own_type_and_length(headwise: Callable, book: Path) -> None:
    values = json.loads(headwise("cost", book, "--json").out)
    assert (values["name"], values["dtype"], values["length"]) == ("book", "fp32", 16)
    assert values["weights_bytes"] == 4 * values["parameters"]


def test_a_hugging_face_config(headwise: Callable, llama: Path) -> None:
    values = json.loads(headwise("cost", llama, "--json", "--cache-dtype", "int8").out)
    assert (values["dtype"], values["length"], values["cache_scales"]) == ("bf16", 32, "token-head")
    assert values["kv_cache_bytes"] == 2 * 2 * 2 * 32 * (16 + 4)
    assert "bf16" in headwise("cost", llama.parent / "llama.json").out


def test_what_fits_a_memory(headwise: Callable) -> None:
    values = json.loads(headwise("cost", *NUMBERS, "--memory", "10GiB", "--json").out)
    weights = 32 * 4 * 4096**2 * 2
    assert values["fits"][0]["longest_context"] == (10 * 2**30 - weights) // 524_288


def test_verification_predicts_what_is_measured(headwise: Callable, book: Path) -> None:
    done = headwise("cost", book, "--verify")
    assert done.code == 0
    assert done.out.splitlines()[-1] == "All predictions hold."
    values = json.loads(
        headwise(
            "cost",
            "--verify",
            "--json",
            "--d-model",
            "64",
            "--n-head",
            "2",
            "--d-head",
            "48",
            "--n-layer",
            "1",
            "--length",
            "16",
        ).out
    )
    assert values["built"]["d_head"] == 48
    assert all(check["agrees"] for check in values["checks"])


def test_a_disagreement_is_an_error(headwise: Callable, book: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headwise.cost import verification

    monkeypatch.setattr(verification, "parameters", lambda _architecture: 1)
    done = headwise("cost", book, "--verify")
    assert done.code == 1
    assert "DIFFERS" in done.out


def test_advice(headwise: Callable) -> None:
    arguments = [
        "--advise",
        "--d-model",
        "4096",
        "--cache-budget",
        "1GiB",
        "--length",
        "4096",
        "--n-layer",
        "32",
    ]
    done = headwise("cost", *arguments)
    assert done.out.startswith("Heads that fit")
    found = json.loads(headwise("cost", *arguments, "--json").out)["advice"]
    assert found[0] == {
        "n_head": 32,
        "n_kv_head": 16,
        "d_head": 128,
        "kv_cache_bytes": 2**30,
        "score_tensor_bytes": 2**30,
        "attention_parameters": 50_331_648,
    }


def test_curves_and_a_second_model(headwise: Callable, book: Path, llama: Path, tmp_path: Path) -> None:
    done = headwise("cost", book, "--plot", tmp_path / "curves.svg", "--against", llama, "--json")
    values = json.loads(done.out)
    assert (tmp_path / "curves.svg").read_text("utf-8").count("d_head 64–128") >= 1
    assert values["plot"].endswith("curves.svg")
    assert values["against"]["parameters"]["before"] == values["parameters"]
    told = headwise("cost", book, "--against", llama).out
    assert "llama.json (llama)" in told
    assert "Memory to train" not in told  # both side by side, not the whole of one
    assert "KV cache, all layers" in told


def test_each_of_two_models_in_its_own_type(headwise: Callable, book: Path, llama: Path) -> None:
    values = json.loads(headwise("cost", book, "--against", llama, "--json").out)
    assert (values["dtype"], values["against"]["dtype"]) == ("fp32", "bf16")
    weights, parameters = (values["against"][name] for name in ("weights_bytes", "parameters"))
    assert weights["before"] == 4 * parameters["before"]
    assert weights["after"] == 2 * parameters["after"]
    lines = headwise("cost", book, "--against", llama).out.splitlines()
    assert [line.partition("K=8  ")[2] for line in lines[:1]] == ["fp32  (cache: fp32)"]
    assert lines[1].endswith("bf16  (cache: bf16)")
    assert lines[2] == "B=1  T=16"
    same = headwise("cost", book, "--against", llama, "--dtype", "fp16").out.splitlines()
    assert same[2] == "B=1  T=16  fp16  (cache: fp16)"
    alike = [json.loads(headwise("cost", *NUMBERS[:6], "--against", m, "--json").out) for m in (book, llama)]
    assert [a["dtype"] for a in alike] == ["fp32", "bf16"]  # sizes have no type of their own


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "say what to count: a model folder or config.json, or at least --d-model and --n-head"),
        (["--d-model", "64"], "at least --d-model and --n-head"),
        (["--d-model", "-64", "--n-head", "8"], "d_model must be at least 1, got -64"),
        (["--d-model", "64", "--n-head", "7"], "d_model=64 cannot be divided among n_head=7 heads"),
        (["--d-model", "64", "--n-head", "2.5"], "--n-head must be a whole number, or one for each layer"),
        (["--d-model", "64", "--n-head", "8", "--n-kv-head", "3"], "cannot share n_kv_head=3"),
        (["--d-model", "64", "--n-head", "8,8", "--n-layer", "3"], "n_head lists 2 layers, but n_layer is 3"),
        (["--d-model", "64", "--n-head", "8", "--batch", "0"], "batch must be at least 1, got 0"),
        (["--d-model", "64", "--n-head", "8", "--length", "0"], "length must be at least 1, got 0"),
        (
            ["--d-model", "64", "--n-head", "8", "--memory", "24GB"],
            "--memory must be a positive number of bytes",
        ),
        (["--d-model", "64", "--n-head", "8", "--mlp", "gelu"], "--mlp has no effect without --d-ff"),
        (["--d-model", "64", "--n-head", "8", "--plot", "x.pdf"], "the name must end in .png or .svg"),
        (["--d-model", "64", "--n-head", "8", "--advise"], "--advise and --cache-budget belong together"),
        (["--advise", "--cache-budget", "1GiB"], "--advise needs the width of the model"),
        (["nowhere"], "config.json"),
        (["nowhere", "--d-model", "64"], "give either a model or sizes, not both: nowhere and --d-model"),
        (["--d-model", "64", "--n-head", "8", "--window", "4", "--verify"], "a sliding window"),
    ],
)
def test_user_mistakes_are_one_line(headwise: Callable, arguments: list[str], words: str) -> None:
    done = headwise("cost", *arguments)
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert words in done.err
    assert not done.out


def test_an_unknown_architecture_is_refused_by_name(headwise: Callable, llama: Path) -> None:
    llama.write_text(llama.read_text("utf-8").replace('"llama"', '"rwkv"'), "utf-8")
    done = headwise("cost", llama)
    assert done.code == 2
    assert "model_type 'rwkv' is not one whose costs are known" in done.err
