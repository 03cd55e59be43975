"""Two models head by head, such as a model before and after fine-tuning, or with fewer key/value heads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from headwise.heads.documents import Document, Text, make_documents
from headwise.heads.likeness import By, Likeness
from headwise.heads.sweep import OnProgress, tokens_at_once
from headwise.hub import Subject
from headwise.hub.subject import require_subject

if TYPE_CHECKING:
    from pandas import DataFrame

_BYS: tuple[By, ...] = ("maps", "outputs", "correlation")
_COLUMNS = (
    "map_distance",
    "output_likeness",
    "output_correlation",
    "map_match",
    "map_match_distance",
    "output_match",
    "output_match_likeness",
)


def compare(
    a: Subject,
    b: Subject,
    texts: Sequence[Text],
    *,
    statistics: bool = True,
    tokens: int | None = None,
    on_progress: OnProgress | None = None,
) -> DataFrame:
    """Compare each head of a model with those of the same layer of another, on the same texts.

    Columns, one row per head of a:
    layer, head: counted from 0.
    map_distance: between the maps of this head in a and b, the mean Jensen–Shannon distance per query: 0 the
        same, 1 nothing in common.
    output_likeness: linear CKA of what the two add to the stream, 1 for the same up to a rotation.
    output_correlation: of the same, 1 for the same up to a positive factor.
    map_match, map_match_distance: the head of b in this layer whose map is nearest, and how near.
    output_match, output_match_likeness: the head of b in this layer whose output is likest, and how like.

    change_…: with statistics, each of `heads.statistics` of this head in b less that in a.

    What is said of the same head is NaN where b has no head of that number, matches are where b has no head
    left in the layer, likeness of outputs is where one of the two is the same for all tokens.
    Formulas: see `similarity`.
    texts, tokens, on_progress: as for `ablate`.

    Raises ValueError for models that read the texts as different tokens, of different numbers of layers, or
    of which one is causal and the other not; and for texts as `ablate`.
    """
    from pandas import DataFrame

    documents = _same_documents(a, b, texts)
    couples = [
        (one.index, two.index)
        for one, two in zip(a.layers, b.layers, strict=True)
        if one.n_head and two.n_head
    ]
    alike = Likeness(a, b, documents, couples, _BYS, tokens_at_once(a, tokens)).measure(on_progress)
    rows: list[dict[str, float]] = []
    for layer in a.layers:
        couple = layer.index, layer.index
        if couple not in couples:
            nothing = dict.fromkeys(_COLUMNS, math.nan)
            rows += [{"layer": layer.index, "head": head} | nothing for head in range(layer.n_head)]
            continue
        maps, outputs, correlation = (alike[by][couple] for by in _BYS)
        for head in range(layer.n_head):
            nearest, likest = _best(maps[head]), _best(outputs[head])
            rows.append(
                {
                    "layer": layer.index,
                    "head": head,
                    "map_distance": 1 - _same(maps, head),
                    "output_likeness": _same(outputs, head),
                    "output_correlation": _same(correlation, head),
                    "map_match": nearest[0],
                    "map_match_distance": 1 - nearest[1],
                    "output_match": likest[0],
                    "output_match_likeness": likest[1],
                }
            )
    table = DataFrame(rows)
    return table.merge(_changes(a, b, documents), on=["layer", "head"], how="left") if statistics else table


def _changes(a: Subject, b: Subject, documents: Sequence[Document]) -> DataFrame:
    from headwise.heads.statistics_collector import statistics

    names = ["layer", "head"]
    ids = [document.ids for document in documents]
    before, after = (statistics(subject, ids).table.set_index(names) for subject in (a, b))
    plain = [name for name in before.columns if not name.endswith("_uniform")]
    return (after[plain] - before[plain]).add_prefix("change_").reset_index()


def _best(alike: Tensor) -> tuple[float, float]:
    """Return the head that is likest, and how like, NaN for both where none can be compared."""
    best = int(alike.nan_to_num(-1).argmax())
    found = float(alike[best])
    return (math.nan if math.isnan(found) else best), found


def _same(alike: Tensor, head: int) -> float:
    return float(alike[head, head]) if head < alike.shape[1] else math.nan


def _same_documents(a: Subject, b: Subject, texts: Sequence[Text]) -> list[Document]:
    require_subject(a, "a")
    require_subject(b, "b")
    if a.causal != b.causal:
        raise ValueError(f"only one of {a.name} and {b.name} is causal, so their heads see different tokens")
    if len(a.layers) != len(b.layers):
        raise ValueError(
            f"{a.name} has {len(a.layers)} layers and {b.name} {len(b.layers)}; "
            "heads are compared layer by layer, so the numbers must agree"
        )
    documents = make_documents(a, texts, measure="output")
    for number, (one, two) in enumerate(
        zip(documents, make_documents(b, texts, measure="output"), strict=True)
    ):
        if one.ids != two.ids:
            raise ValueError(
                f"{a.name} and {b.name} read text {number} as different tokens; "
                "compare models that share a tokenizer"
            )
    return documents
