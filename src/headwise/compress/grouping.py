"""Fewer key/value heads in a trained model: MHA to GQA and MQA, GQA to less.

Letters: H query heads, G key/value heads, M members of a group.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from headwise.attention.counts import counts_that_fit
from headwise.compress import methods, values
from headwise.compress.averages import renormed
from headwise.compress.layer_by_layer import LayerByLayer
from headwise.compress.merge import Merge, merge_keys, merge_values
from headwise.compress.moments import Moments, gram_of, gram_of_planes, shrunk, with_one
from headwise.compress.partition import (
    Partition,
    aligned_plane_similarity,
    aligned_similarity,
    most_alike,
    neighbours,
)
from headwise.compress.refine import refined_keys
from headwise.compress.rows import given_rows, losses
from headwise.hub.subject import Subject
from headwise.hub.surgery import (
    LayerHandle,
    LayerWeights,
    head_counts,
    layer_handles,
    read_weights,
    settle,
    write_weights,
)

Method = Literal["mean", "first", "mean+renorm", "aligned", "aligned+renorm", "closed", "fitted"]
Groups = Literal["contiguous", "similar"]

WITHOUT_TEXT: tuple[Method, ...] = ("mean", "first", "mean+renorm")
"""The methods that look at weights only."""


@dataclass(frozen=True, eq=False)
class GroupResult:
    """A model with fewer key/value heads, and how it came about."""

    model: nn.Module
    method: Method
    groups: Groups
    before: list[tuple[int, int]]
    """Query heads and key/value heads of each layer."""
    after: list[tuple[int, int]]
    partitions: list[Partition]
    """Which key/value heads were merged in each layer."""
    candidates: dict[tuple[Method, Groups], float] = field(default_factory=dict)
    """What `auto` chose by: the loss of each candidate, in nats per token, on text that none was fitted to.
    The least of them flatters the one chosen; what it is worth is its loss on text that nothing has seen."""

    @property
    def cache_share(self) -> float:
        """The size of the key/value cache as a share of what it was."""
        return sum(g for _, g in self.after) / sum(g for _, g in self.before)


def group(
    source: Subject | nn.Module,
    n_kv_head: int | Sequence[int],
    method: Method | Literal["auto"] = "auto",
    texts: Iterable[str] | Sequence[Tensor] = (),
    *,
    groups: Groups | Literal["auto"] = "contiguous",
    held_out: Iterable[str] | Sequence[Tensor] = (),
    on_layer: Callable[[Method, Groups, int, int], None] | None = None,
    on_candidate: Callable[[Method, Groups, float], None] | None = None,
) -> GroupResult:
    """Return a copy of a model with fewer key/value heads, that computes as nearly the same as it can.

    source: a subject, or the model itself: a GPT of ours or a Llama-shaped transformers model.
    n_kv_head: how many key/value heads to leave, in every layer or for each layer; a divisor of what it has.
    method: `mean`, `first`, `mean+renorm` look at the weights only. `aligned` and `aligned+renorm` turn heads
        to one another first, `closed` finds the best shared head, `fitted` goes on from there until every
        head reads as nearly what it did as it can; these need calibration texts. Each layer is calibrated on
        what the converted layers below it give. `auto` measures all of them on text that they were not
        fitted to and keeps the best.
    texts: calibration texts, some 10,000 to 50,000 tokens; or rows of token ids (B, T), which a bare model
        needs.
    groups: `contiguous` merges neighbours, `similar` the heads that are most alike; `auto` measures both.
    held_out: what `auto` chooses by, texts or rows like `texts`; default the last fifth of `texts`. Judge
        what it gives on other text.
    on_layer: called after each layer with the method, the groups, how many layers are done and how many
        there are; `auto` goes through all layers for each candidate.
    on_candidate: called with what `auto` has measured: method, groups, loss in nats per token.

    Raises:
        ValueError: numbers of heads that do not divide those there are or are more; an unknown method; no
            calibration text; a model that is not Llama-shaped or is quantised.
    """
    model = source.model if isinstance(source, Subject) else source
    counts = wanted_counts(model, n_kv_head)
    _check_choice("method", method, (*get_args(Method), "auto"))
    _check_choice("groups", groups, (*get_args(Groups), "auto"))
    rows = given_rows(source, texts)
    if method != "auto" and groups != "auto":
        return _grouped(model, counts, method, groups, rows, on_layer)
    measured_on = given_rows(source, held_out)
    if not measured_on:
        cut = max(1, len(rows) // 5)
        rows, measured_on = rows[:-cut], rows[-cut:]
    if not rows or not measured_on:
        raise ValueError(
            "auto calibrates on one part of the text and measures on another; "
            "give more calibration text, or a method and groups by name"
        )
    best, candidates = None, {}
    for one in get_args(Method) if method == "auto" else (method,):
        for way in get_args(Groups) if groups == "auto" else (groups,):
            made = _grouped(model, counts, one, way, rows, on_layer)
            candidates[one, way] = float(losses(made.model, measured_on).mean())
            if on_candidate is not None:
                on_candidate(one, way, candidates[one, way])
            if best is None or candidates[one, way] < candidates[best.method, best.groups]:
                best = made
    if best is None:
        raise ValueError("auto has nothing to choose from")
    return replace(best, candidates=candidates)


def expand(model: nn.Module, n_kv_head: int | None = None) -> nn.Module:
    """Return a copy of a model with more key/value heads that computes the same: heads are repeated.

    n_kv_head: a multiple of what every layer has and a divisor of its query heads; default the query heads.
    So layers that differ come to one number, which stock classes need.

    Raises:
        ValueError: a number that does not fit.
    """
    made = copy.deepcopy(model)
    for handle in layer_handles(made):
        h, g = handle.n_head, handle.n_kv_head
        wanted = h if n_kv_head is None else n_kv_head
        if wanted < 1 or wanted % g or h % wanted:
            raise ValueError(
                f"{handle.name} has {h} query heads and {g} key/value heads, which cannot be expanded to "
                f"n_kv_head={wanted}: give a multiple of {g} that divides {h}"
            )
        weights = read_weights(handle)
        repeated = [head for head in range(g) for _ in range(wanted // g)]
        write_weights(handle, weights.take(range(h), repeated))
    settle(made)
    return made


def wanted_counts(model: nn.Module, n_kv_head: int | Sequence[int]) -> list[int]:
    """Return how many key/value heads each layer shall have, checked against how many it has.

    Raises:
        ValueError: another number of layers, or a number that does not divide what a layer has.
    """
    handles = layer_handles(model)
    if not handles:
        raise ValueError("all layers of the model have lost their heads, so there are none to group")
    counts = [n_kv_head] * len(handles) if isinstance(n_kv_head, int) else list(n_kv_head)
    if len(counts) != len(handles):
        raise ValueError(
            f"n_kv_head gives {len(counts)} numbers, but the model has {len(handles)} layers with heads"
        )
    for handle, wanted in zip(handles, counts, strict=True):
        there = handle.n_kv_head
        if wanted > there:
            raise ValueError(
                f"n_kv_head={wanted} is more than the {there} key/value heads that layer {handle.index} has; "
                "grouping makes fewer, expand() makes more"
            )
        if wanted < 1 or there % wanted:
            raise ValueError(
                f"n_kv_head={wanted} does not divide the {there} key/value heads of layer {handle.index}; "
                f"counts that fit: {counts_that_fit(there, wanted)}"
            )
    return counts


def _grouped(
    model: nn.Module,
    counts: list[int],
    method: Method,
    groups: Groups,
    rows: Sequence[Tensor],
    on_layer: Callable[[Method, Groups, int, int], None] | None,
) -> GroupResult:
    needs_text = method not in WITHOUT_TEXT or groups == "similar"
    if needs_text and not rows:
        raise ValueError(
            f"method {method!r} with groups {groups!r} is calibrated on activations: give calibration texts "
            f"(some 10,000 tokens), or one of {', '.join(WITHOUT_TEXT)} with contiguous groups"
        )
    made = copy.deepcopy(model).eval()
    handles = layer_handles(made)
    stages = LayerByLayer(made, handles, rows) if needs_text else None
    partitions = []
    for handle, count in zip(handles, counts, strict=True):
        partition = neighbours(handle.n_kv_head, count)
        if count < handle.n_kv_head:
            partition = _convert(handle, count, method, groups, stages)
        partitions.append(partition)
        if on_layer is not None:
            on_layer(method, groups, len(partitions), len(handles))
    settle(made)
    made.train(model.training)
    return GroupResult(made, method, groups, head_counts(model), head_counts(made), partitions)


@torch.no_grad()
def _convert(
    handle: LayerHandle, count: int, method: Method, groups: Groups, stages: LayerByLayer | None
) -> Partition:
    """Convert one layer and return which of its heads were merged."""
    runs = list(stages.runs(handle)) if stages else []
    inputs = Moments()
    for run in runs:
        inputs.update(with_one(run.x))
    moments = shrunk(inputs.mean) if runs else torch.empty(0)
    weights = read_weights(handle).with_values_hoisted()
    if not handle.key_bias_matters:
        weights = weights.with_keys_hoisted()
    partition = neighbours(handle.n_kv_head, count)
    if groups == "similar":
        partition = most_alike(_similarity(handle, weights, moments), count)
        weights = weights.take_groups([head for group in partition for head in group])
    size = weights.n_kv_head // count
    keys = [
        _merge(handle, method, "keys", weights.take_groups(range(start, start + size)), moments)
        for start in range(0, weights.n_kv_head, size)
    ]
    per_member = weights.group_size
    merged = refined_keys(handle, weights, keys, runs) if method == "fitted" else merge_keys(weights, keys)
    if method in ("closed", "fitted"):
        merged = values.shared_values(handle, merged, size, runs)
    else:
        found = [
            _merge(handle, method, "values", weights.take_groups(range(start, start + size)), moments)
            for start in range(0, weights.n_kv_head, size)
        ]
        merged = merge_values(merged, found, per_member)
    write_weights(handle, merged)
    return partition


def _merge(handle: LayerHandle, method: Method, part: str, members: LayerWeights, moments: Tensor) -> Merge:
    """Return how the keys or the values of a group are merged."""
    rows = members.k if part == "keys" else members.v
    if method in WITHOUT_TEXT:
        return methods.averaged(method, rows)
    if method in ("closed", "fitted"):
        readers = members.q.reshape(len(rows), -1, *members.q.shape[1:])
        return methods.shared_keys(rows, readers, moments, handle)
    merge = (
        methods.aligned_keys(rows, moments, handle)
        if part == "keys"
        else methods.aligned_values(rows, moments)
    )
    return renormed(merge, rows) if method == "aligned+renorm" else merge


def _similarity(handle: LayerHandle, weights: LayerWeights, moments: Tensor) -> Tensor:
    """Return how alike every two key/value heads are once turned to one another, (G, G)."""
    alike = aligned_similarity(gram_of(weights.v, moments))
    width = handle.rotary_width
    if handle.rotary is not None:
        turned = weights.k[:, :width]
        alike = alike + aligned_plane_similarity(gram_of_planes(turned, moments, handle.rotary))
    if width < handle.d_head:
        alike = alike + aligned_similarity(gram_of(weights.k[:, width:], moments))
    return alike


def _check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}; got {value!r}")
