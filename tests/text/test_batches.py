from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.text import Batches, TokenFile, Tokenizer, sequential_windows, write_tokens

Make = Callable[[int], TokenFile]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Token files of the ids 0, 1, 2, …, made once for each length."""
    many = Tokenizer.from_alphabet(map(chr, range(0x4E00, 0x4E00 + 2000)))
    made: dict[int, TokenFile] = {}

    def make(count: int) -> TokenFile:
        if count not in made:
            path = tmp_path_factory.getbasetemp() / f"{count}.tokens"
            write_tokens(path, [np.arange(count)], many)
            made[count] = TokenFile(path)
        return made[count]

    return make


def test_targets_are_the_next_tokens(files: Make) -> None:
    x, y = Batches(files(200), block_size=8, batch_size=5, seed=3).at(7)
    assert x.shape == y.shape == (5, 8)
    assert x.dtype == y.dtype == torch.int64
    assert torch.equal(y, x + 1)
    assert torch.equal(x - x[:, :1], torch.arange(8).expand(5, 8))


@settings(deadline=None, max_examples=100)
@given(
    block=st.integers(1, 12),
    extra=st.integers(1, 60),
    batch=st.integers(1, 9),
    seed=st.integers(0, 5),
    data=st.data(),
)
def test_an_epoch_visits_windows_that_do_not_overlap(
    files: Make, block: int, extra: int, batch: int, seed: int, data: st.DataObject
) -> None:
    count = block + extra
    batches = Batches(files(count), block, batch, seed)
    per_epoch = batches.windows_per_epoch
    epoch = data.draw(st.integers(0, 3))
    one = Batches(files(count), block, 1, seed)
    starts = sorted(int(one.at(epoch * per_epoch + index)[0][0, 0]) for index in range(per_epoch))
    phase = starts[0] % block
    assert all(start % block == phase for start in starts)
    assert len(set(starts)) == per_epoch
    assert starts[-1] + block < count
    # no more than the ends and one window in the middle are left out
    assert per_epoch * block >= min(block, count - 2 * block)
    # the batch is the stream of windows, also over the edges of epochs
    position = data.draw(st.integers(0, 3 * per_epoch))
    expected = torch.cat([one.at(position + row)[0] for row in range(batch)])
    assert torch.equal(batches.at(position)[0], expected)


def test_a_batch_depends_on_seed_and_position_alone(files: Make) -> None:
    walked = Batches(files(300), 16, 4, seed=1)
    expected = {position: walked.at(position) for position in range(0, 400, 4)}
    for position in (396, 0, 120, 36):
        again = Batches(files(300), 16, 4, seed=1).at(position)
        assert torch.equal(again[0], expected[position][0])
        assert torch.equal(walked.at(position)[1], expected[position][1])


def test_seeds_and_epochs_have_their_own_order_and_phase(files: Make) -> None:
    def epoch(seed: int, number: int) -> list[int]:
        batches = Batches(files(1000), 16, 61, seed)
        assert batches.windows_per_epoch == 61
        return batches.at(number * 61)[0][:, 0].tolist()

    orders = [epoch(seed, number) for seed in range(3) for number in range(6)]
    assert len({tuple(order) for order in orders}) == 18
    assert len({order[0] % 16 for order in orders}) > 5
    assert all(order != sorted(order) for order in orders)


def test_the_draws_are_the_same_in_every_version(files: Make) -> None:
    x, _ = Batches(files(100), 8, 11, seed=0).at(0)
    assert x[:, 0].tolist() == [87, 23, 15, 7, 63, 47, 55, 31, 79, 39, 71]


def test_every_phase_is_used(files: Make) -> None:
    batches = Batches(files(100), 8, 1, seed=0)
    seen = {int(batches.at(epoch * batches.windows_per_epoch)[0][0, 0]) % 8 for epoch in range(200)}
    assert seen == set(range(8))


def test_positions_count_windows(files: Make) -> None:
    batches = Batches(files(100), 8, 3, seed=0)
    assert batches.windows_per_epoch == 11
    assert torch.equal(batches.at(0)[0][1:], batches.at(1)[0][:2])


@pytest.mark.parametrize("block", [1, 2, 64])
def test_exactly_one_window_is_enough(files: Make, block: int) -> None:
    batches = Batches(files(block + 1), block, batch_size=3, seed=0)
    assert batches.windows_per_epoch == 1
    x, y = batches.at(5)
    assert x.tolist() == [list(range(block))] * 3
    assert y.tolist() == [list(range(1, block + 1))] * 3


def test_one_token_less_is_an_error(files: Make) -> None:
    with pytest.raises(
        ValueError, match=r"has 64 tokens, but block_size 64 needs at least 65; .* fits is 63"
    ):
        Batches(files(64), 64, 1, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1, 0), "block_size must be at least 1; got 0"),
        ((1, 0, 0), "batch_size must be at least 1; got 0"),
        ((1, 1, -1), "seed must be 0 or more; got -1"),
    ],
)
def test_sizes_out_of_range_are_errors(files: Make, arguments: tuple[int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Batches(files(10), *arguments)


def test_a_negative_position_is_an_error(files: Make) -> None:
    with pytest.raises(ValueError, match="position counts windows from 0; got -1"):
        Batches(files(10), 2, 1, 0).at(-1)


# Evaluation


@settings(deadline=None, max_examples=100)
@given(count=st.integers(2, 80), block=st.integers(1, 20), batch=st.integers(1, 5))
def test_an_evaluation_predicts_every_token_once_in_order(
    files: Make, count: int, block: int, batch: int
) -> None:
    found = list(sequential_windows(files(count), block, batch))
    x = torch.cat([x for x, _ in found]).flatten()
    y = torch.cat([y for _, y in found]).flatten()
    assert y[: count - 1].tolist() == list(range(1, count))
    assert x[: count - 1].tolist() == list(range(count - 1))
    assert torch.all(y[count - 1 :] == -100)
    assert torch.all(x[count - 1 :] == 0)
    assert len(y) - (count - 1) < block
    assert all(x.shape == y.shape == (batch, block) for x, y in found[:-1])
    assert found[-1][0].shape[0] <= batch


def test_an_evaluation_of_nothing_is_an_error_at_once(files: Make) -> None:
    with pytest.raises(ValueError, match="has 1 tokens; nothing to predict with fewer than 2"):
        sequential_windows(files(1), 4, 1)
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        sequential_windows(files(9), 4, 0)
