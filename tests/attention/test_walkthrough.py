"""The NumPy walk-through: published numbers, the meaning of every step, and its errors."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from headwise.attention.walkthrough import (
    Inputs,
    join,
    mix,
    project,
    random_inputs,
    score,
    split,
    walk,
    weigh,
)

SEED_1_HEADS = [
    [[0.13, 0.04, 0.57, 0.26], [0.12, 0.69, 0.01, 0.18], [0.16, 0.71, 0.02, 0.11], [0.08, 0.80, 0.01, 0.11]],
    [[0.05, 0.89, 0.03, 0.03], [0.06, 0.49, 0.10, 0.34], [0.56, 0.01, 0.34, 0.10], [0.22, 0.09, 0.46, 0.22]],
]


def test_seed_1_gives_the_published_weights() -> None:
    result = walk(random_inputs(4, 8, seed=1), n_head=2)
    assert result.weights.round(2).tolist() == SEED_1_HEADS
    assert result.q_heads[0, 0].round(2).tolist() == [-1.19, -2.72, -0.72, 2.36]


def test_four_matrices_of_width_8_hold_256_weights() -> None:
    assert random_inputs(4, 8).parameters == 256


def test_draws_equal_the_global_numpy_seed_in_the_stated_order() -> None:
    state = np.random.get_state()
    np.random.seed(7)
    x = np.random.randn(3, 4)
    matrices = [0.5 * np.random.randn(4, 4) for _ in range(4)]
    np.random.set_state(state)
    inputs = random_inputs(3, 4, seed=7)
    for drawn, expected in zip(inputs, [x, *matrices], strict=True):
        np.testing.assert_array_equal(drawn, expected)


def test_drawing_leaves_the_global_generator_alone() -> None:
    before = np.random.get_state()[1].tolist()  # type: ignore[index,union-attr]
    random_inputs(4, 8)
    assert np.random.get_state()[1].tolist() == before  # type: ignore[index,union-attr]


def test_split_gives_each_head_neighbouring_columns_of_every_word() -> None:
    m = np.arange(12.0).reshape(2, 6)
    heads = split(m, 3)
    assert heads.tolist() == [[[0, 1], [6, 7]], [[2, 3], [8, 9]], [[4, 5], [10, 11]]]
    assert join(heads).tolist() == m.tolist()


def test_one_word_per_step_by_hand() -> None:
    """Two words, two heads of width 1: small enough to do on paper."""
    x = np.array([[1.0, 2.0], [3.0, -1.0]])
    identity = np.eye(2)
    swap = identity[::-1]
    result = walk(Inputs(x, identity, identity, identity, swap), n_head=2)
    assert result.scores.tolist() == [[[1, 3], [3, 9]], [[4, -2], [-2, 1]]]
    first = 1 / (1 + np.exp(2.0))  # softmax of (1, 3)
    assert result.weights[0, 0] == pytest.approx([first, 1 - first])
    assert result.head_outputs[0, 0, 0] == pytest.approx(first * 1 + (1 - first) * 3)
    assert result.output[:, 1].tolist() == result.head_outputs[0, :, 0].tolist()


def test_zero_queries_take_the_mean_of_the_values_they_see() -> None:
    scores = score(np.zeros((1, 3, 2)), np.ones((1, 3, 2)), causal=True)
    weights, outputs = weigh(scores, np.eye(3)[None])
    expected = [[1, 0, 0], [1 / 2, 1 / 2, 0], [1 / 3, 1 / 3, 1 / 3]]
    np.testing.assert_allclose(weights[0], expected)
    np.testing.assert_allclose(outputs[0], expected)


def test_causal_walk_differs_only_in_what_later_words_would_add() -> None:
    inputs = random_inputs(4, 8)
    open_, causal = walk(inputs, 2), walk(inputs, 2, causal=True)
    np.testing.assert_array_equal(open_.q, causal.q)
    assert np.all(causal.weights[:, ~np.tri(4, dtype=bool)] == 0.0)
    np.testing.assert_allclose(causal.weights.sum(-1), 1.0)
    np.testing.assert_allclose(causal.weights[:, 3], open_.weights[:, 3])
    np.testing.assert_allclose(causal.head_outputs[:, 0], causal.v_heads[:, 0])


def test_huge_scores_do_not_overflow() -> None:
    weights, _ = weigh(np.array([[[1e4, 0.0], [-1e4, -1e4]]]), np.ones((1, 2, 1)))
    assert weights.tolist() == [[[1, 0], [0.5, 0.5]]]


def test_output_is_the_sum_of_what_each_head_sends_through_its_rows_of_w_o() -> None:
    inputs = random_inputs(5, 6, seed=3)
    result = walk(inputs, 3)
    parts = [result.head_outputs[h] @ inputs.w_o[2 * h : 2 * h + 2] for h in range(3)]
    np.testing.assert_allclose(result.output, sum(parts))
    np.testing.assert_allclose(result.output, mix(result.joined, inputs.w_o))
    np.testing.assert_allclose(result.k, project(inputs.x, inputs.w_k))


def test_arrays_are_named_in_order() -> None:
    names = " ".join(walk(random_inputs(2, 4), 2).arrays())
    assert names == "x q k v q_heads k_heads v_heads scores weights head_outputs joined output"


@pytest.mark.parametrize(
    ("d_model", "n_head", "nearest"), [(8, 3, "2 or 4"), (8, 9, "8"), (7, 2, "1 or 7"), (12, 5, "4 or 6")]
)
def test_heads_that_do_not_divide_the_width_are_refused_with_counts_that_fit(
    d_model: int, n_head: int, nearest: str
) -> None:
    with pytest.raises(ValueError, match=rf"d_model={d_model}.*n_head={n_head}.*fit: {nearest}$"):
        walk(random_inputs(2, d_model), n_head)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 8, 1), "length must be at least 1, got 0"),
        ((4, 0, 1), "d_model must be at least 1, got 0"),
        ((4, 8, -1), "seed must lie in 0"),
        ((4, 8, 2**32), "seed must lie in 0"),
    ],
)
def test_impossible_inputs_are_refused(arguments: tuple[int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        random_inputs(*arguments)


def test_no_heads_are_refused() -> None:
    with pytest.raises(ValueError, match="n_head must be at least 1, got 0"):
        walk(random_inputs(2, 4), 0)


def test_walkthrough_never_imports_torch() -> None:
    code = "import sys, headwise.attention.walkthrough; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_public_name_of_the_package_is_found_when_asked_for() -> None:
    import headwise.attention

    for name in headwise.attention.__all__:
        assert getattr(headwise.attention, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = headwise.attention.Nonsense
