"""The statistics of heads by name: what each means, its unit, what it is averaged over.

Letters: i a query, j a key, A the weights of a head, n the keys that a query sees, s a score before softmax.
"""

from __future__ import annotations

from dataclasses import dataclass

BAND = 2
"""How far from the query a key of the near-diagonal band may be."""
SINK_SHARE = 0.3
"""From which received mass on the first real token counts as a sink (Gu et al. 2025, epsilon)."""


@dataclass(frozen=True)
class Column:
    """One statistic."""

    name: str
    meaning: str
    unit: str
    over: str
    """What it is averaged over: the count beside it counts these."""
    uniform: str | None = None
    """What equal weights on all visible keys would score; None if there is no such column."""


EQUAL = "equal weights on the visible keys"

ROW_COLUMNS = (
    Column("self", "mass on the query's own position", "share", "queries that see it", EQUAL),
    Column("previous", "mass on the position before", "share", "queries that see it", EQUAL),
    Column("next", "mass on the position after", "share", "queries that see it", EQUAL),
    Column("first", "mass on the first real token", "share", "queries that see it", EQUAL),
    Column(
        "band", f"mass on keys at most {BAND} positions away", "share", "queries that see such a key", EQUAL
    ),
    Column(
        "punctuation", "mass on punctuation tokens", "share", "queries that see a punctuation token", EQUAL
    ),
    Column("special", "mass on special tokens", "share", "queries that see a special token", EQUAL),
    Column("entropy", "-sum_j A log A", "nats", "queries", EQUAL),
    Column("normalised_entropy", "entropy / log n", "share", "queries that see two keys or more"),
    Column("confidence", "the largest weight", "share", "queries", EQUAL),
    Column(
        "content_confidence",
        "the largest weight on a key that is neither the first real token nor special",
        "share",
        "queries that see such a key",
        EQUAL,
    ),
    Column(
        "argmax_previous",
        "how often the one largest weight lies on the position before (Voita et al. 2019)",
        "share of queries",
        "queries that see it and another key",
    ),
    Column(
        "argmax_next",
        "how often the one largest weight lies on the position after",
        "share of queries",
        "queries that see it and another key",
    ),
    Column("distance", "sum_j A |i - j|", "tokens", "queries", EQUAL),
    Column("missing", "1 - sum_j A, what a learned sink takes", "share", "queries"),
    Column(
        "first_norm",
        "A ‖f(x_j)‖ of the first real token; f(x) = v W_O of the head (Kobayashi et al. 2020)",
        "length",
        "queries that see it",
        EQUAL,
    ),
    Column("self_norm", "A ‖f(x_j)‖ of the query's own position", "length", "queries that see it", EQUAL),
    Column(
        "special_norm",
        "sum of A ‖f(x_j)‖ over special tokens",
        "length",
        "queries that see a special token",
        EQUAL,
    ),
    Column("norm", "sum_j A ‖f(x_j)‖", "length", "queries", EQUAL),
    Column("output_norm", "‖z W_O‖, the length of what the head writes", "length", "queries"),
    Column(
        "output_share",
        "its output_norm by the sum of those of the layer's heads: of lengths, not of vectors",
        "share",
        "queries whose heads write anything",
    ),
)
"""Averages over the queries of all texts."""

TEXT_COLUMNS = (
    Column("first_received", "mean mass on the first real token, per text", "share", "texts", EQUAL),
    Column(
        "sink",
        f"how often the mean mass on the first real token exceeds {SINK_SHARE} (Gu et al. 2025)",
        "share of texts",
        "texts",
        EQUAL,
    ),
)
"""Averages over texts."""

RECEIVED_COLUMNS = (
    Column(
        "received_max", "the largest share of a text's attention that one key gets", "share", "texts", EQUAL
    ),
    Column(
        "received_concentration",
        "sum over keys of the squared share of a text's attention: 1 if one key gets all of it",
        "share",
        "texts",
        EQUAL,
    ),
)
"""Averages over texts of what keys receive."""

COLUMNS = ROW_COLUMNS + TEXT_COLUMNS + RECEIVED_COLUMNS
