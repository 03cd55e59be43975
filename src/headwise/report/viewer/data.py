"""What the page of heads shows, as plain data: from a model and a text, or from attention weights alone.

Letters: H heads of a layer, T queries, S keys, D width of the layer's output, V width of a value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from headwise.attention.request import WeightsOf
from headwise.heads import roles, statistics
from headwise.heads.seam import AttentionCall, observe
from headwise.heads.statistics_reduction import length_factors
from headwise.heads.weights import weights_of
from headwise.hub import Subject
from headwise.report.maps import attention_maps
from headwise.report.viewer.map_statistics import entropies, map_statistics
from headwise.report.viewer.panes import MOST_CELLS, Pane, Weights, binned, plan
from headwise.report.viewer.pieces import Tokens, plain_tokens, tokens_of

if TYPE_CHECKING:
    import pandas as pd

MOST_TOKENS = 16_384
"""Of a text: one head's weights are held at a time, a gigabyte for this many."""
_LEAST_REPEATED = 6
"""Tokens that a model has to read at once for scores on repeated tokens: twice the shortest period."""


@dataclass(frozen=True)
class ViewLayer:
    """The heads of one layer, by their numbers in the model that it came from."""

    index: int
    heads: tuple[int, ...]
    groups: tuple[int, ...]
    """The key/value head that each reads."""


@dataclass(frozen=True)
class ViewData:
    """Everything the page shows of one model on one text."""

    title: str
    queries: Tokens
    keys: Tokens | None
    """None where queries and keys are the same tokens."""
    layers: list[ViewLayer]
    panes: list[Pane]
    table: pd.DataFrame
    """Statistics of every head: layer, head, and numbers; what equal weights score is `<name>_uniform`."""
    roles: pd.DataFrame
    """As `heads.roles` gives them."""
    curves: list[NDArray[np.float32]]
    """Per head, in the order of the layers, the entropy of queries in nats, thinned out by averaging."""
    norms: list[NDArray[np.float32]] | None = None
    """Per head ‖f(x_j)‖ of each key (S,), what a weight of 1 would write; None where no model is known."""
    ablation: pd.DataFrame | None = None
    """What silencing each head costs: layer, head, delta, low, high, in nats per token."""
    how: str = "zero"
    """What a silenced head's output was replaced by."""
    causal: bool = True
    source: str = ""
    """What the statistics were measured on, in words."""
    second: int | None = None
    """Where the second text begins, where two were given as one."""
    prompt: int | None = None
    """How many tokens were given, where the model wrote the rest."""
    notes: tuple[str, ...] = field(default=())

    @property
    def heads(self) -> list[tuple[int, int]]:
        """(layer, head) of every head, in the order of the maps."""
        return [(layer.index, head) for layer in self.layers for head in layer.heads]


