"""What models of every make write after a text."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from headwise.hub import Subject
from headwise.hub.writing import Spelling, open_ended, write_ids
from headwise.model import GPT, GPTConfig
from headwise.model.sampling import Sampling
from headwise.text import Tokenizer

transformers = pytest.importorskip("transformers")


def greedy(subject: Subject, ids: list[int], most: int, longest: int) -> list[int]:
    """The same without a cache."""
    found = list(ids)
    with torch.no_grad():
        for _ in range(most):
            found.append(int(subject.run(subject.batch([found[-longest:]]))[0, -1].argmax()))
    return found[len(ids) :]


@pytest.fixture(scope="module")
def theirs() -> Subject:
    from tokenizers import Tokenizer as Fast
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    words = {"<s>": 0, **{f"w{i}": i for i in range(1, 30)}}
    fast = Fast(WordLevel(words, unk_token="<s>"))
    fast.pre_tokenizer = Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=fast, eos_token="<s>")
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=30,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=16,
        initializer_range=0.6,
    )
    return Subject.of(transformers.LlamaForCausalLM(config), tokenizer, "llama")


def test_a_cache_changes_nothing_also_beyond_what_the_model_reads(theirs: Subject) -> None:
    ids = [3, 7, 2]
    assert list(write_ids(theirs, ids, 25, Sampling(0))) == greedy(theirs, ids, 25, 16)
    long = list(range(1, 21))
    assert list(write_ids(theirs, long, 3, Sampling(0))) == greedy(theirs, long, 3, 16)


def test_a_seed_draws_the_same_again(theirs: Subject) -> None:
    draws = [list(write_ids(theirs, [3, 7], 12, Sampling(1.0), seed)) for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]


@pytest.mark.parametrize(
    ("ids", "most", "sampling", "told"),
    [
        ([], 3, Sampling(), "prompt is empty"),
        ([1], 0, Sampling(), "at least 1 new token"),
        ([1], 3, Sampling(top_k=31), "top_k=31"),
    ],
)
def test_what_cannot_be_written(theirs: Subject, ids: list[int], most: int, sampling: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        write_ids(theirs, ids, most, sampling)


def test_a_text_is_open_without_its_end(theirs: Subject) -> None:
    assert open_ended(theirs, [0, 4, 0, 0]) == [0, 4]
    with pytest.raises(ValueError, match="no tokens"):
        open_ended(theirs, [0])


@pytest.mark.parametrize("text", ["나는 학교에 갔다 🙂 abc", "é\u0301x"])
@pytest.mark.parametrize("given", [1, 2, 5])
def test_pieces_join_to_the_text_and_hold_no_half_characters(text: str, given: int) -> None:
    tokenizer = Tokenizer.train("bpe", ["abc abc"], vocab_size=258)
    subject = Subject.of(GPT(GPTConfig(vocab_size=258, n_layer=1)), tokenizer)
    ids = subject.encode(text)
    spelling = Spelling(subject, ids[:given])
    parts = [spelling.push(index) for index in ids[given:]]
    assert not any("\ufffd" in part for part in parts)
    whole = subject.decode(ids)
    begun = subject.decode(ids[:given]).rstrip("\ufffd")
    assert begun + "".join(parts) + spelling.flush() == whole


def test_a_character_that_never_ends_is_told_in_the_end() -> None:
    tokenizer = Tokenizer.train("bpe", ["abc abc"], vocab_size=258)
    subject = Subject.of(GPT(GPTConfig(vocab_size=258, n_layer=1)), tokenizer)
    half = subject.encode("나")[:2]
    spelling = Spelling(subject, subject.encode("a"))
    assert [spelling.push(index) for index in half] == ["", ""]
    assert spelling.flush() == "\ufffd"
    assert spelling.flush() == "\ufffd"
