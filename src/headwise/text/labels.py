"""How one token is shown in a plot or a table."""

from __future__ import annotations

import re
import unicodedata

_SHOWN = {"\n": "⏎", " ": "␣", "\t": "⇥"}
_STRAY_BYTES = re.compile("[\udc80-\udcff]+")


def label(piece: bytes) -> str:
    """Return a readable label for the UTF-8 bytes of a token.

    Newline is ⏎, space ␣, tab ⇥; any other character that cannot be seen is shown by its number, ‹U+200B›;
    bytes that are only a part of a character are shown as ‹EC 95›; a combining mark sits on a dotted circle.
    """
    text = piece.decode("utf-8", errors="surrogateescape")
    shown = []
    end = 0
    for stray in _STRAY_BYTES.finditer(text):
        shown += [_visible(character) for character in text[end : stray.start()]]
        shown.append("‹" + " ".join(f"{ord(byte) - 0xDC00:02X}" for byte in stray.group()) + "›")
        end = stray.end()
    shown += [_visible(character) for character in text[end:]]
    if text and unicodedata.combining(text[0]):
        shown.insert(0, "◌")
    return "".join(shown)


def _visible(character: str) -> str:
    if character in _SHOWN:
        return _SHOWN[character]
    return character if character.isprintable() else f"‹U+{ord(character):04X}›"
