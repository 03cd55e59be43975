"""Costs as text for the terminal: exact numbers first, then in units that are easier to read."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from headwise.cost import Architecture, Candidate, Check, Cost, Fit, Workload, compare
from headwise.cost.advice import BAND_REASON
from headwise.cost.numbers import say_bytes
from headwise.report.tables import aligned


def cost_lines(architecture: Architecture, cost: Cost) -> Iterator[str]:
    """Everything in `cost`, in sections."""
    w = cost.workload
    yield from _heading([(architecture, cost)])
    yield from _section("Parameters", _parameters(cost))
    yield from _section(
        "Memory to run",
        [
            ("weights", say_bytes(cost.weights_bytes)),
            ("KV cache, all layers", say_bytes(cost.kv_cache_bytes)),
            ("  for each token", say_bytes(cost.kv_cache_bytes_per_token)),
        ],
    )
    yield from _section(
        f"Memory to train (AdamW, states in {w.states})",
        [
            ("weights, gradients, moments", say_bytes(cost.training_state_bytes)),
            ("score tensor, one layer, B·H·T²", say_bytes(cost.score_tensor_bytes)),
            ("score tensor, all layers", say_bytes(cost.score_tensor_bytes_all_layers)),
            ("kept for backward, tiled attention", say_bytes(cost.activation_bytes_tiled)),
            ("kept for backward, scores written out", say_bytes(cost.activation_bytes_explicit)),
            ("  of which scores (softmax in fp32)", say_bytes(cost.score_tensors_kept_bytes)),
            ("peak of a step, tiled attention", say_bytes(cost.training_peak_bytes_tiled)),
            ("peak of a step, scores written out", say_bytes(cost.training_peak_bytes_explicit)),
        ],
    )
    yield from _section(
        "FLOPs (multiply and add count as two)",
        [
            ("forward, B·T tokens", _flops(cost.flops_forward)),
            ("  on pairs that the mask hides", _flops(cost.flops_forward_on_hidden_pairs)),
            ("backward", _flops(cost.flops_backward)),
            ("  more with tiled attention", _flops(cost.flops_backward_tiled_extra)),
            ("prefill, B·T tokens", _flops(cost.flops_prefill)),
            ("one new token that sees T", _flops(cost.flops_decode_token)),
        ],
    )
    yield from _section(
        "Arithmetic intensity (FLOPs per byte read or written)",
        [
            ("prefill", _ratio(cost.flops_per_byte_prefill)),
            ("decoding, B sequences", _ratio(cost.flops_per_byte_decode)),
            ("  its attention alone", _ratio(cost.flops_per_byte_decode_attention)),
        ],
    )
    missing = _not_counted(architecture)
    if missing:
        yield ""
        yield f"Not counted, because not given: {', '.join(missing)}."
    yield from cost.notes


def _heading(models: Sequence[tuple[Architecture, Cost]]) -> Iterator[str]:
    """Which models, and what they are asked to do, which is the same for all but for the types of numbers."""
    numbers = [_numbers(cost.workload) for _, cost in models]
    alike = len(set(numbers)) == 1
    for (architecture, cost), own in zip(models, numbers, strict=True):
        yield f"{cost.name}: {_sizes(architecture)}" + ("" if alike else f"  {own}")
    w = models[0][1].workload
    yield f"B={w.batch}  T={w.length}" + (f"  {numbers[0]}" if alike else "")
    for architecture, cost in models:
        if architecture.context is not None and w.length > architecture.context:
            who = "the model" if len(models) == 1 else cost.name
            yield f"Note: {who} was made for at most {architecture.context:,} tokens."


def _numbers(workload: Workload) -> str:
    scales = "" if workload.scales == "none" else f", a scale per {workload.scales}"
    return f"{workload.dtype}  (cache: {workload.cached}{scales})"


def fit_lines(fits: Sequence[Fit], cost: Cost) -> Iterator[str]:
    """What fits the memory, as a table."""
    w = cost.workload
    rows = [("", f"longest T at B={w.batch}", f"largest B at T={w.length}")]
    rows += [(fit.purpose, _limit(fit.longest_context), _limit(fit.largest_batch)) for fit in fits]
    yield ""
    yield f"What fits {say_bytes(fits[0].memory_bytes)}, the model's own context aside"
    yield from _indented(aligned(rows))


def advice_lines(candidates: Sequence[Candidate], most: int = 12) -> Iterator[str]:
    """Candidates as a table, the reason for the band of head widths below it."""
    rows: list[tuple[str, ...]] = [("H", "G", "d_head", "KV cache", "score tensor, one layer", "parameters")]
    for c in candidates[:most]:
        sizes = say_bytes(c.kv_cache_bytes), say_bytes(c.score_tensor_bytes)
        rows.append((str(c.n_head), str(c.n_kv_head), str(c.d_head), *sizes, f"{c.attention_parameters:,}"))
    yield "Heads that fit, most cached keys and values first; parameters are one layer's attention"
    yield from _indented(aligned(rows, left=()))
    if len(candidates) > most:
        yield f"  … and {len(candidates) - most} with smaller caches (--json lists all)"
    yield from textwrap.wrap(f"d_head is kept from 64 to 128. {BAND_REASON}", 100)


def check_lines(checks: Sequence[Check]) -> Iterator[str]:
    """Predicted beside measured, and how it was measured."""
    rows: list[tuple[str, ...]] = [("", "predicted", "measured", "", "how")]
    for check in checks:
        same = check.predicted == check.measured
        within = "equal" if same else f"{check.predicted / check.measured - 1:+.1%}"
        verdict = within if check.agrees else "DIFFERS"
        rows.append((check.cost, f"{check.predicted:,}", f"{check.measured:,}", verdict, check.how))
    yield from aligned(rows, left=(0, 4))


def change_lines(before: tuple[Architecture, Cost], after: tuple[Architecture, Cost]) -> Iterator[str]:
    """Two models side by side: what the second takes of what the first does."""
    yield from _heading([before, after])
    yield ""
    rows: list[tuple[str, ...]] = [("", before[1].name, after[1].name, "share of the first")]
    for change in compare(before[1], after[1]):
        share = "–" if change.ratio is None else f"{100 * change.ratio:.1f} %"
        values = (_short(change.cost, value) for value in (change.before, change.after))
        rows.append((_COMPARED[change.cost], *values, share))
    yield from aligned(rows)
    yield ""
    missing = [(cost.name, ", ".join(_not_counted(architecture))) for architecture, cost in (before, after)]
    notes = [f"Not counted in {name}, because not given: {parts}." for name, parts in missing if parts]
    yield from dict.fromkeys((*notes, *before[1].notes, *after[1].notes))
    yield "D width, L layers, H query heads, G key/value heads, K width of a head; B sequences of T tokens."
    yield "--json gives exact numbers, and headwise cost MODEL all that a model costs."


_COMPARED = {
    "parameters": "parameters",
    "weights_bytes": "weights",
    "kv_cache_bytes": "KV cache, all layers",
    "score_tensor_bytes_all_layers": "score tensors, all layers",
    "activation_bytes_explicit": "kept for backward, scores written out",
    "activation_bytes_tiled": "kept for backward, tiled attention",
    "training_peak_bytes_tiled": "peak of a training step, tiled attention",
    "flops_forward": "FLOPs of a forward pass, B·T tokens",
    "flops_prefill": "FLOPs of prefill, B·T tokens",
    "flops_decode_token": "FLOPs of one new token that sees T",
}
"""What is compared, in words."""


def _short(cost: str, number: int) -> str:
    """Say a number in the unit that is easiest to read."""
    if cost.startswith("flops"):
        told = _flops(number)
    else:
        told = say_bytes(number) if "bytes" in cost else f"{number:,}"
    return told.partition("(")[2].rstrip(")") or told


def _sizes(architecture: Architecture) -> str:
    a = architecture
    parts = [f"D={a.d_model}", f"L={a.n_layer}"]
    for letter, name in (("H", "n_head"), ("G", "n_kv_head"), ("K", "d_head")):
        parts.append(f"{letter}={_several([getattr(layer.attention, name) for layer in a.layers])}")
    windows = {layer.attention.window for layer in a.layers} - {None}
    if windows:
        sliding = sum(layer.attention.window is not None for layer in a.layers)
        parts.append(f"window={_several(sorted(w for w in windows if w))} in {sliding} of {a.n_layer} layers")
    return "  ".join(parts)


def _several(numbers: Sequence[int]) -> str:
    kinds = list(dict.fromkeys(numbers))
    if len(kinds) <= 1:
        return str(kinds[0]) if kinds else "–"
    return ",".join(map(str, numbers)) if len(numbers) <= 12 else f"{min(kinds)}…{max(kinds)} by layer"


def _parameters(cost: Cost) -> list[tuple[str, str]]:
    rows = [(part, f"{number:,}") for part, number in cost.parameters_by_part.items()]
    rows.append(("all", f"{cost.parameters:,}"))
    if cost.parameters_active != cost.parameters:
        rows.append(("active for one token", f"{cost.parameters_active:,}"))
    return rows


def _not_counted(architecture: Architecture) -> list[str]:
    missing = []
    if architecture.layers and all(layer.feed_forward is None for layer in architecture.layers):
        missing.append("feed-forward parts")
    if not architecture.vocab_size:
        missing.append("embeddings and output layer")
    if architecture.norm == "none":
        missing.append("norms")
    return missing


def _section(title: str, rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    yield ""
    yield title
    exact = [(name, *value.split(" ", 1)) if " " in value else (name, value, "") for name, value in rows]
    yield from _indented(aligned(exact, left=(0, 2)))


def _indented(lines: Sequence[str]) -> Iterator[str]:
    return (f"  {line}" for line in lines)


def _limit(number: int | None) -> str:
    return "any" if number is None else "none" if number == 0 else f"{number:,}"


def _flops(number: int) -> str:
    for unit, size in (("P", 10**15), ("T", 10**12), ("G", 10**9), ("M", 10**6)):
        if number >= size:
            return f"{number:,} ({number / size:.4g} {unit}FLOP)"
    return f"{number:,}"


def _ratio(number: float | None) -> str:
    return "–" if number is None else f"{number:,.2f}"