def view_data(
    subject: Subject,
    text: str | Sequence[int],
    *,
    texts: Sequence[str | Sequence[int]] | None = None,
    ablation: pd.DataFrame | None = None,
    how: str = "zero",
    heads: Mapping[int, Sequence[int]] | None = None,
    title: str | None = None,
    source: str = "",
    prompt: int | None = None,
    second: int | None = None,
    most_cells: int = MOST_CELLS,
    planned_heads: int | None = None,
    repeats: bool | pd.DataFrame = True,
) -> ViewData:
    """Run a model on a text and gather what its heads do there.

    text: to be shown, as text or token ids. texts: what the statistics are measured on, by default the text;
    source says in words what they are. ablation: the table of `heads.ablate`, with how it silenced. heads: by
    layer, the numbers that its heads had before others were removed. prompt: how many tokens were given,
    where the model wrote the rest. second: where a second text begins. most_cells: how many weights the page
    may hold; see `panes.plan`.
    planned_heads: for how many heads there has to be room, where those of another model stand beside these.
    repeats: whether to score heads on repeated tokens, which some roles are judged by; or what
    `heads.induction_scores` gave before.

    Raises ValueError for a text without tokens or with more than the model or a page can take, and for
    numbers of heads that do not fit.
    """
    ids = subject.encode(text) if isinstance(text, str) else list(text)
    if not ids:
        raise ValueError("text holds no tokens; give a text of at least one character that the model knows")
    if len(ids) > MOST_TOKENS:
        raise ValueError(
            f"text has {len(ids):,} tokens, but a page shows at most {MOST_TOKENS:,}; shorten it"
        )
    batch = subject.batch([ids])
    causal = subject.causal
    count = sum(layer.n_head for layer in subject.layers)
    room = count if planned_heads is None else planned_heads
    gathered = _Gathered(len(ids), len(ids), room, most_cells, causal=causal)
    norms: list[NDArray[np.float32]] = []

    def look(call: AttentionCall) -> None:
        at, number, share = call.layer.index, call.q.shape[1], call.q.shape[1] // call.k.shape[1]
        names = _numbers(heads, at, number)
        gathered.layers.append(ViewLayer(at, names, tuple(head // share for head in range(number))))
        factors = length_factors(call.layer, call.v.shape[3])
        for head in range(number):
            weights = weights_of(call, WeightsOf(heads=[head]))[0, 0].float().cpu().numpy()
            gathered.add(weights, _seen(call, head))
            if factors is not None:
                wrote = call.v[0, head // share].double() @ factors[head].to(call.v.device)  # (S, V) · (V, V)
                norms.append(wrote.norm(dim=1).float().cpu().numpy())

    with torch.no_grad(), observe(subject.model, look):
        subject.run(batch)
    enough = subject.max_tokens is None or subject.max_tokens >= _LEAST_REPEATED
    measured = statistics(subject, [ids] if texts is None else texts, repeated=repeats is True and enough)
    if not isinstance(repeats, bool):
        measured.repeated = repeats
    table = _renamed(measured.table, gathered.layers)
    return ViewData(
        title=title or subject.name,
        queries=tokens_of(subject, ids),
        keys=None,
        layers=gathered.layers,
        panes=gathered.panes,
        table=table,
        roles=roles(table),
        curves=gathered.curves,
        norms=norms if len(norms) == count else None,
        ablation=None if ablation is None else _renamed(ablation, gathered.layers),
        how=how,
        causal=causal,
        source=source,
        prompt=_within("prompt", prompt, len(ids)),
        second=_within("second", second, len(ids)),
    )


def weights_data(
    weights: Any,
    labels: Sequence[str],
    *,
    key_labels: Sequence[str] | None = None,
    visible: Any = None,
    table: pd.DataFrame | None = None,
    heads: Mapping[int, Sequence[int]] | None = None,
    second: int | None = None,
    title: str = "attention",
    most_cells: int = MOST_CELLS,
) -> ViewData:
    """Gather what is to be seen in attention weights of any origin.

    weights, labels, key_labels, visible: as for `report.maps.attention_maps`. table: statistics of the heads,
    as `heads.statistics` gives; by default those that the weights themselves tell. heads: by layer, the
    numbers that its heads had before others were removed. second: where a second text begins.

    Raises ValueError for weights that `attention_maps` refuses and for numbers of heads that do not fit.
    """
    import pandas as pd

    maps = attention_maps(weights, labels, key_labels=key_labels, visible=visible)
    counts = [len(layer) for layer in maps.layers]
    seen = maps.visible
    causal = seen.shape[0] == seen.shape[1] and not np.triu(seen, 1).any() and len(seen) > 1
    gathered = _Gathered(seen.shape[0], seen.shape[1], sum(counts), most_cells, causal=causal)
    rows: list[dict[str, float]] = []
    cross = key_labels is not None
    for index, layer in enumerate(maps.layers):
        numbers = _numbers(heads, index, len(layer))
        gathered.layers.append(ViewLayer(index, numbers, tuple(range(len(layer)))))
        for number, head in zip(numbers, layer, strict=True):
            gathered.add(head, seen)
            rows.append({"layer": index, "head": number, **map_statistics(head, seen, cross=cross)})
    if table is None:
        table = pd.DataFrame(rows)
    return ViewData(
        title=title,
        queries=plain_tokens(labels),
        keys=None if key_labels is None else plain_tokens(key_labels),
        layers=gathered.layers,
        panes=gathered.panes,
        table=table,
        roles=roles(table),
        curves=gathered.curves,
        causal=causal,
        second=_within("second", second, len(labels) if key_labels is None else 0),
    )


class _Gathered:
    """What is kept of each head while its weights pass by."""

    def __init__(self, queries: int, keys: int, heads: int, most: int, *, causal: bool) -> None:
        self.panes = plan(queries, keys, heads, causal=causal, most=most)
        self.layers: list[ViewLayer] = []
        self.curves: list[NDArray[np.float32]] = []

    def add(self, weights: Weights, seen: NDArray[np.bool_]) -> None:
        """Add the next head of the last layer."""
        if not np.isfinite(weights).all():
            raise ValueError(
                f"layer {self.layers[-1].index} has weights that are not numbers (NaN), of which nothing "
                "can be drawn; the model's weights are damaged, or too large for their dtype"
            )
        for pane in self.panes:
            if len(pane.layers) < len(self.layers):
                pane.layers.append([])
            pane.layers[-1].append(pane.cut(weights, seen))
        self.curves.append(binned(entropies(weights)))


def _within(name: str, at: int | None, tokens: int) -> int | None:
    if at is not None and not 0 < at < tokens:
        raise ValueError(f"{name} must lie within the text of {tokens} tokens, got {at}")
    return at


def _numbers(heads: Mapping[int, Sequence[int]] | None, layer: int, count: int) -> tuple[int, ...]:
    """Return the numbers by which the heads of a layer go."""
    if heads is None or layer not in heads:
        return tuple(range(count))
    numbers = tuple(heads[layer])
    if len(numbers) != count or len(set(numbers)) != count or min(numbers, default=0) < 0:
        raise ValueError(f"heads must name {count} different heads of layer {layer}, got {list(numbers)}")
    return numbers


def _renamed(table: pd.DataFrame, layers: list[ViewLayer]) -> pd.DataFrame:
    """Return a table whose heads are counted from 0 with the numbers by which they go."""
    names = {layer.index: layer.heads for layer in layers}
    known = [
        layer in names and head < len(names[layer])
        for layer, head in zip(table["layer"], table["head"], strict=True)
    ]
    table = table[known].reset_index(drop=True)
    table["head"] = [names[layer][head] for layer, head in zip(table["layer"], table["head"], strict=True)]
    return table


def _seen(call: AttentionCall, head: int) -> NDArray[np.bool_]:
    """Return which keys each query of a head may see, (T, S)."""
    queries, keys = call.q.shape[2], call.k.shape[2]
    if call.mask is None:
        return np.ones((queries, keys), dtype=bool)
    table = call.mask.to_tensor(queries, keys, device=call.q.device)  # broadcastable to (B, H, T, S)
    seen: NDArray[np.bool_] = table.expand(1, call.q.shape[1], queries, keys)[0, head].cpu().numpy()
    return seen
