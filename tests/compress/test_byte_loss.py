"""Losses in bits per byte of models whose tokenizers differ."""

from __future__ import annotations

import math

import pytest
import torch

from headwise.compress import byte_losses
from headwise.compress.byte_loss import _pieces
from headwise.hub import Subject
from headwise.model import GPT, GPTConfig
from headwise.text import Tokenizer

TEXT = "나는 학교에 간다. abc, abc; the quick brown fox " * 12


def uniform(tokenizer: Tokenizer, block_size: int = 64) -> Subject:
    """A model to which all tokens are equally likely, always."""
    config = GPTConfig(vocab_size=tokenizer.vocab_size, n_layer=1, n_head=1, d_model=8, block_size=block_size)
    model = GPT(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    return Subject.of(model, tokenizer, f"{tokenizer.vocab_size} tokens")


def test_models_of_different_tokenizers_predict_the_same_bytes() -> None:
    char, bpe = Tokenizer.train("char", [TEXT]), Tokenizer.train("bpe", [TEXT], vocab_size=300)
    found = byte_losses([uniform(char), uniform(bpe)], TEXT)
    pieces = list(_pieces(TEXT, 32))  # 2 · 32 characters are 64 tokens of the first
    assert found.pieces == len(pieces)
    assert found.text_bytes == len(TEXT[32:].encode())
    for tokenizer, loss in zip((char, bpe), found.losses, strict=True):
        tokens = sum(len(tokenizer.encode(piece)) for _, piece in pieces)
        assert loss.bits_per_byte == pytest.approx(
            tokens * math.log2(tokenizer.vocab_size) / found.text_bytes
        )
    one, other = found.losses
    assert (one.more, one.low, one.high) == (0, 0, 0)
    assert other.more == pytest.approx(other.bits_per_byte - one.bits_per_byte)
    assert other.low < other.more < other.high


def test_pieces_are_the_whole_text_behind_the_first_and_begin_with_white_space() -> None:
    pieces = list(_pieces(TEXT, 16))
    assert "".join(piece for _, piece in pieces) == TEXT[16:]
    assert all(piece[0].isspace() for _, piece in pieces[1:])
    for context, piece in pieces:
        assert TEXT[TEXT.index(context + piece) :].startswith(context + piece)
        assert len(context) == 16 >= len(piece)
    assert [piece for _, piece in _pieces("x" * 20, 8)] == ["x" * 8, "x" * 4]  # no white space to cut at


def test_the_order_of_models_changes_only_who_is_compared_with_whom() -> None:
    char, bpe = Tokenizer.train("char", [TEXT]), Tokenizer.train("bpe", [TEXT], vocab_size=300)
    forth = byte_losses([uniform(char), uniform(bpe)], TEXT).losses
    there = byte_losses([uniform(bpe), uniform(char)], TEXT).losses
    assert there[1].bits_per_byte == forth[0].bits_per_byte
    assert there[1].more == pytest.approx(-forth[1].more)


def test_what_cannot_be_compared_is_refused() -> None:
    char = Tokenizer.train("char", [TEXT])
    with pytest.raises(ValueError, match="there is no model"):
        byte_losses([], TEXT)
    with pytest.raises(ValueError, match="has 7 characters, of which no two pieces"):
        byte_losses([uniform(char)], TEXT[:7])
    with pytest.raises(ValueError, match="never saw them in training"):
        byte_losses([uniform(char)], TEXT + "Ω")
    broken = uniform(char)
    with torch.no_grad():
        next(broken.model.parameters())[0, 0] = math.nan
    with pytest.raises(ValueError, match="not finite"):
        byte_losses([uniform(char), broken], TEXT)
