"""What a model takes, measured: parameters, bytes of a real key/value cache, seconds to read and to write.

Letters: T tokens.
"""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from headwise.cost.cache import kv_cache_bytes
from headwise.cost.formats.reader import from_hf_config
from headwise.cost.own import from_config
from headwise.cost.timing import Timing, timing_of, turns
from headwise.cost.workload import Workload
from headwise.hub.caches import cache_name
from headwise.hub.modes import evaluating
from headwise.hub.subject import Subject, most_tokens
from headwise.model import GPT

_DTYPES = {torch.float64: "fp64", torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
_DECODED = 16
"""Tokens written one by one in each round of timing."""


@dataclass(frozen=True)
class Footprint:
    """What a model holds."""

    parameters: int
    cache_bytes: int
    """Of the keys and values of one text, counted in a cache that was filled."""
    predicted: int | None
    """The same by the formula of `headwise.cost`; None for a model that it does not know."""


@torch.no_grad()
def footprint(subject: Subject, length: int) -> Footprint:
    """Fill a cache with so many tokens and count what is in it.

    Raises:
        ValueError: more tokens than the model can read, or none; a model without a cache.
    """
    check_length([subject], length, least=1)
    model = subject.model
    with evaluating(model):
        cache = _read(model, _tokens(subject, length, 0), length)
    return Footprint(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        cache_bytes=_cache_bytes(cache),
        predicted=_predicted(model, length),
    )


@dataclass(frozen=True)
class Speed:
    """Seconds of one model."""

    prefill: Timing
    """To read the text into an empty cache."""
    decode: Timing
    """For each token that follows, one by one."""
    read: int
    """Tokens that are read at once."""
    written: int
    """Tokens that follow."""


@torch.no_grad()
def speeds(
    subjects: Sequence[Subject], length: int, *, seconds: float = 5.0, least: int = 5, seed: int = 0
) -> list[Speed]:
    """Time models in turn: reading a text into a cache, then tokens one by one until there are `length`.

    seconds: how long to go on, once each has run `least` times (and once before that).

    Raises:
        ValueError: a length below 2 or beyond what a model can read; fewer than 2 rounds.
    """
    check_length(subjects, length, least=2)
    if least < 2 or not 0 <= seconds < math.inf:
        raise ValueError(f"timing takes at least 2 rounds and 0 or more seconds, got {least} and {seconds}")
    written = min(_DECODED, length // 2)
    read = length - written
    prefill: list[list[float]] = [[] for _ in subjects]
    decode: list[list[float]] = [[] for _ in subjects]
    texts = [_tokens(subject, length, seed) for subject in subjects]
    for subject, ids in zip(subjects, texts, strict=True):
        _laps(subject, ids, read)
    for turn in turns(len(subjects), seconds=seconds, least=least):
        reading, writing = _laps(subjects[turn], texts[turn], read)
        prefill[turn].append(reading)
        decode[turn].append(writing / written)
    return [
        Speed(timing_of(reading), timing_of(writing), read, written)
        for reading, writing in zip(prefill, decode, strict=True)
    ]


def this_machine(device: torch.device) -> str:
    """Say on what times are measured."""
    chip = (
        torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()} {device.type}"
    )
    threads = torch.get_num_threads()
    return f"on this machine ({chip}, {threads} thread{'s' * (threads > 1)}, PyTorch {torch.__version__})"


def check_length(subjects: Sequence[Subject], length: int, *, least: int) -> None:
    """Raise ValueError unless all models can read so many tokens."""
    longest = most_tokens(subjects)
    if length < least or (longest is not None and length > longest):
        raise ValueError(f"length must lie in {least} … {longest or 'any'} tokens, got {length}")


def _laps(subject: Subject, ids: Tensor, read: int) -> tuple[float, float]:
    """Return the seconds of reading the first tokens at once, and of all others one by one."""
    model = subject.model
    with evaluating(model):
        _wait(ids.device)
        start = time.perf_counter()
        cache = _read(model, ids[:, :read], ids.shape[1])
        _wait(ids.device)
        middle = time.perf_counter()
        for place in range(read, ids.shape[1]):
            _step(model, ids[:, place : place + 1], cache)
        _wait(ids.device)
        return middle - start, time.perf_counter() - middle


def _wait(device: torch.device) -> None:
    if device.type in ("cuda", "mps"):
        getattr(torch, device.type).synchronize()


def _tokens(subject: Subject, length: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(subject.vocab_size, (1, length), generator=generator).to(subject.device)


def _read(model: nn.Module, ids: Tensor, room: int) -> Any:
    """Read a text into a new cache and return it. room: tokens that it is to hold in the end."""
    if isinstance(model, GPT):
        cache = model.new_cache(1, room)
        model(ids, cache=cache)
        return cache
    name = _cache_name(model)
    return getattr(model(input_ids=ids, use_cache=True), name)


def _step(model: nn.Module, ids: Tensor, cache: Any) -> None:
    if isinstance(model, GPT):
        model(ids, cache=cache)
    else:
        model(input_ids=ids, use_cache=True, **{_cache_name(model): cache})


def _cache_name(model: nn.Module) -> str:
    name = cache_name(model)
    if name is None:
        raise ValueError(f"{type(model).__name__} keeps no keys and values, so its cache cannot be measured")
    return name


def _cache_bytes(cache: Any) -> int:
    if hasattr(cache, "nbytes"):
        return int(cache.nbytes)
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)


def _predicted(model: nn.Module, length: int) -> int | None:
    """Return what the formula says, None where it cannot."""
    dtype = _DTYPES.get(next(model.parameters()).dtype)
    if dtype is None:
        return None
    try:
        if isinstance(model, GPT):
            architecture = from_config(model.config)
        else:
            architecture = from_hf_config(cast(Any, model.config).to_dict())
    except ValueError:  # of a kind that costs are not computed for
        return None
    return kv_cache_bytes(architecture, Workload(length=length, dtype=dtype))
