"""Losses over batches and whole files."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from headwise.model import GPT, GPTConfig
from headwise.text import TokenFile, Tokenizer, write_tokens
from headwise.training.evaluation import bits_per_byte, evaluate, evaluate_batches, token_losses

TEXT = "나는 학교에 버스로 갔다. the quick brown fox jumps 🙂"


@pytest.fixture
def make_file(tmp_path: Path) -> Callable[[str, str], tuple[Tokenizer, TokenFile]]:
    def make(kind: str, text: str = TEXT) -> tuple[Tokenizer, TokenFile]:
        tokenizer = Tokenizer.train(kind, [TEXT * 3], vocab_size=280)
        write_tokens(tmp_path / "t.tokens", [np.array(tokenizer.encode(text))], tokenizer)
        return tokenizer, TokenFile(tmp_path / "t.tokens", tokenizer)

    return make


def make_gpt(vocab_size: int) -> GPT:
    torch.manual_seed(0)
    config = GPTConfig(n_layer=1, n_head=2, d_model=16, block_size=8, dropout=0.5, vocab_size=vocab_size)
    model = GPT(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5)
    return model


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_the_whole_file_is_what_a_plain_loop_finds(make_file: Callable, batch_size: int) -> None:
    tokenizer, tokens = make_file("char")
    model = make_gpt(tokenizer.vocab_size).train()
    ids = tokens.tokens.astype(np.int64).tolist()
    found = evaluate(model, tokens, batch_size=batch_size)
    assert model.training  # as before
    model.eval()
    losses = []
    for start in range(0, len(ids) - 1, 8):
        window = ids[start : start + 9]
        log_p = F.log_softmax(model(torch.tensor([window[:-1]]))[0].double(), dim=-1)
        losses += [-log_p[i, target].item() for i, target in enumerate(window[1:])]
    assert found.tokens == len(ids) - 1 == len(losses)
    assert found.loss == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    assert evaluate(model, tokens, batch_size=batch_size) == found


def test_ignored_targets_count_neither_in_sum_nor_in_number() -> None:
    torch.manual_seed(0)
    logits, targets = torch.randn(2, 4, 7), torch.randint(0, 7, (2, 4))
    targets[1, 2:] = -100
    kept = targets != -100
    expected = F.cross_entropy(logits[kept], targets[kept], reduction="sum")
    torch.testing.assert_close(token_losses(logits, targets), expected)
    assert token_losses(logits, torch.full((2, 4), -100)).item() == 0.0


def test_a_batch_without_targets_is_skipped_and_nothing_at_all_is_an_error() -> None:
    model = make_gpt(7)
    x = torch.zeros(1, 8, dtype=torch.int64)
    y, nothing = torch.ones_like(x), torch.full_like(x, -100)
    assert evaluate_batches(model, [(x, nothing), (x, y)]) == evaluate_batches(model, [(x, y)])
    with pytest.raises(ValueError, match="nothing to evaluate"):
        evaluate_batches(model, [(x, nothing)])
    with pytest.raises(ValueError, match="nothing to evaluate"):
        evaluate_batches(model, [])


def test_the_mode_comes_back_even_after_an_error() -> None:
    model = make_gpt(7).train()

    def broken() -> list[tuple[Tensor, Tensor]]:
        yield torch.zeros(1, 8, dtype=torch.int64), torch.ones(1, 8, dtype=torch.int64)
        raise OSError("disk gone")

    with pytest.raises(OSError, match="disk gone"):
        evaluate_batches(model, broken())
    assert model.training


@pytest.mark.parametrize("kind", ["char", "bpe"])
def test_bits_per_byte_divides_by_the_bytes_of_the_text(make_file: Callable, kind: str) -> None:
    tokenizer, tokens = make_file(kind)
    evaluation = evaluate(make_gpt(tokenizer.vocab_size), tokens)
    first = len(tokenizer.token_bytes(int(tokens.tokens[0])))
    size = len(TEXT.encode()) - first
    expected = evaluation.loss * (tokens.count - 1) / math.log(2) / size
    assert bits_per_byte(evaluation, tokens, tokenizer) == pytest.approx(expected)
