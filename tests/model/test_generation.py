"""Generated text: the cache, the end of the context, stop strings, streaming."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headwise.model import GPT, PRESETS, Sampling, generate, generate_ids, stream
from headwise.model.generation import _text_until_stop
from headwise.text import TextStream, Tokenizer

Make = Callable[..., GPT]


@pytest.mark.parametrize("preset", list(PRESETS))
@pytest.mark.parametrize("length", [1, 2, 7, 8, 20])
def test_cache_and_no_cache_write_the_same_tokens_past_the_context(
    make_gpt: Make, preset: str, length: int
) -> None:
    model = make_gpt(preset)
    prompt = torch.randint(
        0, model.config.vocab_size, (length,), generator=torch.Generator().manual_seed(2)
    ).tolist()
    greedy = Sampling(0.0)
    cached = list(generate_ids(model, prompt, 20, greedy))
    assert cached == list(generate_ids(model, prompt, 20, greedy, use_cache=False))
    window = list(prompt)
    for token in cached:  # the stated rule, written out: the last block_size tokens, read afresh
        logits = model(torch.tensor([window[-8:]]))[0, -1]
        assert token == int(logits.argmax())
        window.append(token)


@pytest.mark.parametrize("preset", list(PRESETS))
def test_explicit_and_fused_attention_write_the_same_text(
    make_gpt: Make, preset: str, tokenizer: Tokenizer
) -> None:
    texts = {}
    for backend in ("reference", "sdpa"):
        model = make_gpt(preset)
        for block in model.blocks:
            block.attention.backend = backend
        texts[backend] = [
            generate(model, tokenizer, prompt, max_new_tokens=20, temperature=0)
            for prompt in ("t", "the quick brown fox")
        ]
    assert texts["reference"] == texts["sdpa"]


def test_no_state_leaks_between_calls(make_gpt: Make, tokenizer: Tokenizer) -> None:
    model = make_gpt()
    first = generate(model, tokenizer, "the ", max_new_tokens=12, temperature=0)
    generate(model, tokenizer, "dog", max_new_tokens=30, temperature=0)
    assert generate(model, tokenizer, "the ", max_new_tokens=12, temperature=0) == first


def test_a_seed_fixes_the_text_and_greedy_ignores_it(make_gpt: Make, tokenizer: Tokenizer) -> None:
    model = make_gpt(scale=2)
    texts = {generate(model, tokenizer, "fox", max_new_tokens=20, seed=s) for s in (1, 1, 2)}
    assert len(texts) == 2
    assert (
        len({generate(model, tokenizer, "fox", temperature=0, max_new_tokens=9, seed=s) for s in (1, 2)}) == 1
    )


def test_dropout_is_off_while_generating_and_the_mode_comes_back(
    make_gpt: Make, tokenizer: Tokenizer
) -> None:
    model = make_gpt(dropout=0.5).train()
    texts = {generate(model, tokenizer, "fox", max_new_tokens=9, temperature=0) for _ in range(3)}
    assert len(texts) == 1
    assert model.training


@pytest.mark.parametrize("text", ["🙂你好 나는", "école", "the fox"])
def test_a_stream_never_prints_half_a_character(bpe: Tokenizer, text: str) -> None:
    ids = bpe.encode(text)
    pieces = list(_text_until_stop(iter(ids), TextStream(bpe), ()))
    assert "".join(pieces) == text == bpe.decode(ids)
    assert not any("\ufffd" in piece for piece in pieces)


def spell(text: str, tokenizer: Tokenizer) -> Iterator[int]:
    return iter(tokenizer.encode(text))


@pytest.mark.parametrize(
    ("text", "stop", "expected"),
    [
        ("fox jumps\n\n\nthe", ["\n\nt"], "fox jumps\n"),
        ("the quick fox", ["quack", "fox"], "the quick "),
        ("the quick fox", ["zzz"], "the quick fox"),
        ("the quick fox", ["the"], ""),
        ("the quick", ["quick brown"], "the quick"),
        ("the thee", ["the ", "h"], "t"),
    ],
)
def test_text_ends_before_the_first_stop_string(
    tokenizer: Tokenizer, bpe: Tokenizer, text: str, stop: list[str], expected: str
) -> None:
    for kind in (tokenizer, bpe):
        pieces = list(_text_until_stop(spell(text, kind), TextStream(kind), tuple(stop)))
        assert "".join(pieces) == expected


@given(text=st.text("ab", max_size=30), stop=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_streamed_text_equals_cutting_the_whole_text(text: str, stop: list[str]) -> None:
    tokenizer = Tokenizer.train("char", ["ab"])
    pieces = list(_text_until_stop(spell(text, tokenizer), TextStream(tokenizer), tuple(stop)))
    # The stream stops at the first token that completes a stop string, then at the earliest one in it.
    ends = [text.find(s) + len(s) for s in stop if s in text]
    seen = text[: min(ends)] if ends else text
    starts = [seen.find(s) for s in stop if s in seen]
    assert "".join(pieces) == (seen[: min(starts)] if starts else seen)
    assert "" not in pieces


def test_bad_requests_are_refused_before_anything_is_generated(make_gpt: Make, tokenizer: Tokenizer) -> None:
    model = make_gpt()
    cases: list[tuple[str, dict, str]] = [
        ("", {}, "prompt is empty"),
        ("fox", {"max_new_tokens": 0}, "max_new_tokens must be at least 1, got 0"),
        ("fox", {"temperature": -1}, "temperature"),
        ("fox", {"top_k": 10_000}, "top_k=10000 is more than the"),
        ("fox", {"top_p": 0}, "top_p"),
        ("fox", {"seed": 10**30}, "seed must be a whole number of at most 64 bits"),
        ("fox", {"stop": [""]}, "stop string is empty"),
        ("fox Q", {}, "'Q'"),
        ("QQ", {"unknown": "skip"}, "nothing of the prompt is in the vocabulary"),
    ]
    for prompt, options, message in cases:
        with pytest.raises(ValueError, match=message):
            stream(model, tokenizer, prompt, **options)


def test_unknown_characters_can_be_skipped(make_gpt: Make, tokenizer: Tokenizer) -> None:
    model = make_gpt()
    options = {"max_new_tokens": 8, "temperature": 0}
    assert generate(model, tokenizer, "foQx", unknown="skip", **options) == generate(
        model, tokenizer, "fox", **options
    )
