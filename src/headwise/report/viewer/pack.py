"""The page's data as a script reads it: JSON, in which large arrays are deflated and written in base64."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.colors import to_hex
from numpy.typing import NDArray

from headwise import __version__
from headwise.heads.role_rules import NO_ROLE, ROLES, judged
from headwise.report.heatmap import viridis
from headwise.report.viewer.data import ViewData
from headwise.report.viewer.panes import Pane
from headwise.report.viewer.pieces import Tokens

_LEVEL = 6


def packed(data: ViewData, beside: ViewData | None = None) -> dict[str, Any]:
    """Return what the page's script is given.

    Raises ValueError if a head has no statistics, or more than one row in a table, and for a model beside it
    that has other tokens or other panes.
    """
    island = _packed(data)
    if beside is None:
        return island
    if (data.queries, data.keys) != (beside.queries, beside.keys):
        raise ValueError(
            f"{data.title} and {beside.title} cut the text into different tokens, so their maps cannot be "
            "compared; give two models with the same tokenizer"
        )
    if [(p.rows, p.columns, p.block, p.triangle) for p in data.panes] != [
        (p.rows, p.columns, p.block, p.triangle) for p in beside.panes
    ]:
        raise ValueError(
            f"{data.title} and {beside.title} show different pieces of the text; "
            "make both with the same planned_heads"
        )
    return {**island, "other": _packed(beside)}


def _packed(data: ViewData) -> dict[str, Any]:
    numbers = _numbers(data)
    columns = [name for name in numbers.columns if name not in ("layer", "head")]
    counts = [len(layer.heads) for layer in data.layers]
    return {
        "version": __version__,
        "title": data.title,
        "causal": data.causal,
        "source": data.source,
        "how": data.how,
        "notes": list(data.notes),
        "prompt": data.prompt,
        "second": data.second,
        "queries": _tokens(data.queries),
        "keys": None if data.keys is None else _tokens(data.keys),
        "layers": [
            {"index": layer.index, "heads": layer.heads, "groups": layer.groups} for layer in data.layers
        ],
        "panes": [_pane(pane, data, counts) for pane in data.panes],
        "columns": columns,
        "numbers": blob(numbers[columns].to_numpy(np.float32).T),
        "curves": [len(curve) for curve in data.curves],
        "curve_values": blob(np.concatenate(data.curves)),
        "roles": _roles(data),
        "rules": [
            {
                "name": role.name,
                "initial": role.initial,
                "column": role.column,
                "threshold": role.threshold,
                "meaning": role.meaning,
            }
            for role in ROLES
        ],
        "judged": [role.name for role in judged(data.table)],
        "palettes": {
            "rising": _palette(viridis()),
            "signed": _palette(colormaps["PuOr_r"]),
        },
    }


def blob(array: NDArray[Any]) -> str:
    """Return an array's bytes, little-endian, deflated and in base64."""
    little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return base64.b64encode(zlib.compress(little.tobytes(), _LEVEL)).decode("ascii")


def _palette(colours: Any) -> list[str]:
    return [to_hex(colour) for colour in colours(np.linspace(0, 1, 256))]


def _tokens(tokens: Tokens) -> dict[str, Any]:
    return {
        "labels": tokens.labels,
        "special": [at for at, yes in enumerate(tokens.special) if yes],
        "partial": [at for at, yes in enumerate(tokens.partial) if yes],
        "breaks": [at for at, yes in enumerate(tokens.breaks) if yes],
        "words": tokens.words,
        "word_labels": tokens.word_labels,
    }


def _pane(pane: Pane, data: ViewData, counts: list[int]) -> dict[str, Any]:
    norms = None
    if data.norms is not None and pane.block == 1:
        norms = blob(np.stack([norm[slice(*pane.columns)] for norm in data.norms]).astype(np.float32))
    if [len(layer) for layer in pane.layers] != counts:
        raise ValueError(
            f"maps of {[len(layer) for layer in pane.layers]} heads, but the layers have {counts}"
        )
    return {
        "rows": pane.rows,
        "columns": pane.columns,
        "block": pane.block,
        "triangle": pane.triangle,
        "layers": [blob(np.concatenate(layer)) for layer in pane.layers],
        "norms": norms,
    }


def _numbers(data: ViewData) -> pd.DataFrame:
    """Return one row of numbers per head, in the order of the maps."""
    order = pd.MultiIndex.from_tuples(data.heads, names=["layer", "head"])
    parts: list[pd.DataFrame] = []
    for name, table in (("statistics", data.table), ("roles", data.roles), ("ablation", data.ablation)):
        if table is None:
            continue
        indexed = table.set_index(["layer", "head"])
        if not indexed.index.is_unique:
            raise ValueError(f"the table of {name} has more than one row for a head")
        missing = [head for head in data.heads if head not in indexed.index]
        if missing and name != "ablation":  # of which only some heads may have been silenced
            raise ValueError(
                f"the table of {name} has no row for layer {missing[0][0]}, head {missing[0][1]}"
            )
        numeric = indexed.select_dtypes("number").reindex(order)
        parts.append(numeric[[column for column in numeric if not any(column in part for part in parts)]])
    return pd.concat(parts, axis=1).reset_index()


def _roles(data: ViewData) -> list[dict[str, Any]]:
    rows = {(row["layer"], row["head"]): row for row in data.roles.to_dict("records")}
    named = [rows[head] for head in data.heads]
    return [
        {
            "role": "" if row["role"] == NO_ROLE else row["role"],
            "evidence": row["evidence"],
            "also": row["also"],
        }
        for row in named
    ]
