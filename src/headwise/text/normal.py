"""The one rule for text: Unicode NFC, and every newline is `\\n`.

`\\r\\n` and a lone `\\r` become `\\n`; nothing else is changed. NFC matters most for Hangul: a syllable that
arrives as two or three jamo (as macOS writes file names, for example) becomes one character, so that the
same word always has the same tokens.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator

# Characters that never join with what stands before them: all of Latin, digits, punctuation and white space
# below U+0300, kana, CJK ideographs, Hangul syllables, emoji. Text may be cut before any of these.
_STARTS_AFRESH = re.compile(
    "[\u0000-\u02ff\u3041-\u3096\u30a1-\u30fa\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\U0001f300-\U0001faff]"
)


def normalise(text: str) -> str:
    """Return `text` in NFC with `\\n` newlines."""
    return unicodedata.normalize("NFC", text.replace("\r\n", "\n").replace("\r", "\n"))


def normalised(chunks: Iterable[str]) -> Iterator[str]:
    """Normalise a stream: the joined result equals `normalise` of the joined `chunks`.

    The end of each chunk is held back from its last character that starts afresh, so a `\\r\\n`, an accent or
    a Hangul syllable that lies across two chunks is seen whole.
    """
    held = ""
    for chunk in chunks:
        held += chunk
        cut = _last_safe_cut(held)
        if cut:
            yield normalise(held[:cut])
            held = held[cut:]
    if held:
        yield normalise(held)


def _last_safe_cut(text: str) -> int:
    for at in range(len(text) - 1, 0, -1):
        if _STARTS_AFRESH.match(text, at) and text[at - 1 : at + 1] != "\r\n":
            return at
    return 0
