"""What the page shows before anything is typed."""

from __future__ import annotations

from headwise.hub import Subject
from headwise.hub.subject import OwnSubject
from headwise.training.run_data import held_out_text

TOKENS = 40
_LOOKED_THROUGH = 2000
_SENTENCE = "The cat sat on the mat because it was tired. The cat slept."


def first_text(subject: Subject, source: str, most: int) -> str:
    """Return the beginning of what the model's training held out, or a sentence that it can read.

    most: tokens that it may have.
    """
    length = min(TOKENS, most)
    if not isinstance(subject, OwnSubject):
        around = len(subject.encode(_SENTENCE)) - len(subject.plain_ids(_SENTENCE))
        return subject.decode(subject.plain_ids(_SENTENCE)[: max(1, length - around)])
    corpus = held_out_text(source, most=_LOOKED_THROUGH)
    text = _SENTENCE if corpus is None else _from_a_paragraph("".join(corpus.chunks()))
    ids = subject.tokenizer.encode(text, unknown="skip") or list(range(subject.vocab_size))
    return subject.decode(ids[: min(length, subject.max_tokens or length)])


def _from_a_paragraph(text: str) -> str:
    """Leave out what stands before the first empty line, unless nothing follows it."""
    _, _, rest = text.partition("\n\n")
    return rest.lstrip("\n") or text
