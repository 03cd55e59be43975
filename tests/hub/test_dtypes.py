"""What dtype weights are stored in, and that what is made of a model goes back to it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from headwise.hub import open_subject
from headwise.hub.dtypes import as_stored, in_dtype, stored_dtype
from headwise.hub.export import export
from headwise.model import GPT, GPTConfig, save_model
from headwise.text import Tokenizer


@pytest.fixture
def tokenizer() -> Tokenizer:
    return Tokenizer.train("char", ["abcdefg"])


@pytest.fixture
def gpt(tokenizer: Tokenizer) -> GPT:
    torch.manual_seed(0)
    return GPT(GPTConfig(vocab_size=tokenizer.vocab_size, n_layer=1, d_model=16, block_size=8))


@pytest.mark.parametrize("write", [save_model, export])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_subject_knows_the_dtype_that_its_folder_stores(
    gpt: GPT, tokenizer: Tokenizer, tmp_path: Path, write: object, dtype: torch.dtype
) -> None:
    write(tmp_path / "model", in_dtype(gpt, dtype), tokenizer)  # type: ignore[operator]
    subject = open_subject(tmp_path / "model", "cpu")
    assert stored_dtype(tmp_path / "model") == subject.stored_dtype == dtype
    assert next(subject.model.parameters()).dtype == torch.float32
    assert subject.with_model(subject.model).stored_dtype == dtype


def test_a_config_that_says_no_dtype_leaves_it_to_the_weights(
    gpt: GPT, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    export(tmp_path / "model", in_dtype(gpt, torch.bfloat16), tokenizer)
    config = tmp_path / "model" / "config.json"
    config.write_text(config.read_text().replace('"dtype": "bfloat16",', ""))
    assert open_subject(tmp_path / "model", "cpu").stored_dtype == torch.bfloat16
    assert stored_dtype(tmp_path) is None


def test_a_model_in_another_dtype_is_a_copy_with_its_ties(gpt: GPT) -> None:
    weight = gpt.token_embedding.weight
    assert gpt.head.weight is weight
    assert in_dtype(gpt, torch.float32) is gpt
    made = in_dtype(gpt, torch.bfloat16)
    assert made.head.weight is made.token_embedding.weight
    assert made.token_embedding.weight.dtype == torch.bfloat16
    assert gpt.token_embedding.weight is weight
    assert weight.dtype == torch.float32
    back = as_stored(gpt, torch.bfloat16)
    assert torch.equal(back.head.weight, weight.bfloat16().float())
    assert not torch.equal(back.head.weight, weight)
