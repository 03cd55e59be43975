"""The stretch of keys each query sees is that of the mask's table, or there is none."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headwise.attention import Mask
from headwise.attention.masks import Region
from headwise.heads import row_spans as module
from headwise.heads.row_spans import row_spans
from headwise.heads.sampled_queries import Sample

REAL = torch.tensor([[True] * 6 + [False] * 3, [False] * 2 + [True] * 7])
MASKS = {
    "causal": Mask.causal(),
    "window": Mask.window(3),
    "prefix": Mask.prefix(4),
    "prefixes": Mask.prefix(torch.tensor([0, 5])),
    "lengths": Mask.lengths(torch.tensor([4, 9])),
    "padding, causal": Mask.keep(REAL[:, None, None]) & Mask.causal(),
    "documents": Mask.documents(torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2])),
    "documents, window": Mask.documents(torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2])) & Mask.window(2),
    "after": ~Mask.causal(),
    "nobody": Mask.keep(torch.zeros(1, 9, dtype=torch.bool)),
    "table": Mask.keep(torch.ones(9, 9, dtype=torch.bool).tril(1).triu(-2)),
}


def shown(mask: Mask | None, region: Region) -> Tensor:
    """(B|1, rows, keys)"""
    table = torch.ones(1, 1, region.rows, region.keys, dtype=torch.bool)
    allowed = None if mask is None else mask.allowed(region, torch.device("cpu"))
    return (table if allowed is None else table & allowed)[:, 0]


@given(name=st.sampled_from([*MASKS, "none"]), data=st.data(), rows_together=st.sampled_from([2, 512]))
@settings(max_examples=150, deadline=None)
def test_spans_are_those_of_the_table(name: str, data: st.DataObject, rows_together: int) -> None:
    mask = MASKS.get(name)
    row, key = data.draw(st.integers(0, 8)), data.draw(st.integers(0, 8))
    region = Region(row, data.draw(st.integers(1, 9 - row)), key, data.draw(st.integers(1, 9 - key)), 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_ROWS", rows_together)
        spans = row_spans(mask, region, 2, torch.device("cpu"))
    assert spans is not None
    table = shown(mask, region)
    index = torch.arange(region.keys)
    inside = (index >= spans.start.unsqueeze(2)) & (index < spans.stop.unsqueeze(2))
    assert torch.equal(inside, table.expand_as(inside))
    assert bool(((spans.start >= 0) & (spans.start <= spans.stop) & (spans.stop <= region.keys)).all())


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("sample", [Sample(0, 2), Sample(3, 4), Sample(8, 9)])
def test_spans_of_some_queries(name: str, sample: Sample) -> None:
    mask = sample.mask(MASKS[name], 9, 9)
    rows = len(range(sample.start, 9, sample.step))
    region = Region(0, rows, 0, 9, 9 - rows)
    spans = row_spans(mask, region, 2, torch.device("cpu"))
    assert spans is not None
    table = shown(MASKS[name], Region(0, 9, 0, 9, 0))[:, sample.start :: sample.step]
    index = torch.arange(9)
    inside = (index >= spans.start.unsqueeze(2)) & (index < spans.stop.unsqueeze(2))
    assert torch.equal(inside, table.expand_as(inside))


@pytest.mark.parametrize(
    "mask",
    [
        Mask.causal() & ~Mask.window(3) | Mask.window(1),
        Mask.documents(torch.tensor([0, 1, 0, 1, 0])),
        Mask.keep(torch.tensor([True, False, True, True, True])[None]),
        Mask.keep(torch.ones(1, 2, 5, 5, dtype=torch.bool)),
    ],
)
def test_several_stretches_and_heads_of_their_own_have_none(mask: Mask) -> None:
    assert row_spans(mask, Region(0, 5, 0, 5, 0), 1, torch.device("cpu")) is None
