"""What heads were called before others were taken out, for verbs that call them by what they are now."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

_SHOWN = 6
_NAMES = ["layer", "head", "head_before"]


def with_former(table: pd.DataFrame, source: str) -> pd.DataFrame:
    """Return a table of heads with a column `head_before` where some of the model's heads were taken out.

    Raises ValueError where the model's folder says something else about its heads than there is.
    """
    from headwise.hub.origin import FILE, head_numbers

    known = head_numbers(source)
    if known is None:
        return table
    places = list(zip(table["layer"].tolist(), table["head"].tolist(), strict=True))
    counts = Counter(layer for layer, _ in places)
    odd = next((layer for layer, count in counts.items() if len(known.get(layer, ())) != count), None)
    if odd is not None:
        raise ValueError(
            f"{source}/{FILE} names {len(known.get(odd, ()))} heads of layer {odd}, which has {counts[odd]}; "
            "it is of another model, so remove it or put back the right one"
        )
    made = table.copy()
    made.insert(list(made).index("head") + 1, "head_before", [known[layer][head] for layer, head in places])
    return made


def with_former_matches(table: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    """Return a table of `heads.compare` that also tells what numbers the matches in the other model had.

    others: the heads of the other model, as `with_former` returns them.
    """
    if "head_before" not in others:
        return table
    known = {(layer, head): before for layer, head, before in others[_NAMES].itertuples(index=False)}
    made = table.copy()
    for match in ("map_match", "output_match"):
        places = zip(table["layer"], table[match], strict=True)
        former = [known.get(place, math.nan) for place in places]
        made.insert(list(made).index(match) + 1, f"{match}_before", former)
    return made


def former_line(
    table: pd.DataFrame, source: str, whose: str = "heads", columns: str = "head_before"
) -> str | None:
    """Return what is to be told of a table of `with_former`; None if all heads go by the numbers they had."""
    from headwise.hub.origin import numbered_by

    if "head_before" not in table:
        return None
    moved = table[table["head"] != table["head_before"]]
    if moved.empty:
        return None
    places = zip(moved["layer"], moved["head"], moved["head_before"], strict=True)
    named = [f"{layer}.{head} was {layer}.{before}" for layer, head, before in places]
    more = f" and {len(named) - _SHOWN} more ({columns} in --out and --json)" * (len(named) > _SHOWN)
    return (
        f"{whose} are numbered as they are now; in {numbered_by(source)}, as in headwise view, "
        f"{', '.join(named[:_SHOWN])}{more}"
    )
