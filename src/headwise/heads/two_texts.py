"""Statistics of models that read one text and write another: encoder, decoder, and what the one sees of the
other."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from headwise.heads.documents import encode_all
from headwise.heads.seam import AttentionCall, observe
from headwise.heads.sharding import this_shard
from headwise.heads.statistics_collector import (
    StatisticsCollector,
    batches,
    check_batch_tokens,
    check_no_nan,
    result_of_all,
)
from headwise.heads.statistics_result import HeadStatistics
from headwise.hub import Subject, attention_layers, evaluating


def pair_statistics(
    model: Any,
    tokenizer: Any,
    pairs: Sequence[tuple[str, str]],
    *,
    received: bool = True,
    every: int = 1,
    batch_tokens: int = 4096,
    progress: Callable[[int, int], None] | None = None,
) -> HeadStatistics:
    """Say what every head of an encoder–decoder of transformers does, such as T5, BART or Marian.

    pairs: what the encoder reads, and what the decoder is given to write. received, every, batch_tokens,
    progress: as for `statistics`, counted in pairs; batch_tokens in those of the longer texts.

    Layers count in the order in which they run: those of the encoder, then of each block of the decoder the
    one that sees what was written and the one that sees the encoder (`hub.attention_layers(model)` names
    them). In the last, masses on the own position and its neighbours are NaN, "first", special and
    punctuation tokens are those that the encoder read.

    Under torch.distributed each process reads its share of the pairs, and all get the statistics of all.

    Raises TypeError for what are no pairs of texts, ValueError for a model that does not read two texts, or
    does not say what its decoder begins with, and as `statistics` does.
    """
    forward = getattr(model, "forward", None)
    if forward is None or "decoder_input_ids" not in inspect.signature(forward).parameters:
        raise ValueError(
            f"model must be an encoder–decoder of transformers, got {type(model).__name__}; "
            "heads.statistics is for models that read one text"
        )
    start = getattr(model.config, "decoder_start_token_id", None)
    if start is None:
        raise ValueError(
            "model.config.decoder_start_token_id is not set; set it to the token that the decoder begins with"
        )
    _check_pairs(pairs)
    check_batch_tokens(batch_tokens)
    reader = Subject.of(model.get_encoder(), tokenizer, type(model).__name__)
    sources = encode_all(reader, [first for first, _ in pairs])
    wanted = [tokenizer(text_target=second, verbose=False)["input_ids"] for _, second in pairs]
    targets = encode_all(reader, [[start, *ids[:-1]] for ids in wanted])
    collector = StatisticsCollector(attention_layers(model), received=received, every=every)
    shard = this_shard()
    longer = [max(pair, key=len) for pair in zip(sources, targets, strict=True)]
    for unit, (first, group) in enumerate(batches(longer, batch_tokens)):
        if not shard.takes(unit):
            continue
        here = slice(first, first + len(group))
        source, target = reader.batch(sources[here]), reader.batch(targets[here])

        def look(call: AttentionCall, source: Any = source, target: Any = target) -> None:
            if call.layer.cross:
                collector.update(call, target, source)
            else:
                collector.update(call, target if call.layer.causal else source)

        with torch.no_grad(), evaluating(model), observe(model, look):
            output = model(
                input_ids=source.ids,
                attention_mask=source.real.long(),
                decoder_input_ids=target.ids,
                decoder_attention_mask=target.real.long(),
                use_cache=False,
            )
        check_no_nan(output[0], target, reader.name)
        if progress is not None:
            progress(here.stop, len(pairs))
    return result_of_all(collector)


def _check_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    if isinstance(pairs, str) or not isinstance(pairs, Sequence):
        raise TypeError(f"pairs must be a list of pairs of texts, got {type(pairs).__name__}")
    for number, pair in enumerate(pairs):
        if not (isinstance(pair, tuple | list) and len(pair) == 2 and all(isinstance(t, str) for t in pair)):
            raise TypeError(f"pair {number} must be two texts, got {pair!r}")
        if not pair[1]:
            raise ValueError(f"the second text of pair {number} is empty; leave the pair out")
