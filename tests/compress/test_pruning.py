"""A pruned model computes what the whole one does with the removed heads silenced, and is really smaller."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn

from headwise.compress import choose, level, prune
from headwise.heads import observe
from headwise.hub.surgery import head_counts, layer_handles, next_token_logits
from headwise.model import GPT, load_model, save_model
from headwise.text import Tokenizer

Make = Callable[..., nn.Module]
Gap = Callable[[nn.Module, nn.Module], float]
Heads = Collection[tuple[int, int]]

IDS = torch.randint(31, (2, 20), generator=torch.Generator().manual_seed(3))


@contextmanager
def silenced(model: nn.Module, heads: Heads) -> Iterator[None]:
    """Gate heads to zero through the seam, or for a transformers model before the output projection."""
    if isinstance(model, GPT):
        gates = torch.ones(model.config.n_layer, model.config.n_head)
        for layer, head in heads:
            gates[layer, head] = 0.0
        with observe(model, gates=gates):
            yield
        return
    hooks = []
    for handle in layer_handles(model):
        gate = torch.ones(handle.n_head)
        gate[[head for layer, head in heads if layer == handle.index]] = 0.0
        wide = gate.repeat_interleave(handle.d_head)
        hooks.append(handle.o_proj.register_forward_pre_hook(lambda _, args, wide=wide: (args[0] * wide,)))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@torch.no_grad()
def assert_as_silenced(model: nn.Module, heads: Heads) -> nn.Module:
    with silenced(model, heads):
        wanted = next_token_logits(model, IDS)
    assert float((wanted - next_token_logits(model, IDS)).abs().max()) > 1e-3
    result = prune(model, heads)
    assert float((next_token_logits(result.model, IDS) - wanted).abs().max()) < 1e-5
    return result.model


@pytest.mark.parametrize(
    "heads",
    [
        [(0, 2)],
        [(0, 0), (0, 3), (1, 1)],
        [(1, 0), (1, 1), (1, 2), (1, 3)],
        [(0, 0), (1, 3)],
    ],
    ids=["one head", "other counts per layer", "all heads of a layer", "equal counts"],
)
@pytest.mark.parametrize("preset", ["gpt", "gpt2"])
def test_heads_of_our_own_model(preset: str, heads: Heads, make_gpt: Make) -> None:
    model = make_gpt(preset, n_head=4, d_head=6)
    pruned = assert_as_silenced(model, heads)
    per_head = 4 * 24 * 6 + (3 * 6 if preset == "gpt2" else 0)
    kept = [model.config.n_head - len([1 for layer, _ in heads if layer == i]) for i in range(2)]
    # of a layer without heads its output bias stays
    assert pruned.num_parameters() == model.num_parameters() - per_head * len(heads)
    assert [h for h, _ in head_counts(pruned)] == kept


@pytest.mark.parametrize("kind", ["Llama", "Qwen2", "Starcoder2", "Cohere"])
def test_heads_of_transformers_models(kind: str, make_hf: Make) -> None:
    assert_as_silenced(make_hf(kind), [(0, 1), (1, 1), (1, 2)])


@pytest.mark.parametrize(
    ("heads", "after"),
    [
        ([(0, 0), (0, 1), (0, 2)], [(3, 1), (6, 2)]),
        ([(0, 0), (0, 5)], [(4, 2), (6, 2)]),
        ([(0, 3), (0, 4), (0, 5), (1, 0), (1, 3), (1, 1), (1, 4)], [(3, 1), (2, 2)]),
    ],
    ids=["a whole group", "one of each group", "both"],
)
@pytest.mark.parametrize("kind", ["own", "Llama"])
def test_grouped_heads(
    kind: str, heads: Heads, after: list[tuple[int, int]], make_gpt: Make, make_hf: Make
) -> None:
    shape = {"num_attention_heads": 6, "num_key_value_heads": 2}
    model = make_gpt(n_head=6, n_kv_head=2, d_head=4) if kind == "own" else make_hf("Llama", **shape)
    assert head_counts(assert_as_silenced(model, heads)) == after


def test_groups_of_different_sizes_are_refused_with_the_counts_that_fit(make_gpt: Make) -> None:
    model = make_gpt(n_head=14, n_kv_head=2, d_head=4)
    with pytest.raises(
        ValueError, match=r"layer 0 has 14 query heads in 2 groups of 7.*4 or 7.*multiple of 7.*multiple of 2"
    ):
        prune(model, [(0, 0), (0, 1), (0, 2)])


def test_the_cache_shrinks_with_the_key_value_heads(make_gpt: Make) -> None:
    model = make_gpt(n_head=6, n_kv_head=2, d_head=4)
    result = prune(model, [(0, 0), (0, 1), (0, 2)])
    assert result.cache_share == 0.75
    assert result.model.new_cache(2).nbytes == 0.75 * model.new_cache(2).nbytes


@pytest.mark.parametrize("heads", [[(0, 1)], [(0, h) for h in range(4)]], ids=["one", "all of a layer"])
@torch.no_grad()
def test_a_cache_gives_the_same_as_none(heads: Heads, make_gpt: Make) -> None:
    model = prune(make_gpt(n_head=4, d_head=6), heads).model
    cache = model.new_cache(2)
    steps = [model(IDS[:, :7], cache=cache), *(model(IDS[:, t : t + 1], cache=cache) for t in range(7, 20))]
    assert float((torch.cat(steps, dim=1) - model(IDS)).abs().max()) < 1e-5
    logits, weights = model(IDS, return_weights=True)
    assert [w.shape[1] for w in weights] == [h for h, _ in head_counts(model)]
    assert float((logits - model(IDS)).abs().max()) < 1e-5


def test_our_own_folder_keeps_layers_that_differ(make_gpt: Make, tmp_path: Path, gap: Gap) -> None:
    tokenizer = Tokenizer.from_alphabet("abcdefghijklmnopqrstuvwxyz01234")
    model = prune(make_gpt("gpt2", n_head=4, d_head=6), [(0, 1), *((1, h) for h in range(4))]).model
    save_model(tmp_path, model, tokenizer)
    loaded, _ = load_model(tmp_path)
    assert loaded.config.layer_heads == ((3, 3), (0, 0))
    assert gap(loaded, model) == 0.0
    # and it can go on from there
    assert head_counts(prune(loaded, [(0, 0)]).model) == [(2, 2), (0, 0)]


def test_equal_counts_need_nothing_but_numbers(make_gpt: Make) -> None:
    pruned = prune(make_gpt(n_head=4, d_head=6), [(0, 1), (1, 2)]).model
    assert (pruned.config.n_head, pruned.config.d_head, pruned.config.layer_heads) == (3, 6, None)


def test_all_heads_of_a_transformers_layer_are_refused(make_hf: Make) -> None:
    with pytest.raises(ValueError, match="all 4 heads of layer 1 would go, and LlamaDecoderLayer has no"):
        prune(make_hf("Llama"), [(1, h) for h in range(4)])


def test_protected_and_missing_heads_are_refused(make_gpt: Make) -> None:
    model = make_gpt(n_head=4, d_head=6)
    with pytest.raises(ValueError, match=r"heads 0\.1 are protected"):
        prune(model, [(0, 1), (1, 1)], protect=[(0, 1), (0, 2)])
    with pytest.raises(ValueError, match=r"heads names head 4 of layer 0, which has heads 0 … 3"):
        prune(model, [(0, 4), (2, 0)])
    with pytest.raises(TypeError, match="heads must hold pairs"):
        prune(model, ["0.1"])


ORDER = [(1, 3), (1, 0), (0, 2), (1, 1), (0, 0), (1, 2), (0, 1), (0, 3)]


def test_heads_are_chosen_by_the_order(make_gpt: Make) -> None:
    model = make_gpt(n_head=4, d_head=6)
    assert choose(model, ORDER, 3) == [(0, 2), (1, 0), (1, 3)]
    assert choose(model, ORDER, 3, protect=[(1, 0)]) == [(0, 2), (1, 1), (1, 3)]
    assert choose(model, ORDER, 2, uniform=True) == [(0, 2), (1, 3)]
    assert len(choose(model, ORDER, 6)) == 6
    assert choose(model, ORDER, 6) == sorted([*ORDER[:5], (0, 1)])  # one head stays in layer 1
    assert choose(model, ORDER, 6, least=0) == sorted(ORDER[:6])


def test_groups_are_chosen_whole_or_one_head_of_each(make_gpt: Make) -> None:
    model = make_gpt(n_head=4, n_kv_head=2, d_head=6)
    assert choose(model, ORDER, 2) == [(1, 0), (1, 1)]
    assert choose(model, ORDER, 2, rule="within") == [(1, 0), (1, 3)]
    assert choose(model, ORDER, 2, protect=[(1, 1)]) == [(1, 2), (1, 3)]
    with pytest.raises(ValueError, match=r"3 heads cannot be removed exactly.*parts of 2 heads, and 2 is"):
        choose(model, ORDER, 3)
    with pytest.raises(ValueError, match=r"3 heads cannot be taken evenly from 2 layers; give 2 or 4"):
        choose(model, ORDER, 3, uniform=True)
    with pytest.raises(ValueError, match="1 heads cannot be taken evenly from 2 layers; give 2$"):
        choose(model, ORDER, 1, uniform=True)
    with pytest.raises(
        ValueError,
        match="^2 heads cannot be taken evenly, 1 from each of 2 layers: layer 0 can give 0, as it keeps a "
        "part and what may go goes in parts of 2 heads; 0 is the nearest number below that goes evenly; take "
        "another rule, or do without uniform$",
    ):
        choose(model, ORDER, 2, uniform=True)
    with pytest.raises(
        ValueError,
        match="^4 heads cannot be taken evenly, 2 from each of 2 layers: layer 1 can give 0.*protect fewer",
    ):
        choose(model, ORDER, 4, uniform=True, protect=[(1, 0), (1, 3)])
    assert choose(model, ORDER, 4, uniform=True) == [(0, 2), (0, 3), (1, 0), (1, 1)]
    with pytest.raises(ValueError, match="order must name each of the 8 heads once, got 7 names"):
        choose(model, ORDER[1:], 2)


def test_parts_of_different_sizes_are_chosen_so_that_they_add_up(make_gpt: Make) -> None:
    model = prune(make_gpt(n_head=4, n_kv_head=2, d_head=6), [(0, 0), (0, 2)]).model
    assert head_counts(model) == [(2, 2), (4, 2)]
    order = [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (1, 3)]
    assert choose(model, order, 2, rule="within") == [(1, 0), (1, 2)]  # not 0.0, with which 1 would be left
    assert choose(model, order, 3, rule="within") == [(0, 0), (1, 0), (1, 2)]
    with pytest.raises(
        ValueError, match="4 heads cannot be removed exactly.* parts of 1 or 2 heads, and 3 is"
    ):
        choose(model, order, 4, rule="within")


@pytest.mark.parametrize(
    "heads",
    [[(0, 0), (0, 1), (0, 2)], [(0, 0), (0, 5)], [(0, 0), (0, 1), (0, 3), (0, 4), (1, 0), (1, 1), (1, 2)]],
)
def test_layers_that_differ_are_levelled_without_loss(heads: Heads, make_hf: Make, gap: Gap) -> None:
    pruned = prune(make_hf("Llama", num_attention_heads=6, num_key_value_heads=2), heads).model
    levelled = level(pruned)
    counts = head_counts(levelled)
    assert len(set(counts)) == 1
    assert counts[0] == (levelled.config.num_attention_heads, levelled.config.num_key_value_heads)
    assert gap(levelled, pruned) < 1e-5
