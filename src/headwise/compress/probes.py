"""Retrieval, asked for plainly: keys whose values were shown, and a number hidden in a text.

Letters: N rows, L tokens of a row, D pairs of key and value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile

import torch
from torch import Tensor, nn

from headwise.hub.modes import evaluating
from headwise.hub.subject import Subject
from headwise.hub.surgery import next_token_logits
from headwise.text.normal import normalise

IGNORED = -100

DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Where pass keys are hidden: 0 at the front, 1 just before the question."""


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
    if rows < 1 or pairs < 1 or power <= 0:
        raise ValueError(
            f"rows, pairs and power must be above 0, got rows={rows}, pairs={pairs}, power={power}"
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


def passkey_scores(
    subject: Subject,
    filler: str,
    *,
    length: int,
    depths: Sequence[float] = DEPTHS,
    digits: int = 5,
    tries: int = 10,
    seed: int = 0,
) -> dict[float, Score]:
    """Return how often a model finds a number again, by the depth at which the text tells it.

    The number is right if every token of it is the likeliest after those before it.

    filler: text to hide the number in, repeated as often as needed. length: tokens of the whole text.
    depths: 0 puts the number at the front, 1 just before the question.

    Raises:
        ValueError: a length that the model cannot read or that leaves no room for the number; a text that the
            model has no tokens for.
    """
    right = passkey_answers(
        subject, filler, length=length, depths=depths, digits=digits, tries=tries, seed=seed
    )
    return {depth: Score(int(right[:, place].sum()), tries) for place, depth in enumerate(depths)}


@torch.no_grad()
def passkey_answers(
    subject: Subject,
    filler: str,
    *,
    length: int,
    depths: Sequence[float] = DEPTHS,
    digits: int = 5,
    tries: int = 10,
    seed: int = 0,
) -> Tensor:
    """Say whether the number was found, (tries, depths) bool; for the rest see `passkey_scores`."""
    if any(not 0.0 <= depth <= 1.0 for depth in depths):
        raise ValueError(f"depths must lie in 0 … 1, got {list(depths)}")
    if tries < 1 or digits < 1:
        raise ValueError(f"tries and digits must be at least 1, got {tries} and {digits}")
    if subject.max_tokens is not None and length > subject.max_tokens:
        raise ValueError(f"length={length} is more than the {subject.max_tokens} tokens {subject.name} reads")
    hay = _plain(subject, filler)
    if not hay:
        raise ValueError("filler is empty; give text to hide the number in")
    start = opening(subject)
    generator = torch.Generator().manual_seed(seed)
    right = torch.zeros(tries, len(depths), dtype=torch.bool)
    for attempt in range(tries):
        number = "".join(map(str, torch.randint(10, (digits,), generator=generator).tolist()))
        told, answer = _told(subject, number)
        needle, question = told + _plain(subject, _AFTER), told
        room = length - len(start) - len(needle) - len(question)
        if room < 0:
            raise ValueError(
                f"length={length} is too short: telling the number and asking for it takes "
                f"{length - room} tokens"
            )
        text = (hay * (room // len(hay) + 1))[:room]
        for place, depth in enumerate(depths):
            cut = round(room * depth)
            row = start + text[:cut] + needle + text[cut:] + question
            ids = torch.tensor([row], device=subject.device)
            with evaluating(subject.model):
                said = next_token_logits(subject.model, ids)[0, -answer - 1 : -1].argmax(dim=-1)
            right[attempt, place] = bool((said == ids[0, -answer:]).all())
    return right


def why_no_passkeys(subject: Subject, length: int, *, digits: int = 5) -> str | None:
    """Return why a model cannot be asked for pass keys in texts of so many tokens, None if it can."""
    try:
        told, _ = _told(subject, "0123456789"[:digits])
        needed = len(opening(subject)) + 2 * len(told) + len(_plain(subject, _AFTER))
    except ValueError:
        return (
            f"{subject.name} has no tokens for the words and digits that tell one ({_BEFORE.strip()} 123 …)"
        )
    return f"they take {needed} tokens, and there are {length}" if needed > length else None


_BEFORE, _AFTER = "\nThe pass key is ", ". Remember it.\n"


def _told(subject: Subject, number: str) -> tuple[list[int], int]:
    """Return the tokens that tell a number, and how many of them, at the end, are the number's."""
    answer = _plain(subject, number)
    if subject.decode(answer).strip() != number:
        raise ValueError(f"{subject.name} has no tokens for the digits of a pass key such as {number}")
    return _plain(subject, _BEFORE) + answer, len(answer)


def opening(subject: Subject) -> list[int]:
    """Return the special tokens that a model's tokenizer puts in front of a text."""
    ids = subject.encode("a") if subject.special_ids else []
    return list(takewhile(lambda token: token in subject.special_ids, ids))


def _plain(subject: Subject, text: str) -> list[int]:
    return [token for token in subject.encode(text) if token not in subject.special_ids]


def completes_bigram(ids: Tensor) -> Tensor:
    """Say of each token but the first of rows (N, L) whether it follows as it did before: (N, L - 1) bool.

    True where the pair of the token before and this one stood earlier in the row (Arora et al. 2023 call it
    an associative recall hit).
    """
    before, after = ids[:, :-1], ids[:, 1:]
    same = (before.unsqueeze(2) == before.unsqueeze(1)) & (after.unsqueeze(2) == after.unsqueeze(1))
    return same.tril(-1).any(dim=2)
