"""A parent and its children on one text and in the same probes: what each costs, keeps and loses.

Letters: N rows, L tokens of a row, R rows of text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from headwise.compress.footprint import Footprint, Speed, check_length, footprint, speeds
from headwise.compress.passkeys import PassKeys
from headwise.compress.recall import Recall
from headwise.compress.rows import ROW, check_finite, rows_of
from headwise.compress.text_loss import TextLoss, each_text_loss
from headwise.compress.verdicts import GATE, Verdict, passkey_verdicts, recall_verdicts
from headwise.heads.sweep import OnProgress
from headwise.hub.subject import Subject, most_tokens, require_causal
from headwise.text.corpus import Corpus

if TYPE_CHECKING:
    from pandas import DataFrame

Result = TypeVar("Result")

_SHARED = (
    "models are judged on the same tokens, so they must share a tokenizer; otherwise losses alone can be "
    "compared, in bits per byte, with --loss-only (compress.byte_losses)"
)


@dataclass(frozen=True)
class Judgement:
    """What a parent and its children are worth and what they take. Lists have the parent first."""

    names: list[str]
    tokens: int
    """Tokens of text predicted."""
    text_bytes: int
    """Bytes of UTF-8 that they stand for."""
    text: list[TextLoss]
    recall: list[Verdict]
    passkey: list[Verdict]
    length: int
    """Tokens in the cache that is measured and timed."""
    footprints: list[Footprint]
    speeds: list[Speed] | None
    """None where nothing was timed."""

    @property
    def bits_per_byte(self) -> list[float]:
        return [loss.bits_per_byte(self.tokens, self.text_bytes) for loss in self.text]

    @property
    def table(self) -> DataFrame:
        """One row per model and measure.

        model, measure: loss, loss_recurring, loss_other (nats per token), perplexity, bits_per_byte, recall,
            passkey (shares of right answers), parameters, cache_bytes, cache_bytes_by_formula,
            prefill_seconds, decode_seconds.
        pairs, power, gap_from, gap_below, depth: which probe, where the measure is one.
        value; more, low, high: how much more than the parent's, with its 95 % interval, where there is one.
        spread: of times, half the distance between the quartiles as a share of the median.
        chance: what guessing gives. asked: questions. verdict: "cannot judge" where the parent misses the
            gate, so that nothing follows from what its children do; else empty.
        """
        from pandas import DataFrame

        columns = "model measure pairs power gap_from gap_below depth value more low high spread chance asked"
        rows = [row for number in range(len(self.names)) for row in self._rows(number)]
        return DataFrame(rows, columns=[*columns.split(), "verdict"])

    def _rows(self, number: int) -> Iterator[dict[str, Any]]:
        loss, size = self.text[number], self.footprints[number]
        common: dict[str, Any] = {"model": self.names[number], "verdict": ""}
        more = {"more": loss.more, "low": loss.low, "high": loss.high}
        yield common | {"measure": "loss", "value": loss.loss} | more
        plain: dict[str, float | None] = {
            "loss_recurring": loss.recurring,
            "loss_other": loss.other,
            "perplexity": loss.perplexity,
            "bits_per_byte": self.bits_per_byte[number],
            "parameters": size.parameters,
            "cache_bytes": size.cache_bytes,
            "cache_bytes_by_formula": size.predicted,
        }
        yield from (common | {"measure": name, "value": value} for name, value in plain.items())
        if self.speeds is not None:
            for name, timing in vars(self.speeds[number]).items():
                if name in ("prefill", "decode"):
                    found = {"value": timing.median, "spread": timing.spread}
                    yield common | {"measure": f"{name}_seconds"} | found
        for measure, verdicts in (("recall", self.recall), ("passkey", self.passkey)):
            for verdict in verdicts:
                gap_from, gap_below = verdict.gaps or (None, None)
                yield common | {
                    "measure": measure,
                    "pairs": verdict.pairs,
                    "power": verdict.power,
                    "gap_from": gap_from,
                    "gap_below": gap_below,
                    "depth": verdict.depth,
                    "value": verdict.shares[number],
                    "more": verdict.more[number].mean,
                    "low": verdict.more[number].low,
                    "high": verdict.more[number].high,
                    "chance": verdict.chance,
                    "asked": verdict.asked,
                    "verdict": verdict.remark,
                }

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "models": [
                {
                    "name": name,
                    "text": asdict(loss)
                    | {"perplexity": loss.perplexity, "bits_per_byte": self.bits_per_byte[number]},
                    **asdict(self.footprints[number]),
                    "speed": None if self.speeds is None else asdict(self.speeds[number]),
                }
                for number, (name, loss) in enumerate(zip(self.names, self.text, strict=True))
            ],
            "tokens": self.tokens,
            "text_bytes": self.text_bytes,
            "cache_length": self.length,
            "gate": GATE,
            "recall": [_verdict_json(verdict) for verdict in self.recall],
            "passkey": [_verdict_json(verdict) for verdict in self.passkey],
        }


def _verdict_json(verdict: Verdict) -> dict[str, Any]:
    which = {name: getattr(verdict, name) for name in ("pairs", "power", "gaps", "depth")}
    return {name: value for name, value in which.items() if value is not None} | {
        "chance": verdict.chance,
        "asked": verdict.asked,
        "verdict": verdict.remark,
        "shares": verdict.shares,
        "more": [asdict(more) for more in verdict.more],
    }


def judged_rows(
    subjects: Sequence[Subject], corpus: Corpus, *, skip: int = 0, most: int | None = None
) -> list[Tensor]:
    """Return rows (1, T) of a text to judge models on, as long as all of them can read; for skip and most see
    `rows_of`.

    Raises:
        ValueError: as `rows_of`, and for models that make other tokens of the text.
    """
    length = min(ROW, most_tokens(subjects) or ROW)
    found = [rows_of(subject, corpus.chunks(), length=length, skip=skip, most=most) for subject in subjects]
    for subject, rows in zip(subjects, found, strict=True):
        if [row.tolist() for row in rows] != [row.tolist() for row in found[0]]:
            raise ValueError(
                f"{subjects[0].name} and {subject.name} read the text as different tokens; {_SHARED}"
            )
    return found[0]


def judge(
    subjects: Sequence[Subject],
    rows: Sequence[Tensor],
    *,
    recall: Sequence[Recall] = (),
    gaps: Sequence[int] = (),
    passkeys: PassKeys | None = None,
    length: int,
    seconds: float | None = 5.0,
    on_progress: OnProgress | None = None,
) -> Judgement:
    """Judge models against the first of them: what they lose on a text and in probes, and what they take.

    rows: text as tokens (1, T), as `rows_of` returns it; all models must read it as these tokens.
    recall: tasks of `recall_rows`. gaps: where one range of gaps ends and the next begins, where a task has
        such gaps. passkeys: None for none.
    length: tokens in the key/value cache that is measured and timed.
    seconds: how long to time, once each model has run a few times; None for no timing.
    on_progress: as (done, total) in parts of the work.

    Raises:
        ValueError: no model, one that does not predict the next token, models that make other tokens of the
            same text, fewer than two rows, weights that give numbers that are not finite; and as
            `recall_scores`, `passkey_scores` and `speeds`.
    """
    check_alike(subjects, rows, recall)
    check_length(subjects, length, least=1 if seconds is None else 2)
    models = [subject.model for subject in subjects]
    steps, done = len(subjects) + len(recall) + (passkeys is not None) + (seconds is not None), count(1)

    def told(result: Result) -> Result:
        if on_progress is not None:
            on_progress(next(done), steps)
        return result

    text = []
    for subject, loss in zip(subjects, each_text_loss(models, rows), strict=True):
        check_finite(subject.name, loss.loss)
        text.append(told(loss))
    recalled = [told(recall_verdicts(models, task, gaps)) for task in recall]
    predicted = [token for row in rows for token in row[:, 1:].flatten().tolist()]
    parent = subjects[0]
    text_bytes = sum(len(parent.token_bytes(i)) for i in predicted if i not in parent.special_ids)
    return Judgement(
        names=[subject.name for subject in subjects],
        tokens=len(predicted),
        text_bytes=text_bytes,
        text=text,
        recall=[verdict for verdicts in recalled for verdict in verdicts],
        passkey=[] if passkeys is None else told(passkey_verdicts(subjects, passkeys)),
        length=length,
        footprints=[footprint(subject, length) for subject in subjects],
        speeds=None if seconds is None else told(speeds(subjects, length, seconds=seconds)),
    )


def check_alike(subjects: Sequence[Subject], rows: Sequence[Tensor], recall: Sequence[Recall] = ()) -> None:
    """Raise ValueError unless models predict the next token and make the same tokens of a text."""
    if not subjects:
        raise ValueError("there is no model to judge; give the parent first, then its children")
    for subject in subjects:
        require_causal(subject, "which is what is judged")
    parent = subjects[0]
    used = {*torch.cat([row.flatten().cpu() for row in rows]).tolist()} if rows else set()
    used |= {token for task in recall for token in task.ids.flatten().tolist()}
    longest = max([row.shape[1] for row in rows] + [task.ids.shape[1] for task in recall], default=0)
    for subject in subjects:
        if subject.max_tokens is not None and longest > subject.max_tokens:
            raise ValueError(
                f"rows of {longest} tokens are more than the {subject.max_tokens} that {subject.name} reads"
            )
    for subject in subjects[1:]:
        if subject.vocab_size != parent.vocab_size:
            raise ValueError(
                f"{parent.name} has {parent.vocab_size} tokens and {subject.name} {subject.vocab_size}; "
                f"{_SHARED}"
            )
        other = next((i for i in sorted(used) if parent.token_bytes(i) != subject.token_bytes(i)), None)
        if other is not None:
            raise ValueError(
                f"token {other} is {parent.token_text(other)!r} to {parent.name} and "
                f"{subject.token_text(other)!r} to {subject.name}; {_SHARED}"
            )
