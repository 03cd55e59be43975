"""What the tokens of a Hugging Face tokenizer stand for.

Vocabularies spell the same text in several ways: byte-level BPE writes each byte as a letter of its own
alphabet, SentencePiece writes a space as ▁ and a lone byte as <0xEC>, WordPiece marks what goes on within a
word with ##.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from headwise.text.definition import byte_of_symbol

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
CONTINUED = "##"


def token_bytes(tokenizer: Any, count: int) -> list[bytes]:
    """Return the UTF-8 bytes of the first `count` tokens, by id; WordPiece keeps its mark.

    An id without a token gives no bytes.
    """
    names: list[str | None] = tokenizer.convert_ids_to_tokens(list(range(count)))
    added = {token.content for token in tokenizer.added_tokens_decoder.values()}
    spell = _spelling(tokenizer, names)
    return [
        b"" if name is None else name.encode("utf-8", "surrogatepass") if name in added else spell(name)
        for name in names
    ]


def token_text(piece: bytes, continued: bool) -> str:
    """Return the text of a token; `continued` says that ## is a mark and no text."""
    text = piece.decode("utf-8", errors="replace")
    return text.removeprefix(CONTINUED) if continued and text != CONTINUED else text


def marks_continuation(tokenizer: Any) -> bool:
    """Whether ## marks what goes on within a word."""
    return "WordPiece" in {step.get("type") for step in _decoder_steps(tokenizer)}


def _spelling(tokenizer: Any, names: list[str | None]) -> Callable[[str], bytes]:
    steps = list(_decoder_steps(tokenizer))
    types = {step.get("type") for step in steps}
    if "ByteLevel" in types:
        symbols = byte_of_symbol()
        return lambda name: _from_symbols(name, symbols)
    replaced = any("▁" in (step.get("pattern") or {}).values() for step in steps)
    slow = not steps and any(name is not None and "▁" in name for name in names)
    if "Metaspace" in types or replaced or slow:
        return _from_sentencepiece
    return lambda name: name.encode("utf-8", "surrogatepass")


def _decoder_steps(tokenizer: Any) -> Iterator[dict[str, Any]]:
    engine = getattr(tokenizer, "backend_tokenizer", None)
    if engine is None:
        return
    decoder = json.loads(engine.to_str()).get("decoder") or {}
    yield from decoder.get("decoders", [decoder] if decoder else [])


def _from_symbols(name: str, symbols: dict[str, int]) -> bytes:
    if any(symbol not in symbols for symbol in name):  # a token added without the alphabet
        return name.encode("utf-8", "surrogatepass")
    return bytes(symbols[symbol] for symbol in name)


def _from_sentencepiece(name: str) -> bytes:
    byte = _BYTE.fullmatch(name)
    return bytes([int(byte.group(1), 16)]) if byte else name.replace("▁", " ").encode("utf-8")
