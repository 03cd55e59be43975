"""What models hand to their attention becomes the right mask and bias."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.attention import Mask
from headwise.hub.translation import mask_and_bias, mask_of


def shown(mask: Mask | None, table: torch.Tensor) -> torch.Tensor:
    queries, keys = table.shape[2:]
    return torch.ones_like(table) if mask is None else mask.to_tensor(queries, keys).expand_as(table)


@st.composite
def tables(draw: st.DrawFn) -> torch.Tensor:
    batch, queries, more = draw(st.integers(1, 3)), draw(st.integers(1, 6)), draw(st.integers(0, 3))
    keys = queries + more
    kind = draw(st.sampled_from(["causal", "window", "all", "any", "by head"]))
    if kind in ("any", "by head"):
        bits = draw(st.integers(0, 2**30))
        generator = torch.Generator().manual_seed(bits)
        heads = 2 if kind == "by head" else 1
        return torch.rand(batch, heads, queries, keys, generator=generator) < 0.7
    mask = {"causal": Mask.causal(), "window": Mask.window(draw(st.integers(1, 4)))}.get(kind)
    table = torch.ones(queries, keys, dtype=torch.bool) if mask is None else mask.to_tensor(queries, keys)
    real = torch.ones(batch, 1, 1, keys, dtype=torch.bool)
    for row in real:
        row[..., : draw(st.integers(0, keys - 1))] = False
        row[..., draw(st.integers(1, keys)) :] = False
    return table & real


@settings(deadline=None, max_examples=200)
@given(tables())
def test_a_mask_shows_exactly_what_the_table_shows(table):
    assert torch.equal(shown(mask_of(table), table), table)


@settings(deadline=None, max_examples=60)
@given(tables(), st.sampled_from([torch.float32, torch.bfloat16, torch.float16]), st.booleans())
def test_a_float_table_is_split_without_rest(table, dtype, infinite):
    lowest = float("-inf") if infinite else torch.finfo(dtype).min
    added = torch.linspace(-1, 1, table.numel(), dtype=dtype).view_as(table)
    mask, bias = mask_and_bias(added.masked_fill(~table, lowest))
    assert torch.equal(shown(mask, table), table)
    expected = added.masked_fill(~table, 0.0)
    assert torch.equal(torch.zeros_like(added) if bias is None else bias, expected)


def test_a_lowest_number_with_something_added_is_still_hidden():
    table = torch.full((1, 1, 1, 2), torch.finfo(torch.float32).min) + torch.tensor([1e6, 0.0])
    table[..., 1] = 0.5
    mask, bias = mask_and_bias(table)
    assert mask.to_tensor(1, 2).tolist() == [[False, True]]
    assert bias.flatten().tolist() == [0.0, 0.5]


def test_a_merely_large_number_is_a_bias():
    mask, bias = mask_and_bias(torch.tensor([[[[-1e4, 0.0]]]]))
    assert mask is None
    assert bias.flatten().tolist() == [-1e4, 0.0]


def test_a_bias_that_learns_keeps_its_gradient():
    table = torch.zeros(1, 2, 3, 3, requires_grad=True)
    _, bias = mask_and_bias(table)
    bias.sum().backward()
    assert table.grad.eq(1).all()


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (torch.ones(2, 1, 4, 4, dtype=torch.bool), None),
        (torch.ones(4, 4, dtype=torch.bool).tril()[None, None], "its own key and all before it"),
        (Mask.window(2).to_tensor(4, 4)[None, None], "its own key and the one before it"),
        (
            torch.tensor([True, True, False])[None, None, None].expand(2, 1, 3, 3),
            "the keys where a (1, 1, 1, 3) tensor is True",
        ),
    ],
)
def test_rules_are_recognised(table, words):
    mask = mask_of(table)
    if words is None:
        assert mask is None
    else:
        assert mask.words().replace("(2, 1, 1, 3)", "(1, 1, 1, 3)") == words


@pytest.mark.parametrize(
    "rule", [Mask.causal(), Mask.window(3), Mask.keep(torch.tensor([[True, False] * 300]))]
)
def test_rules_are_recognised_over_more_rows_than_are_compared_at_once(rule):
    table = rule.to_tensor(600, 600).expand(600, 600).clone()[None, None]
    assert (
        mask_of(table).words().split(" tensor")[0]
        == rule.words().replace("(1, 600)", "(1, 1, 1, 600)").split(" tensor")[0]
    )
    table[0, 0, 599, 0] ^= True
    assert torch.equal(mask_of(table).to_tensor(600, 600), table[0, 0])


@torch.inference_mode()
def test_masks_made_in_inference_mode_are_read_too():
    assert (
        mask_of(torch.ones(4, 4, dtype=torch.bool).tril()[None, None]).words()
        == "its own key and all before it"
    )
