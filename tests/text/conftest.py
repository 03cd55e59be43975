from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from headwise.text import Tokenizer

MIXED = "나는 학교에 버스로 갔다.\nThe café 🙂 is open — 값은 3€\tok\n\n안녕하세요? 👩‍👩‍👧 漢字かな\n"


@pytest.fixture(scope="session")
def mixed() -> str:
    """Hangul, accents, emoji, kana and ideographs in NFC."""
    return MIXED


@pytest.fixture(scope="session", params=["char", "bpe"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return Tokenizer.train(request.param, [MIXED * 3], vocab_size=300)


@pytest.fixture(scope="session")
def bpe() -> Tokenizer:
    return Tokenizer.train("bpe", [MIXED * 3], vocab_size=300)


@pytest.fixture(scope="session")
def cut() -> Callable[[str, Sequence[int]], list[str]]:
    """Cut a text into chunks of the given sizes, the last size again and again."""

    def cut_(text: str, sizes: Sequence[int]) -> list[str]:
        chunks = []
        for size in sizes:
            chunks.append(text[:size])
            text = text[size:]
        while text:
            chunks.append(text[: sizes[-1]])
            text = text[sizes[-1] :]
        return chunks

    return cut_
