"""Heads as lines of text: by role, and by what they are worth."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headwise.heads.role_rules import INITIALS, NO_ROLE, ROLES
from headwise.report.tables import aligned

if TYPE_CHECKING:
    import pandas as pd


def role_lines(judged: pd.DataFrame, *, most: int | None = None) -> list[str]:
    """Return the heads of a table of `heads.roles`, role by role, the strongest first.

    most: how many heads of each role to list; None lists all.
    """
    lines: list[str] = []
    for name in [*(role.name for role in ROLES), NO_ROLE]:
        rows = judged[judged["role"] == name].sort_values("strength", ascending=False, kind="stable")
        if rows.empty:
            continue
        count = f"{len(rows)} head{'s' * (len(rows) > 1)}"
        lines += ["", f"{INITIALS[name]} {name}: {count}" + _meaning(name)]
        if name == NO_ROLE and most is not None:
            continue
        shown = rows if most is None else rows.head(most)
        lines += aligned([_cells(row) for row in shown.to_dict("records")], left=(0, 2))
        if len(shown) < len(rows):
            lines.append(f"  … and {len(rows) - len(shown)} more")
    if judged["output_share"].notna().any():
        lines += ["", "writes: the head's share of the length of what its layer's heads write"]
    return lines


def _meaning(name: str) -> str:
    return next((f" ({role.meaning})" for role in ROLES if role.name == name), "")


def _cells(row: Mapping[Any, Any]) -> list[str]:
    strength, share = row["strength"], row["output_share"]
    return [
        f"  layer {row['layer']} head {row['head']}",
        "–" if math.isnan(strength) else f"{strength:.2f}",
        row["evidence"] + (f"; also {row['also']}" if row["also"] else ""),
        "" if math.isnan(share) else f"writes {100 * share:.0f} %",
    ]


def worth_lines(table: pd.DataFrame, unit: str, *, most: int) -> list[str]:
    """Return the heads of an ablation's table that cost most and least, and how many matter at all."""
    ranked = table.sort_values("delta", ascending=False, kind="stable")
    sure = table["low"].notna()
    needed = int((table["low"] > 0).sum())
    harmful = int((table["high"] < 0).sum())
    header = ["  head", "lost without it", "95 % interval", "on retrieval"]
    shown = ranked if len(ranked) <= 2 * most else ranked.head(most)
    rest = ranked.tail(most) if len(ranked) > 2 * most else ranked.iloc[:0]
    lines = ["", f"worth most, in {unit}"]
    lines += aligned([header, *(_worth(row) for row in shown.to_dict("records"))])
    if len(rest):
        lines += ["", "worth least"]
        lines += aligned([header, *(_worth(row) for row in rest.to_dict("records"))])
    if sure.any():
        lines += [
            "",
            f"{needed} of {len(table)} heads are missed (interval above 0), {harmful} do harm (below 0), "
            f"{len(table) - needed - harmful} cannot be told from 0",
        ]
    if "delta_retrieval" in table and table["delta_retrieval"].notna().any():
        lines.append("on retrieval: lost on tokens of random sequences that can only be looked up")
    return lines


def _worth(row: Mapping[Any, Any]) -> list[str]:
    interval = "–" if math.isnan(row["low"]) else f"{row['low']:+.4f} … {row['high']:+.4f}"
    looked_up = row.get("delta_retrieval", math.nan)
    return [
        f"  layer {row['layer']} head {row['head']}",
        f"{row['delta']:+.4f}",
        interval,
        "–" if math.isnan(looked_up) else f"{looked_up:+.4f}",
    ]


def change_lines(table: pd.DataFrame, *, most: int) -> list[str]:
    """Return the heads of a table of `heads.compare` whose maps moved most."""
    ranked = table.sort_values("map_distance", ascending=False, kind="stable", na_position="last")
    header = ["  head", "map moved", "output alike", "nearest map of the other", "likest output of the other"]
    rows = [_change(row) for row in ranked.head(most).to_dict("records")]
    told = "map moved: 0 the same, 1 nothing in common; output alike: 1 for the same up to a rotation"
    return ["", "moved most", *aligned([header, *rows]), "", told]


def _change(row: Mapping[Any, Any]) -> list[str]:
    gone, matched = math.isnan(row["map_distance"]), not math.isnan(row["map_match"])
    return [
        f"  layer {row['layer']} head {row['head']}",
        "no such head" if gone else f"{row['map_distance']:.3f}",
        "–" if gone else f"{row['output_likeness']:.3f}",
        _match(row["map_match"], f"{row['map_match_distance']:.3f} away"),
        _match(
            row["output_match"], f"{row['output_match_likeness']:.3f}", "–" if matched else "no head left"
        ),
    ]


def _match(head: float, how: str, nothing: str = "no head left") -> str:
    return nothing if math.isnan(head) else f"head {int(head)} ({how})"
