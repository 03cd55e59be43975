"""What group chooses by itself, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headwise.compress import expand, group, prune
from headwise.compress.partition import most_alike
from headwise.compress.rows import losses
from headwise.hub.subject import OwnSubject
from headwise.hub.surgery import head_counts
from headwise.text import Tokenizer

Make = Callable[..., nn.Module]
Gap = Callable[[nn.Module, nn.Module], float]


class Letters(OwnSubject):
    special_ids = frozenset()
    vocab_size = 31


LETTERS = "abcdefghijklmnopqrstuvwxyz01234"


@pytest.mark.parametrize(
    ("heads", "wanted", "message"),
    [
        (6, 4, "n_kv_head=4 does not divide the 6 key/value heads of layer 0; counts that fit: 3 or 6"),
        (6, 0, "n_kv_head=0 does not divide"),
        (4, 8, "n_kv_head=8 is more than the 4 key/value heads that layer 0 has; grouping makes fewer"),
        (4, [2, 3], "n_kv_head=3 does not divide the 4 key/value heads of layer 1"),
        (4, [2], "n_kv_head gives 1 numbers, but the model has 2 layers"),
    ],
)
def test_counts_that_do_not_fit_are_refused(heads: int, wanted: Any, message: str, make_gpt: Make) -> None:
    with pytest.raises(ValueError, match=message):
        group(make_gpt(n_head=heads, d_head=4), wanted, "mean")


def test_expansion_to_a_number_that_does_not_fit_is_refused(make_gpt: Make) -> None:
    with pytest.raises(ValueError, match="give a multiple of 2 that divides 6"):
        expand(make_gpt(n_head=6, n_kv_head=2, d_head=4), 3)


@pytest.mark.parametrize("method", ["aligned", "closed", "auto"])
def test_missing_calibration_text_is_refused(method: Any, make_gpt: Make) -> None:
    with pytest.raises(ValueError, match="calibrat"):
        group(make_gpt(n_head=4, d_head=6), 2, method)
    with pytest.raises(ValueError, match="calibration text"):
        group(make_gpt(n_head=4, d_head=6), 2, "mean", groups="similar")


def test_unknown_choices_are_refused(make_gpt: Make, rows: list[Tensor]) -> None:
    model: Any = make_gpt(n_head=4, d_head=6)
    with pytest.raises(ValueError, match=r"method must be one of mean, first.*got 'median'"):
        group(model, 2, "median", rows)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="groups must be one of contiguous, similar, auto; got 'random'"):
        group(model, 2, "mean", rows, groups="random")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a bare model has no tokenizer"):
        group(model, 2, "closed", ["text"])


def test_a_model_without_output_projection_is_refused(make_gpt: Make) -> None:
    with pytest.raises(ValueError, match="no output projection"):
        group(make_gpt(n_head=4, d_head=6, output_projection="identity"), 2, "mean")


def test_texts_of_a_subject_are_cut_into_rows(make_gpt: Make) -> None:
    torch.manual_seed(0)
    text = "".join(LETTERS[i] for i in torch.randint(31, (150,)))
    model: Any = make_gpt(n_head=4, d_head=6)
    subject = Letters(model, Tokenizer.from_alphabet(LETTERS))
    ids = subject.encode(text)
    rows = [torch.tensor([ids[start : start + 32]]) for start in range(0, 150, 32)]
    by_text = group(subject, 2, "closed", [text[:70], text[70:]]).model
    by_rows = group(model, 2, "closed", rows).model
    assert all(torch.equal(a, b) for a, b in zip(by_text.parameters(), by_rows.parameters(), strict=True))
    with pytest.raises(ValueError, match="the text has 1 tokens; give some 10,000"):
        group(subject, 2, "closed", ["a"])


@torch.no_grad()
def written_by(model: nn.Module) -> Tensor:
    """Texts (128, 31) drawn from a model, on which no other can be expected to lose less."""
    torch.manual_seed(0)
    ids = torch.randint(31, (128, 1))
    for _ in range(30):
        ids = torch.cat((ids, torch.multinomial(model(ids)[:, -1].softmax(dim=-1), 1)), dim=1)
    return ids


def test_auto_keeps_the_candidate_that_loses_least(
    make_gpt: Make, rows: list[Tensor], scramble: Make, gap: Gap
) -> None:
    parent = make_gpt(n_head=6, n_kv_head=2, d_head=6)
    scrambled = scramble(expand(parent), permute=True, seed=2)
    held_out = [written_by(parent)]
    layers, told = [], {}
    result = group(
        scrambled,
        2,
        "auto",
        rows,
        groups="auto",
        held_out=held_out,
        on_layer=lambda *given: layers.append(given),
        on_candidate=lambda method, groups, loss: told.update({(method, groups): loss}),
    )
    assert told == result.candidates
    assert layers == [(*candidate, done, 2) for candidate in told for done in (1, 2)]
    # both find the parent again, up to rounding
    assert result.method in ("closed", "fitted")
    assert result.groups == "similar"
    assert len(result.candidates) == 14
    assert result.candidates[result.method, "similar"] == min(result.candidates.values())
    assert min(result.candidates.values()) == pytest.approx(float(losses(parent, held_out).mean()), abs=1e-5)
    assert gap(result.model, parent) < 1e-5


def test_each_layer_may_have_its_own_count(make_gpt: Make, rows: list[Tensor]) -> None:
    model: Any = make_gpt(n_head=4, d_head=6)
    result = group(model, [4, 1], "closed", rows)
    made: Any = result.model
    assert head_counts(made) == [(4, 4), (4, 1)]
    assert made.config.layer_heads == ((4, 4), (4, 1))
    assert result.cache_share == 5 / 8
    assert made.new_cache(3).nbytes * 8 == model.new_cache(3).nbytes * 5


def test_layers_without_heads_are_passed_over(make_gpt: Make, rows: list[Tensor], gap: Gap) -> None:
    parent = prune(make_gpt(n_head=4, n_kv_head=2, d_head=6), [(0, h) for h in range(4)]).model
    result = group(expand(parent), 2, "closed", rows)
    assert result.after == [(0, 0), (4, 2)]
    assert gap(result.model, parent) < 1e-5


def test_training_mode_and_gradients_stay(make_gpt: Make, rows: list[Tensor]) -> None:
    model = make_gpt(n_head=4, d_head=6, dropout=0.1).train()
    result = group(model, 2, "closed", rows)
    assert result.model.training
    assert model.training
    assert all(p.requires_grad for p in result.model.parameters())


@pytest.mark.parametrize("heads", [8, 18])
def test_planted_groups_are_found(heads: int) -> None:
    # beyond 16 heads by swaps
    torch.manual_seed(0)
    order = torch.randperm(heads)
    likeness = 0.1 * torch.rand(heads, heads)
    likeness = likeness + likeness.T
    planted = [sorted(order[start : start + 2].tolist()) for start in range(0, heads, 2)]
    for a, b in planted:
        likeness[a, b] = likeness[b, a] = 1.0
    assert most_alike(likeness, heads // 2) == sorted(planted)


def test_the_best_partition_is_not_the_greedy_one() -> None:
    # the best pair 0-1 would leave 2-3, which have nothing in common
    likeness = torch.zeros(4, 4)
    for a, b, value in ((0, 1, 1.0), (0, 2, 0.9), (1, 3, 0.9)):
        likeness[a, b] = likeness[b, a] = value
    assert most_alike(likeness, 2) == [[0, 2], [1, 3]]
