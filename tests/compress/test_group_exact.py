"""Where heads are the same up to what attention cannot see, merging them changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import pytest
import torch
from torch import Tensor, nn

from headwise.attention import Rotary
from headwise.compress import expand, group
from headwise.compress.grouping import Method
from headwise.compress.layer_by_layer import AttentionRun, LayerByLayer
from headwise.hub.surgery import head_counts, layer_handles

METHODS = get_args(Method)
EXACT = 1e-5

Make = Callable[..., nn.Module]
Gap = Callable[[nn.Module, nn.Module], float]

KINDS = ["half-split", "interleaved", "partly turned", "learned", "none"]


@pytest.fixture
def make(make_gpt: Make, make_hf: Make) -> Make:
    """A parent with 2 key/value heads, by kind of positions or by class."""

    def build(kind: str, heads: int = 4, kv: int = 2) -> nn.Module:
        if kind in ("Llama", "Mistral", "Qwen2", "Starcoder2", "Cohere"):
            width = {"hidden_size": heads * 6}
            return make_hf(kind, num_attention_heads=heads, num_key_value_heads=kv, **width)
        position = {"learned": "learned", "none": "none"}.get(kind, "rotary")
        shape = {"n_head": heads, "n_kv_head": kv, "d_head": 6, "position": position}
        model = make_gpt(interleaved=kind == "interleaved", bias=True, **shape)
        for block in model.blocks if kind == "partly turned" else ():
            block.attention.rotary = Rotary(6, fraction=0.7)
        return model

    return build


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["half-split", "learned", "Llama"])
def test_as_many_heads_as_before_change_nothing(
    kind: str, method: Method, make: Make, rows: list[Tensor], gap: Gap
) -> None:
    parent = make(kind)
    assert gap(group(parent, 2, method, rows).model, parent) == 0.0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", [*KINDS, "Llama", "Mistral", "Qwen2", "Starcoder2", "Cohere"])
def test_expanded_and_grouped_back_is_unchanged(
    kind: str, method: Method, make: Make, rows: list[Tensor], gap: Gap
) -> None:
    parent = make(kind)
    wide = expand(parent)
    assert head_counts(wide) == [(4, 4)] * 2
    assert gap(wide, parent) < EXACT
    result = group(wide, 2, method, rows)
    assert result.after == [(4, 2)] * 2
    assert result.cache_share == 0.5
    assert gap(result.model, parent) < EXACT


@pytest.mark.parametrize("method", METHODS)
def test_nine_heads_come_back_to_three(method: Method, make: Make, rows: list[Tensor], gap: Gap) -> None:
    parent = make("Llama", heads=9, kv=3)
    wide = expand(parent)
    assert head_counts(wide) == [(9, 9)] * 2
    result = group(wide, 3, method, rows)
    assert result.after == [(9, 3)] * 2
    assert gap(result.model, parent) < EXACT


@pytest.mark.parametrize("kind", [*KINDS, "Llama", "Qwen2", "Starcoder2", "Cohere"])
def test_scrambled_heads_are_recovered_in_closed_form_and_ruined_by_the_mean(
    kind: str, make: Make, rows: list[Tensor], gap: Gap, scramble: Make
) -> None:
    parent = make(kind)
    scrambled = scramble(expand(parent))
    assert gap(scrambled, parent) < EXACT
    assert gap(group(scrambled, 2, "closed", rows).model, parent) < EXACT
    assert gap(group(scrambled, 2, "fitted", rows).model, parent) < EXACT
    for method in ("mean", "first", "mean+renorm"):
        assert gap(group(scrambled, 2, method).model, parent) > 0.1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["aligned", "aligned+renorm"])
def test_turned_heads_are_recovered_by_alignment(
    kind: str, method: Method, make: Make, rows: list[Tensor], gap: Gap, scramble: Make
) -> None:
    parent = make(kind)
    turned = scramble(expand(parent), orthogonal=True)
    assert gap(group(turned, 2, method, rows).model, parent) < EXACT


@pytest.mark.parametrize("kind", KINDS)
def test_permuted_heads_are_found_by_their_likeness(
    kind: str, make: Make, rows: list[Tensor], gap: Gap, scramble: Make
) -> None:
    parent = make(kind, heads=6)
    permuted = scramble(expand(parent), permute=True, seed=2, orthogonal=True)
    result = group(permuted, 2, "closed", rows, groups="similar")
    assert gap(result.model, parent) < EXACT
    assert any(partition != [[0, 1, 2], [3, 4, 5]] for partition in result.partitions)
    assert gap(group(permuted, 2, "closed", rows).model, parent) > 0.1


@pytest.mark.parametrize("kind", ["half-split", "Qwen2"])
def test_fourteen_heads_in_two_groups(
    kind: str, make: Make, rows: list[Tensor], gap: Gap, scramble: Make
) -> None:
    parent = make(kind, heads=14)
    scrambled = scramble(expand(parent), permute=True)
    result = group(scrambled, 2, "closed", rows, groups="similar")
    assert result.after == [(14, 2)] * 2
    assert gap(result.model, parent) < EXACT


@pytest.mark.parametrize("kind", ["half-split", "interleaved", "learned"])
def test_fewer_key_value_heads_of_grouped_ones(
    kind: str, make: Make, rows: list[Tensor], gap: Gap, scramble: Make
) -> None:
    parent = make(kind, heads=8, kv=2)
    scrambled = scramble(expand(parent, 4))
    assert head_counts(scrambled) == [(8, 4)] * 2
    result = group(scrambled, 2, "closed", rows)
    assert gap(result.model, parent) < EXACT


@pytest.mark.parametrize("kind", [*KINDS, "Llama", "Cohere", "Qwen2"])
@torch.no_grad()
def test_fitted_heads_attend_more_as_they_did_than_those_in_closed_form(kind: str, make: Make) -> None:
    parent = make(kind, heads=4, kv=4)
    texts = [torch.randint(31, (24, 24), generator=torch.Generator().manual_seed(9))]
    apart = {}
    for method in ("mean", "closed", "fitted"):
        made = group(parent, [2, 4], method, texts).model  # type: ignore[arg-type]
        runs = [first_layer(model, texts[:1]) for model in (parent, made)]
        apart[method] = float((runs[0].y - runs[1].y).square().mean() / runs[0].y.square().mean())
    assert apart["fitted"] < apart["closed"] < apart["mean"]


def test_each_query_head_of_a_group_keeps_its_own_map(make: Make, rows: list[Tensor]) -> None:
    # queries summed over a group would give all its heads one map
    model = group(make("half-split", heads=4, kv=4), 1, "closed", rows).model
    with torch.no_grad():
        weights = model(rows[0], return_weights=True)[1][0]  # (B, H, T, T)
    assert all(float((weights[:, 0] - weights[:, h]).abs().max()) > 0.01 for h in (1, 2, 3))


def test_neighbouring_query_heads_share_a_key_value_head(make: Make) -> None:
    # query heads 2 and 3 read key/value head 1, and not heads 1 and 3
    grouped = group(make("half-split", heads=4, kv=4), 2, "first").model
    attention = grouped.blocks[0].attention
    with torch.no_grad():
        attention.v_proj.weight[6:] = 0.0
        attention.v_proj.bias[6:] = 0.0
        joined: list[Tensor] = []
        attention.o_proj.register_forward_pre_hook(lambda _, args: joined.append(args[0]))
        grouped(torch.arange(9).unsqueeze(0))
    heads = joined[0].reshape(9, 4, 6)
    assert float(heads[:, 2:].abs().max()) == 0.0
    assert float(heads[:, :2].abs().min(dim=1).values.max()) > 0.0


def first_layer(model: nn.Module, texts: list[Tensor]) -> AttentionRun:
    handles = layer_handles(model)
    return next(LayerByLayer(model, handles, texts).runs(handles[0]))
