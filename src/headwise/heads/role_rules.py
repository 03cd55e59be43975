"""What a head does, in a word: rules with stated thresholds on its statistics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

NO_ROLE = "no clear role"


@dataclass(frozen=True)
class Role:
    """One role, and the rule by which a head has it."""

    name: str
    initial: str
    """One character for a grid of heads."""
    column: str
    """The statistic that decides."""
    threshold: float
    """How far, from uniform attention (0) to all of the weight (1), the statistic has to reach."""
    meaning: str
    source: str


ROLES = (
    Role(
        "induction",
        "I",
        "induction",
        0.4,
        "looks at what followed an earlier occurrence of this token (on repeated random tokens)",
        "score of Olsson et al. 2022; the threshold is ours",
    ),
    Role(
        "duplicate token",
        "D",
        "duplicate",
        0.4,
        "looks at earlier occurrences of this token (on repeated random tokens)",
        "score of Wang et al. 2022; the threshold is ours",
    ),
    Role("previous token", "P", "previous", 0.5, "looks at the token before", "Clark et al. 2019"),
    Role("next token", "N", "next", 0.5, "looks at the token after", "Clark et al. 2019"),
    Role("current token", "C", "self", 0.5, "looks at the token itself", "as for the token before"),
    Role("special tokens", "S", "special", 0.6, "rests on tokens such as [SEP]", "Clark et al. 2019"),
    Role("first token", "F", "first", 0.6, "rests on the first token, a sink", "Clark et al. 2019 for [CLS]"),
    Role("punctuation", ".", "punctuation", 0.6, "looks at punctuation", "Clark et al. 2019"),
    Role("local", "L", "band", 0.6, "looks at tokens nearby, none of them alone", "the threshold is ours"),
    Role(
        "broad",
        "B",
        "normalised_entropy",
        0.8,
        "spreads its weight over what it sees",
        "Clark et al. 2019: 3.8 nats of at most 4.85",
    ),
)
"""In the order in which they are tried: the first that fits is the role, the others are named beside it."""

INITIALS = {role.name: role.initial for role in ROLES} | {NO_ROLE: "·"}
"""The character that stands for each role in a grid."""

_OF_ENTROPY = "normalised_entropy"


def roles(table: pd.DataFrame) -> pd.DataFrame:
    """Give each head of a table of statistics its role.

    A score s counts by its strength (s - u) / (1 - u), where u is what uniform attention scores on the same
    texts: 0 is no better than uniform, 1 is all of the weight. The normalised entropy counts as it is.

    Returns one row per head: layer, head, role, strength (of the role, or of the one that comes nearest to
    its threshold), evidence (the statistic in words), also (further roles that fit), and output_share where
    the table has it, since weight alone is not effect.

    Raises ValueError for a table without the columns layer and head.
    """
    import pandas as pd

    if not isinstance(table, pd.DataFrame):
        raise TypeError(f"table must be the table of statistics(…), got {type(table).__name__}")
    missing = [name for name in ("layer", "head") if name not in table.columns]
    if missing:
        raise ValueError(f"table has no column {missing[0]!r}; give the table of statistics(…)")
    rows = [_row({str(name): value for name, value in record.items()}) for record in table.to_dict("records")]
    return pd.DataFrame(
        rows, columns=["layer", "head", "role", "strength", "evidence", "also", "output_share"]
    )


def judged(table: pd.DataFrame) -> list[Role]:
    """Return the roles for which the table has the statistic."""
    return [role for role in ROLES if role.column in table.columns]


def _row(record: dict[str, Any]) -> dict[str, object]:
    found = {role: _strength(role, record) for role in ROLES}
    known = {role: strength for role, strength in found.items() if strength is not None}
    fitting = [role for role, strength in known.items() if strength >= role.threshold]
    best = fitting[0] if fitting else max(known, key=lambda role: known[role] / role.threshold, default=None)
    return {
        "layer": int(record["layer"]),
        "head": int(record["head"]),
        "role": fitting[0].name if fitting else NO_ROLE,
        "strength": float("nan") if best is None else known[best],
        "evidence": "" if best is None else _evidence(best, record),
        "also": ", ".join(role.name for role in fitting[1:]),
        "output_share": record.get("output_share", float("nan")),
    }


def _strength(role: Role, record: dict[str, Any]) -> float | None:
    score = record.get(role.column)
    if score is None or score != score:  # absent, or NaN because no query has such a key
        return None
    uniform = 0.0 if role.column == _OF_ENTROPY else record.get(f"{role.column}_uniform", 0.0)
    if uniform >= 1.0:
        return None  # such keys are all there is to see
    return float((score - uniform) / (1.0 - uniform))


def _evidence(role: Role, record: dict[str, Any]) -> str:
    score = record[role.column]
    if role.column == _OF_ENTROPY:
        return f"entropy {score:.2f} of the greatest possible"
    uniform = record.get(f"{role.column}_uniform")
    beside = "" if uniform is None else f", uniform {uniform:.2f}"
    return f"{role.column} {score:.2f}{beside}"
