"""Statistics of heads as a table, to be read and merged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor

from headwise.heads.head_ids import HeadId
from headwise.heads.statistics_columns import Column

if TYPE_CHECKING:
    import pandas as pd


T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class HeadMap:
    """The weights of one head on one text."""

    text: int
    """Number of the text, from 0."""
    weights: Tensor
    """(n, n) float32, rows are queries; the text's real tokens only."""
    labels: tuple[str, ...] = ()
    """One per token."""


@dataclass(eq=False)
class HeadStatistics:
    """What each head does, averaged over texts.

    Made by `statistics`, by `StatisticsCollector.result` and by `merge`. `report.save_table` writes its
    tables to files.
    """

    sums: dict[int, Tensor]
    """By layer, (3, columns, H) float64: sums, sums of what equal weights score, and counts."""
    columns: tuple[Column, ...]
    maps: dict[HeadId, list[HeadMap]] = field(default_factory=dict)
    """By layer and head, the weights of chosen heads, a map per text."""
    received: dict[HeadId, list[Tensor]] = field(default_factory=dict)
    """By layer and head, for chosen heads: per text, the share of its attention that each key gets."""
    repeated: pd.DataFrame | None = None
    """The scores on repeated random tokens, if asked for; they are columns of the table as well."""
    every: int = 1
    """Of so many queries one was looked at; `counts` says how many that are."""

    @property
    def table(self) -> pd.DataFrame:
        """One row per layer and head; NaN where no query counts. `describe` says what columns mean."""
        values, uniform, _ = self._by_head()
        rows: list[dict[str, float]] = []
        for (layer, head), numbers in values.items():
            row: dict[str, float] = {"layer": layer, "head": head}
            for n, column in enumerate(self.columns):
                row[column.name] = numbers[n]
                if column.uniform is not None:
                    row[f"{column.name}_uniform"] = uniform[layer, head][n]
            rows.append(row)
        table = self._frame(rows)
        if self.repeated is not None:
            table = table.merge(self.repeated, on=["layer", "head"], how="left")
        return table

    @property
    def counts(self) -> pd.DataFrame:
        """The denominators: how many queries or texts each number of the table is an average of."""
        _, _, counts = self._by_head()
        return self._frame(
            [
                {"layer": layer, "head": head}
                | {column.name: int(number) for column, number in zip(self.columns, numbers, strict=True)}
                for (layer, head), numbers in counts.items()
            ]
        )

    def _frame(self, rows: list[dict[str, Any]]) -> pd.DataFrame:
        import pandas

        return pandas.DataFrame(rows)

    def _by_head(self) -> tuple[dict[HeadId, list[float]], ...]:
        """Return averages, what equal weights score, and counts, by layer and head."""
        out: tuple[dict[HeadId, list[float]], ...] = ({}, {}, {})
        for layer, sums in sorted(self.sums.items()):
            sums = sums.cpu()
            numbers = sums[0] / sums[2], sums[1] / sums[2], sums[2]  # (columns, H) each; 0/0 is NaN
            for head in range(sums.shape[2]):
                for target, number in zip(out, numbers, strict=True):
                    target[layer, head] = number[:, head].tolist()
        return out

    def describe(self) -> pd.DataFrame:
        """Say of each column of the table what it is, its unit and what it is averaged over."""
        columns = self.columns
        if self.repeated is not None:
            from headwise.heads.repeated import REPEATED_COLUMNS

            columns += REPEATED_COLUMNS
        rows = []
        for column in columns:
            rows.append((column.name, column.meaning, column.unit, column.over))
            if column.uniform is not None:
                rows.append(
                    (f"{column.name}_uniform", f"what {column.uniform} would score", column.unit, column.over)
                )
        return self._frame(
            [dict(zip(("column", "meaning", "unit", "averaged_over"), row, strict=True)) for row in rows]
        )

    @staticmethod
    def merge(a: HeadStatistics, b: HeadStatistics) -> HeadStatistics:
        """Return the statistics of both sets of texts together; maps keep the numbers of their texts.

        Raises ValueError if they are of other layers, heads or columns.
        """
        if a.columns != b.columns or a.every != b.every:
            raise ValueError(
                "the statistics have different columns or samples; collect both with the same options"
            )
        if {n: s.shape for n, s in a.sums.items()} != {n: s.shape for n, s in b.sums.items()}:
            raise ValueError("the statistics are of models with different layers or heads")
        return HeadStatistics(
            {layer: sums + b.sums[layer].to(sums.device) for layer, sums in a.sums.items()},
            a.columns,
            _joined(a.maps, b.maps),
            _joined(a.received, b.received),
            a.repeated if a.repeated is not None else b.repeated,
            a.every,
        )


def _joined(a: Mapping[HeadId, list[T]], b: Mapping[HeadId, list[T]]) -> dict[HeadId, list[T]]:
    return {head: [*a.get(head, []), *b.get(head, [])] for head in dict.fromkeys((*a, *b))}
