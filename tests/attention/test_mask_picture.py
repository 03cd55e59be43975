"""Masks drawn as text."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headwise.attention import Mask
from headwise.attention.mask_picture import HIDDEN, SEEN, SOME, runs, survey


def drawn(mask: Mask, T: int, S: int, offset: int | None = None, **chosen: int) -> list[str]:
    return mask.picture(T, S, offset, **chosen).splitlines()


def test_rows_are_queries_and_columns_are_keys() -> None:
    assert drawn(Mask.window(2), 3, 4) == [
        "a query sees its own key and the one before it",
        "3 queries (rows) at positions 1 … 3, 4 keys (columns)",
        "",
        "  0 1 2 3",
        "0 ■ ■ · ·",
        "1 · ■ ■ ·",
        "2 · · ■ ■",
        "",
        "■ seen  · hidden",
    ]


def test_an_offset_moves_the_queries() -> None:
    lines = drawn(Mask.causal(), 2, 4, 0)
    assert lines[1] == "2 queries (rows), 4 keys (columns)"
    assert lines[4:6] == ["0 ■ · · ·", "1 ■ ■ · ·"]


def test_queries_that_see_nothing_are_named() -> None:
    assert "queries 0, 1 see no key" in drawn(Mask.causal(), 4, 2)
    assert "query 0 sees no key" in drawn(Mask.causal(), 3, 2)
    assert "queries 0 … 2 see no key" in drawn(Mask.causal() & ~Mask.causal(), 3, 2)


def test_numbers_of_two_digits_are_written_downwards() -> None:
    lines = drawn(Mask.causal(), 1, 11)
    assert lines[3:5] == ["                      1", "  0 1 2 3 4 5 6 7 8 9 0"]


def test_each_sequence_is_drawn_and_one_can_be_chosen() -> None:
    mask = Mask.lengths(torch.tensor([1, 2]))
    both = ["sequence 0", "  0 1", "0 ■ ·", "", "sequence 1", "  0 1", "0 ■ ■"]
    assert drawn(mask, 1, 2)[3:10] == both
    assert drawn(mask, 1, 2, sequence=1)[3:6] == both[4:]
    by_head = Mask.keep(torch.eye(2, dtype=torch.bool)[None, :, None, :])
    assert drawn(by_head, 1, 2, head=1)[3:6] == ["head 1", "  0 1", "0 · ■"]
    table = Mask.keep(torch.ones(2, 3, 1, 2, dtype=torch.bool))
    assert "sequence 1, head 0" in drawn(table, 1, 2)


def test_many_sequences_are_not_all_drawn_and_that_is_said() -> None:
    lines = drawn(Mask.lengths(torch.arange(7)), 1, 6)
    assert [line for line in lines if line.startswith("sequence")] == [f"sequence {b}" for b in range(4)]
    assert lines[-1] == "3 more are not drawn: choose with sequence=… and head=…, from 0"


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"sequence": 2}, "sequence=2 cannot be drawn; there are 0 … 1"),
        ({"sequence": -1}, "sequence=-1 cannot be drawn"),
        ({"head": 1}, "head=1 cannot be drawn; this mask is the same for every head"),
    ],
)
def test_what_is_not_there_cannot_be_chosen(chosen: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Mask.lengths(torch.tensor([1, 2])).picture(1, 2, **chosen)


def test_a_long_mask_is_thinned_and_says_so() -> None:
    lines = drawn(Mask.window(5), 64, 70)
    assert lines[2] == "each cell stands for 2 × 3 pairs of query and key"
    assert lines[-1] == "■ seen  ▒ some of them seen  · hidden"
    grid = [line.split()[1:] for line in lines if line[:2].strip().isdigit() and "·" in line]
    assert len(grid) == 32
    table = Mask.window(5).to_tensor(64, 70)
    for i, row in enumerate(grid):
        for j, mark in enumerate(row):
            cell = table[2 * i : 2 * i + 2, 3 * j : 3 * j + 3]
            assert mark == ("■" if cell.all() else "▒" if cell.any() else "·")


def test_a_survey_is_the_mask_whatever_the_cells() -> None:
    torch.manual_seed(0)
    mask = Mask.keep(torch.rand(2, 3, 11, 13) > 0.3) | Mask.window(3)
    table = mask.to_tensor(11, 13)
    for side in (1, 2, 5, 13):
        found = survey(mask, 11, 13, side=side)
        rows, keys = found.block
        for i in range(found.levels.shape[2]):
            for j in range(found.levels.shape[3]):
                cell = table[:, :, i * rows : (i + 1) * rows, j * keys : (j + 1) * keys].flatten(2)
                wanted = np.where(cell.all(-1), SEEN, np.where(cell.any(-1), SOME, HIDDEN))
                assert (found.levels[:, :, i, j] == wanted).all()
        assert (found.blind == ~table.any(-1).numpy()).all()


def test_a_mask_too_long_to_be_a_tensor_is_drawn() -> None:
    lines = drawn(Mask.causal() & ~Mask.window(10**8), 320, 10**11, 0)
    assert "each cell stands for 10 × 3125000000 pairs of query and key" in lines
    assert "queries 0 … 319 see no key" in lines
    lines = drawn(Mask.causal(), 320, 10**11, 10**11)
    assert lines[-3].endswith("■ " * 31 + "■")


def test_empty_masks_are_drawn() -> None:
    assert drawn(Mask.causal(), 0, 3)[1] == "0 queries (rows), 3 keys (columns)"
    assert "queries 0, 1 see no key" in drawn(Mask.causal(), 2, 0)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="sizes of at least 0, got T=-1, S=2"):
        Mask.causal().picture(-1, 2)
    with pytest.raises(ValueError, match="ids of shape"):
        Mask.documents(torch.tensor([0, 1])).picture(3, 3)


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([], ""),
        ([3], "3"),
        ([1, 2], "1, 2"),
        ([1, 2, 3, 7], "1 … 3, 7"),
        ([0, 2, 4, 6, 8, 9], "0, 2, 4, 6 and 2 more"),
    ],
)
def test_runs_of_numbers(numbers: list[int], text: str) -> None:
    assert runs(numbers) == text
