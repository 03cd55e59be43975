"""Masks written as text, for the command line: ``causal & window(4) | ~lengths(3, 5)``."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass

import torch

from headwise.attention.masks import Mask

_NAMES: dict[str, str] = {
    "causal": "causal",
    "window": "window(n)",
    "prefix": "prefix(n)",
    "lengths": "lengths(a, b, …)",
    "documents": "documents(0, 0, 1, 1, …)",
}
_WORDS = {"and": "&", "or": "|", "not": "~", "!": "~", "&&": "&", "||": "|"}
_TOKEN = re.compile(r"\s*(?:(?P<number>[-+]?\d+)|(?P<name>[^\W\d]\w*)|(?P<sign>&&|\|\||\S))")
_DEEPEST = 50  # brackets and ~ inside each other
_LONGEST_NUMBER = 18  # digits, so that it fits 64 bits
_SHOWN = 60  # characters of the text that an error repeats


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    at: int
    """Where it starts in the text, counted from 1."""


@dataclass(frozen=True)
class ParsedMask:
    """A mask that was written as text, and the number of keys that it fits."""

    mask: Mask
    keys: int | None
    """The number of keys that `documents` numbers, None if any number fits."""


def parse_mask(text: str) -> ParsedMask:
    """Read a mask from text: names, ``&`` (binds tighter), ``|``, ``~`` and brackets.

    Names are causal, window(n), prefix(n), lengths(a, b, …) with one length per sequence, and
    documents(0, 0, 1, …) with one document number per key.

    Raises ValueError that says what was not understood and where, counted from 1.
    """
    return _Parser(text).parse()


class _Parser:
    """Recursive descent over the tokens: either := both ("|" both)*, both := one ("&" one)*."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = _tokens(text)
        self.next = 0
        self.keys: int | None = None
        self.sequences: int | None = None

    def parse(self) -> ParsedMask:
        mask = self._either(0)
        token = self._peek()
        if token.kind != "end":
            raise self._mistake(token, "a mask ended before it, so & or | is wanted here")
        return ParsedMask(mask, self.keys)

    def _either(self, depth: int) -> Mask:
        mask = self._both(depth)
        while self._take("|"):
            mask = mask | self._both(depth)
        return mask

    def _both(self, depth: int) -> Mask:
        mask = self._one(depth)
        while self._take("&"):
            mask = mask & self._one(depth)
        return mask

    def _one(self, depth: int) -> Mask:
        token = self._peek()
        if depth > _DEEPEST:
            raise self._mistake(token, f"more than {_DEEPEST} brackets and ~ stand inside each other")
        if self._take("~"):
            return ~self._one(depth + 1)
        if self._take("("):
            mask = self._either(depth + 1)
            if not self._take(")"):
                raise self._mistake(self._peek(), f"the bracket opened at {token.at} is to be closed by )")
            return mask
        if token.kind == "name" and token.text in _NAMES:
            self.next += 1
            return self._named(token)
        raise self._mistake(token, self._wanted(token))

    def _named(self, name: _Token) -> Mask:
        numbers = self._numbers(name)
        if name.text == "causal":
            if numbers:
                raise self._mistake(name, "causal takes no number; write window(n) for the last n keys")
            return Mask.causal()
        if not numbers:
            raise self._mistake(name, f"it needs a number: write {_NAMES[name.text]}")
        if name.text in ("window", "prefix"):
            if len(numbers) > 1:
                raise self._mistake(name, f"it takes one number, got {len(numbers)}")
            make: Callable[[int], Mask] = Mask.window if name.text == "window" else Mask.prefix
            try:
                return make(numbers[0])
            except ValueError as error:
                raise self._mistake(name, str(error)) from error
        values = torch.tensor(numbers)
        if name.text == "lengths":
            if min(numbers) < 0:
                raise self._mistake(name, f"a length cannot be {min(numbers)}; give each at least 0")
            if self.sequences not in (None, len(numbers)):
                raise self._mistake(
                    name, f"it is for {len(numbers)} sequences, but lengths before it for {self.sequences}"
                )
            self.sequences = len(numbers)
            return Mask.lengths(values)
        if self.keys not in (None, len(numbers)):
            raise self._mistake(
                name, f"it numbers {len(numbers)} keys, but documents before it numbers {self.keys}"
            )
        self.keys = len(numbers)
        return Mask.documents(values)

    def _numbers(self, name: _Token) -> list[int]:
        """Read what stands in brackets after a name, nothing if there are none."""
        opened = self._peek()
        if not self._take("("):
            return []
        if self._take(")"):
            return []
        numbers = []
        while True:
            token = self._peek()
            if token.kind != "number":
                raise self._mistake(token, f"{name.text}(…) takes whole numbers, as in {_NAMES[name.text]}")
            if len(token.text) > _LONGEST_NUMBER:
                raise self._mistake(token, f"a number has at most {_LONGEST_NUMBER} digits")
            numbers.append(int(token.text))
            self.next += 1
            if self._take(")"):
                return numbers
            if not self._take(","):
                raise self._mistake(self._peek(), f"the bracket opened at {opened.at} goes on with , or )")

    def _peek(self) -> _Token:
        return self.tokens[self.next]

    def _take(self, sign: str) -> bool:
        token = self._peek()
        if token.kind == "sign" and token.text == sign:
            self.next += 1
            return True
        return False

    def _wanted(self, token: _Token) -> str:
        names = ", ".join(_NAMES.values())
        if token.text in _WORDS:
            return f"write {_WORDS[token.text]} for it"
        if token.kind == "name":
            near = difflib.get_close_matches(token.text.lower(), _NAMES, 1)
            guess = f"did you mean {near[0]}? " if near else ""
            return f"{guess}Masks are {names}"
        return f"a mask is wanted here: {names}, ~ or ("

    def _mistake(self, token: _Token, advice: str) -> ValueError:
        if token.kind == "name" and token.text.lower() in _WORDS:
            advice = f"write {_WORDS[token.text.lower()]} for it"
        what = "the end" if token.kind == "end" else repr(token.text)
        text = self.text if len(self.text) <= _SHOWN else self.text[:_SHOWN] + "…"
        return ValueError(f"mask {text!r} was not understood at character {token.at}, {what}: {advice}")


def _tokens(text: str) -> list[_Token]:
    tokens = []
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or "sign"
        tokens.append(_Token(kind, match[kind], match.start(kind) + 1))
    return [*tokens, _Token("end", "", len(text) + 1)]
