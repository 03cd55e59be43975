"""Pass keys: a number hidden in a text, asked for at its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.compress.recall import Score
from headwise.hub.modes import evaluating
from headwise.hub.subject import Subject
from headwise.hub.surgery import next_token_logits

DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Where pass keys are hidden: 0 at the front, 1 just before the question."""

_BEFORE, _AFTER = "\nThe pass key is ", ". Remember it.\n"


@dataclass(frozen=True)
class PassKeys:
    """How pass keys are hidden and asked for; see `passkey_scores`."""

    filler: str
    length: int
    depths: Sequence[float] = DEPTHS
    digits: int = 5
    tries: int = 10
    seed: int = 0


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
    task = PassKeys(filler, length, depths, digits, tries, seed)
    right = passkey_answers(subject, task)
    return {depth: Score(int(right[:, place].sum()), tries) for place, depth in enumerate(depths)}


@torch.no_grad()
def passkey_answers(subject: Subject, task: PassKeys) -> Tensor:
    """Say whether the number was found, (tries, depths) bool; raises as `passkey_scores`."""
    if any(not 0.0 <= depth <= 1.0 for depth in task.depths):
        raise ValueError(f"depths must lie in 0 … 1, got {list(task.depths)}")
    if task.tries < 1 or task.digits < 1:
        raise ValueError(f"tries and digits must be at least 1, got {task.tries} and {task.digits}")
    if subject.max_tokens is not None and task.length > subject.max_tokens:
        raise ValueError(
            f"length={task.length} is more than the {subject.max_tokens} tokens {subject.name} reads"
        )
    hay = subject.plain_ids(task.filler)
    if not hay:
        raise ValueError("filler is empty; give text to hide the number in")
    start = subject.opening_ids()
    generator = torch.Generator().manual_seed(task.seed)
    right = torch.zeros(task.tries, len(task.depths), dtype=torch.bool)
    for attempt in range(task.tries):
        number = "".join(map(str, torch.randint(10, (task.digits,), generator=generator).tolist()))
        told, answer = _told(subject, number)
        needle, question = told + subject.plain_ids(_AFTER), told
        room = task.length - len(start) - len(needle) - len(question)
        if room < 0:
            raise ValueError(
                f"length={task.length} is too short: telling the number and asking for it takes "
                f"{task.length - room} tokens"
            )
        text = (hay * (room // len(hay) + 1))[:room]
        for place, depth in enumerate(task.depths):
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
        needed = len(subject.opening_ids()) + 2 * len(told) + len(subject.plain_ids(_AFTER))
    except ValueError:
        return (
            f"{subject.name} has no tokens for the words and digits that tell one ({_BEFORE.strip()} 123 …)"
        )
    return f"they take {needed} tokens, and there are {length}" if needed > length else None


def _told(subject: Subject, number: str) -> tuple[list[int], int]:
    """Return the tokens that tell a number, and how many of them, at the end, are the number's."""
    answer = subject.plain_ids(number)
    if subject.decode(answer).strip() != number:
        raise ValueError(f"{subject.name} has no tokens for the digits of a pass key such as {number}")
    return subject.plain_ids(_BEFORE) + answer, len(answer)
