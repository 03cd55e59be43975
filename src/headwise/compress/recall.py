"""Associative recall: values of keys that were shown, asked for plainly.

Letters: N rows, L tokens of a row, D pairs of key and value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor, nn

from headwise.hub.modes import evaluating
from headwise.hub.surgery import next_token_logits
from headwise.text.normal import normalise

IGNORED = -100


@dataclass(frozen=True, eq=False)
class Recall:
    """Rows of tokens in which keys come again, and what has to be said there."""

    ids: Tensor
    """(N, L) int64."""
    wanted: Tensor
    """(N, L) int64: at a key that comes again its value, elsewhere -100."""
    gap: Tensor
    """(N, L) int64: tokens between that key and where it stood with its value; 0 elsewhere."""
    pairs: int
    power: float
    keys: list[int]
    values: list[int]
    """The tokens that were drawn from."""

    @property
    def chance(self) -> float:
        """The share of right answers of whoever guesses one of the values."""
        return 1 / len(self.values)

    def after(self, start: Sequence[int]) -> Recall:
        """Return the same rows behind these tokens."""
        more = torch.tensor(list(start), dtype=torch.int64).expand(len(self.ids), -1)
        return replace(
            self,
            ids=torch.cat((more, self.ids), dim=1),
            wanted=torch.cat((torch.full_like(more, IGNORED), self.wanted), dim=1),
            gap=torch.cat((torch.zeros_like(more), self.gap), dim=1),
        )


def recall_rows(
    rows: int,
    length: int,
    pairs: int,
    *,
    keys: Sequence[int],
    values: Sequence[int],
    blank: int | None = None,
    answered: bool = False,
    power: float = 0.01,
    seed: int = 0,
) -> Recall:
    """Return rows of associative recall (Arora et al. 2023, arXiv:2312.04927).

    A row begins with `pairs` keys, each followed by its value: D different keys, D different values. Then
    every key comes once more, at the even positions of the rest; what has to be said there is its value. The
    rest is blank.

    keys, values: the tokens to draw from, none in both. blank: the token in between; rows of 4 · pairs tokens
        with answers have no such place, and need none.
    answered: put its value after each question, as a text would that a language model learns from, such as
        that of `recall_lines`.
    power: slot s of the rest is drawn for a key with a probability like power · s^(power - 1): 0.01 pulls the
        questions to the front (those of early keys, where every slot is taken), 1 spreads them evenly.
    seed: the same seed gives the same rows.

    Raises:
        ValueError: a length below 4 · pairs, too few keys or values, one token for two things, no blank where
            one is needed.
    """
    if rows < 1 or pairs < 1 or not 0 < power < math.inf:
        raise ValueError(
            f"rows, pairs and power must be numbers above 0, got rows={rows}, pairs={pairs}, power={power}"
        )
    if length < 4 * pairs:
        raise ValueError(
            f"length={length} is too short for {pairs} pairs, which take {4 * pairs} tokens with questions"
        )
    if len(set(keys)) < pairs or len(set(values)) < pairs:
        raise ValueError(
            f"{pairs} pairs need as many different keys and values, got {len(set(keys))} and "
            f"{len(set(values))}"
        )
    if set(keys) & set(values) or blank in {*keys, *values}:
        raise ValueError("keys, values and blank must be different tokens")
    if blank is None and not (answered and length == 4 * pairs):
        raise ValueError(
            f"blank is needed: only rows of 4 · pairs = {4 * pairs} tokens with answered=True are filled, "
            f"got length={length}, answered={answered}"
        )
    generator = torch.Generator().manual_seed(seed)
    slots = (length - 2 * pairs) // 2
    chance = torch.arange(1, slots + 1, dtype=torch.float64) ** (power - 1)
    if not bool(torch.isfinite(chance).all()) or int((chance > 0).sum()) < pairs:
        raise ValueError(f"power={power} leaves places that no question ever gets; give one nearer to 1")
    ids = torch.full((rows, length), IGNORED if blank is None else blank)
    wanted = torch.full((rows, length), IGNORED)
    gap = torch.zeros(rows, length, dtype=torch.int64)
    every_key, every_value = torch.tensor(sorted(set(keys))), torch.tensor(sorted(set(values)))
    for row in range(rows):
        key = every_key[torch.randperm(len(every_key), generator=generator)[:pairs]]
        value = every_value[torch.randperm(len(every_value), generator=generator)[:pairs]]
        slot = torch.multinomial(chance, pairs, replacement=False, generator=generator)
        first, again = 2 * torch.arange(pairs), 2 * pairs + 2 * slot
        ids[row, first], ids[row, first + 1] = key, value
        ids[row, again], wanted[row, again] = key, value
        gap[row, again] = again - first
        if answered:
            ids[row, again + 1] = value
    return Recall(ids, wanted, gap, pairs, power, every_key.tolist(), every_value.tolist())


def recall_lines(lines: int, pairs: int, *, keys: str, values: str, seed: int = 0) -> list[str]:
    """Return lines of text to learn recall from: `AxByCz` and so on, then each key again with its value.

    These are the rows of `recall_rows` with length 4 · pairs, answered and spread evenly. Mixed into a text
    that a model is trained on, they make it one that can be judged by recall.

    keys, values: characters to draw from, each once, none in both.

    Raises:
        ValueError: as `recall_rows`; a character twice, or one that ends a line or joins its neighbour.
    """
    letters = keys + values
    if len(set(letters)) < len(letters):
        raise ValueError(f"keys and values must be different characters, got {keys!r} and {values!r}")
    joined = "".join(before + after for before in letters for after in letters)
    if normalise(joined) != joined or any(letter.splitlines() != [letter] for letter in letters):
        raise ValueError(
            "keys and values must stand for themselves (no line ends, no accents that join what stands "
            f"before them), got {letters!r}"
        )
    task = recall_rows(
        lines,
        4 * pairs,
        pairs,
        keys=range(len(keys)),
        values=range(len(keys), len(letters)),
        answered=True,
        power=1.0,
        seed=seed,
    )
    return ["".join(letters[i] for i in row) for row in task.ids.tolist()]


@dataclass(frozen=True)
class Score:
    """How many answers were right."""

    right: int
    asked: int

    @property
    def share(self) -> float:
        """The share that was right, nan if nothing was asked."""
        return self.right / self.asked if self.asked else float("nan")


@torch.no_grad()
def recall_answers(model: nn.Module, task: Recall, *, batch: int = 16) -> Tensor:
    """Say where a model answers rightly, (N, L) bool: the likeliest of all tokens is the value asked for.

    batch: rows at once.
    """
    device = next(model.parameters()).device
    parts = zip(torch.split(task.ids, batch), torch.split(task.wanted, batch), strict=True)
    with evaluating(model):
        return torch.cat(
            [next_token_logits(model, ids.to(device)).argmax(dim=-1).cpu() == wanted for ids, wanted in parts]
        )


def recall_scores(
    model: nn.Module, task: Recall, *, buckets: Sequence[int] = (), batch: int = 16
) -> dict[tuple[int, int], Score]:
    """Return the score of a model by the gap between a question and what it asks for.

    buckets: where one range of gaps ends and the next begins, rising; the ranges are half open, and the keys
    of the result say them.
    """
    right = recall_answers(model, task, batch=batch)
    return {
        gaps: Score(int((right & here).sum()), int(here.sum()))
        for gaps, here in by_gap(task, buckets).items()
    }


def by_gap(task: Recall, buckets: Sequence[int]) -> dict[tuple[int, int], Tensor]:
    """Return where is asked over each range of gaps, (N, L) bool, by the ends of the ranges."""
    edges = [0, *buckets, task.ids.shape[1] + 1]
    if edges != sorted(set(edges)):
        raise ValueError(f"buckets must rise between 0 and the length, got {list(buckets)}")
    asked = task.wanted != IGNORED
    return {(low, high): asked & (task.gap >= low) & (task.gap < high) for low, high in pairwise(edges)}
