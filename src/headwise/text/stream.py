"""Decoding token by token without ever showing half a character."""

from __future__ import annotations

import codecs

from headwise.text.tokenizer import Tokenizer


class TextStream:
    """Turns ids into text as they come.

    The pushed parts and the flush, joined, equal `tokenizer.decode(ids)`.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, index: int) -> str:
        """Take the next id; return the characters it completes, perhaps none.

        Raises:
            ValueError: the id is outside the vocabulary.
        """
        return self._decoder.decode(self._tokenizer.token_bytes(index))

    def flush(self) -> str:
        """Return what is still held back (U+FFFD for an unfinished character) and start afresh."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest
