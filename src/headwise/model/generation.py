"""Continuing a text token by token.

The rule past `block_size`: the model reads the last `block_size` tokens as if the text began there. Up to
there each step reads one token and takes the rest from the key/value cache; beyond it each step reads the
whole window again, since every token's position has changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, TypedDict, Unpack

import torch

from headwise.model.gpt import GPT
from headwise.model.sampling import Sampling
from headwise.text import TextStream, Tokenizer


class GenerationOptions(TypedDict, total=False):
    """Keyword arguments of `generate` and `stream`.

    max_new_tokens: how many tokens to add at most (default 200).
    temperature: 0 is greedy; 1 (default) draws from the model's own probabilities.
    top_k: draw from the k likeliest tokens only; None or 0 keeps all.
    top_p: draw from the fewest likeliest tokens whose probabilities reach p; None or 1 keeps all.
    seed: the same seed gives the same text; None (default) differs each time.
    stop: the text ends before the first of these strings, matched on text whatever the tokens.
    unknown: "error" (default) or "skip" prompt characters outside the vocabulary.
    """

    max_new_tokens: int
    temperature: float
    top_k: int | None
    top_p: float | None
    seed: int | None
    stop: Sequence[str]
    unknown: Literal["error", "skip"]


def generate_ids(
    model: GPT,
    ids: Sequence[int],
    max_new_tokens: int,
    sampling: Sampling,
    seed: int | None = None,
    *,
    use_cache: bool = True,
) -> Iterator[int]:
    """Return an iterator over `max_new_tokens` token ids that continue `ids`.

    `use_cache=False` reads the whole window at every step: the same tokens, more slowly.

    Raises:
        ValueError: no ids, fewer than one new token, a `top_k` beyond the vocabulary, or too large a seed.
    """
    if not ids:
        raise ValueError("the prompt is empty; give at least one token to continue from")
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens must be at least 1, got {max_new_tokens}")
    if sampling.top_k is not None and sampling.top_k > model.config.vocab_size:
        raise ValueError(
            f"top_k={sampling.top_k} is more than the {model.config.vocab_size} tokens of the vocabulary"
        )
    if seed is not None and not -(2**63) <= seed < 2**64:
        raise ValueError(f"seed must be a whole number of at most 64 bits, got {seed}")
    return _ids(model, list(ids), max_new_tokens, sampling, seed, use_cache)


@torch.no_grad()
def _ids(
    model: GPT, ids: list[int], max_new_tokens: int, sampling: Sampling, seed: int | None, use_cache: bool
) -> Iterator[int]:
    generator = torch.Generator()
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
    device = model.token_embedding.weight.device
    block_size = model.config.block_size
    window = ids[-block_size:]
    cache = model.new_cache() if use_cache and model.config.n_layer else None
    unread = window  # what the cache does not hold yet
    training = model.training
    model.eval()
    try:
        for _ in range(max_new_tokens):
            logits = model(torch.tensor([unread], device=device), cache=cache)
            token = sampling.draw(logits[0, -1], generator)
            yield token
            window.append(token)
            if len(window) > block_size:
                window, cache = window[-block_size:], None
            unread = window if cache is None else [token]
    finally:
        model.train(training)


def stream(
    model: GPT, tokenizer: Tokenizer, prompt: str, **options: Unpack[GenerationOptions]
) -> Iterator[str]:
    """Return an iterator over the continuation of `prompt`, piece by piece, never half a character.

    Everything is checked before it returns; see `GenerationOptions` for the arguments.

    Raises:
        ValueError: an empty prompt, unknown characters, an empty stop string, or a value out of range.
    """
    sampling = Sampling(options.get("temperature", 1.0), options.get("top_k"), options.get("top_p"))
    stop = tuple(options.get("stop", ()))
    if not prompt:
        raise ValueError("the prompt is empty; give at least one character to continue from")
    if "" in stop:
        raise ValueError("a stop string is empty, which would stop before the first token; leave it out")
    ids = tokenizer.encode(prompt, unknown=options.get("unknown", "error"))
    if not ids:
        raise ValueError("nothing of the prompt is in the vocabulary; give at least one known character")
    tokens = generate_ids(model, ids, options.get("max_new_tokens", 200), sampling, options.get("seed"))
    return _text_until_stop(tokens, TextStream(tokenizer), stop)


def generate(model: GPT, tokenizer: Tokenizer, prompt: str, **options: Unpack[GenerationOptions]) -> str:
    """Return the continuation of `prompt`, without the prompt; arguments and errors as for `stream`."""
    return "".join(stream(model, tokenizer, prompt, **options))


def default_prompt(tokenizer: Tokenizer) -> str:
    """Return what to continue when nothing is said: a line break, or the first known character."""
    return "\n" if tokenizer.encode("\n", unknown="skip") else tokenizer.decode([0])


def _text_until_stop(tokens: Iterator[int], decoder: TextStream, stop: tuple[str, ...]) -> Iterator[str]:
    """Decode `tokens`, hold back what may be the beginning of a stop string, end before the first one."""
    held = ""
    for token in tokens:
        held += decoder.push(token)
        if _first_stop(held, stop) is not None:
            break
        keep = _length_of_possible_stop(held, stop)
        ready, held = held[: len(held) - keep], held[len(held) - keep :]
        if ready:
            yield ready
    else:
        held += decoder.flush()
    end = _first_stop(held, stop)
    if held[:end]:
        yield held[:end]


def _first_stop(text: str, stop: tuple[str, ...]) -> int | None:
    found = [at for at in (text.find(string) for string in stop) if at >= 0]
    return min(found) if found else None


def _length_of_possible_stop(text: str, stop: tuple[str, ...]) -> int:
    """Length of the longest end of `text` that a stop string could begin with."""
    longest = max((len(string) for string in stop), default=1) - 1
    for length in range(min(longest, len(text)), 0, -1):
        if any(string.startswith(text[-length:]) for string in stop):
            return length
    return 0
