"""Heads are spent where sharing costs most."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from headwise.compress import counts_for_cache, expand
from headwise.compress.budget import cheapest
from headwise.hub.surgery import layer_handles, read_weights, write_weights

Make = Callable[..., nn.Module]


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_layer_whose_heads_are_the_same_gives_up_its_heads(
    interleaved: bool, make_gpt: Make, rows: list[Tensor], scramble: Make
) -> None:
    same = scramble(expand(make_gpt(n_head=4, n_kv_head=1, d_head=6, interleaved=interleaved)))
    other = make_gpt(n_head=4, d_head=6, seed=3, interleaved=interleaved)
    for layer in (0, 1):
        mixed = make_gpt(n_head=4, d_head=6, interleaved=interleaved)
        for handle in layer_handles(mixed):
            source = same if handle.index == layer else other
            write_weights(handle, read_weights(layer_handles(source)[handle.index]))
        wanted = [4, 4]
        wanted[layer] = 1
        assert counts_for_cache(mixed, 5 / 8, rows) == wanted
    assert counts_for_cache(other, 1.0, rows) == [4, 4]


def test_the_cheapest_choice_is_not_the_greedy_one() -> None:
    costs = [{1: 1.0, 2: 0.6, 4: 0.0}, {1: 0.7, 2: 0.15, 4: 0.1}]
    assert cheapest(costs, 8) == [4, 4]
    assert cheapest(costs, 6) == [4, 2]
    assert cheapest(costs, 5) == [4, 1]
    assert cheapest(costs, 4) == [2, 2]
    assert cheapest(costs, 2) == [1, 1]


def test_shares_that_cannot_be_are_refused(make_gpt: Make, rows: list[Tensor]) -> None:
    model = make_gpt(n_head=4, d_head=6)
    with pytest.raises(ValueError, match=r"share=0.2 leaves 1 key/value heads for 2 layers.*at least 0.25"):
        counts_for_cache(model, 0.2, rows)
    with pytest.raises(ValueError, match="share must lie in 0 < share"):
        counts_for_cache(model, 1.5, rows)
    with pytest.raises(ValueError, match="calibration text"):
        counts_for_cache(model, 0.5, [])
    assert torch.is_grad_enabled()
