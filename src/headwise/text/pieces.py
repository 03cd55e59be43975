"""Cutting a stream of text into pieces that byte-level BPE encodes as if it had seen the whole."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

# A space or newline after something that is neither: the GPT-2 word pattern never reaches across this place
# from the left and never looks back from the right.
_WORD_END = re.compile(r"(?<=\S)[ \n]")


def pieces(chunks: Iterable[str], size: int = 1 << 15) -> Iterator[str]:
    """Cut a stream of text into pieces of about `size` characters; joined they are the text.

    A piece ends just before the first space or newline, after `size` characters, that follows a character
    which is not white space. Encoding the pieces one by one then gives the same tokens as encoding the whole.
    Only where `3 * size` characters hold no such place is the cut made anyway, which can change the tokens
    next to it. Where the cuts lie depends on the text alone, not on how it was chunked.
    """
    limit = 4 * size
    held = ""
    for chunk in chunks:
        held += chunk
        start = 0
        while len(held) - start > limit:
            end = _end(held, start, size, limit)
            yield held[start:end]
            start = end
        held = held[start:]
    start = 0
    while start < len(held):
        end = _end(held, start, size, limit)
        yield held[start:end]
        start = end


def _end(text: str, start: int, size: int, limit: int) -> int:
    found = _WORD_END.search(text, start + size, start + limit)
    return found.start() if found else min(start + limit, len(text))
