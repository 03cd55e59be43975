"""Masks written as text."""

from __future__ import annotations

import pytest
import torch

from headwise.attention import Mask
from headwise.attention.mask_expression import parse_mask

IDS = torch.tensor([0, 0, 1, 1])
WRITTEN = {
    "causal": Mask.causal(),
    "  window( 3 ) ": Mask.window(3),
    "prefix(0)": Mask.prefix(0),
    "causal & window(2)": Mask.window(2),
    "causal|~causal&lengths(1,3)": Mask.prefix(torch.tensor([1, 3])),
    "(causal | prefix(3)) & lengths(1, 3)": Mask.prefix(3) & Mask.lengths(torch.tensor([1, 3])),
    "~window(2) & causal": Mask.causal() & ~Mask.window(2),
    "~(window(2) & causal)": ~Mask.window(2),
    "~~causal": Mask.causal(),
    "documents(0, 0, 1, 1) & causal": Mask.documents(IDS) & Mask.causal(),
    "lengths(+3)": Mask.lengths(torch.tensor([3])),
    "documents(-1,-1,5,5)": Mask.documents(IDS),
}


@pytest.mark.parametrize("text", WRITTEN)
def test_and_binds_tighter_than_or_and_brackets_bind_tightest(text: str) -> None:
    found, wanted = parse_mask(text).mask, WRITTEN[text]
    assert torch.equal(found.to_tensor(4, 4), wanted.to_tensor(4, 4))


def test_documents_say_how_many_keys_there_are() -> None:
    assert parse_mask("causal & ~documents(0, 0, 1)").keys == 3
    assert parse_mask("causal").keys is None


@pytest.mark.parametrize(
    ("text", "at", "message"),
    [
        ("", 1, "the end: a mask is wanted here: causal, window(n)"),
        ("causal &", 9, "the end: a mask is wanted here"),
        ("& causal", 1, "'&': a mask is wanted here"),
        ("causal causal", 8, "'causal': a mask ended before it, so & or | is wanted here"),
        ("causl", 1, "'causl': did you mean causal?"),
        ("Window(3)", 1, "did you mean window?"),
        ("causal & 문서(1)", 10, "'문서': Masks are causal"),
        ("causal and window(3)", 8, "'and': write & for it"),
        ("not causal", 1, "'not': write ~ for it"),
        ("!causal", 1, "'!': write ~ for it"),
        ("causal && window(2)", 8, "'&&'"),
        ("window", 1, "it needs a number: write window(n)"),
        ("window()", 1, "it needs a number"),
        ("window(1, 2)", 1, "it takes one number, got 2"),
        ("window(0)", 1, "Mask.window got n=0"),
        ("causal | prefix(-1)", 10, "Mask.prefix got n=-1"),
        ("causal(3)", 1, "causal takes no number"),
        ("window(2.5)", 9, "'.': the bracket opened at 7 goes on with , or )"),
        ("window(n)", 8, "'n': window(…) takes whole numbers"),
        ("window(9999999999999999999)", 8, "at most 18 digits"),
        ("lengths(1,,2)", 11, "','"),
        ("lengths(-1)", 1, "a length cannot be -1"),
        ("lengths(1,2) | lengths(1,2,3)", 16, "for 3 sequences, but lengths before it for 2"),
        ("documents(0,1)&documents(0)", 16, "numbers 1 keys, but documents before it numbers 2"),
        ("(causal", 8, "the end: the bracket opened at 1 is to be closed by )"),
        ("causal)", 7, "')'"),
        ("__import__('os')", 1, "'__import__': Masks are"),
        ("(" * 99 + "causal", 52, "more than 50 brackets"),
        ("~" * 5000 + "causal", 52, "more than 50 brackets and ~"),
    ],
)
def test_an_error_says_what_was_not_understood_and_where(text: str, at: int, message: str) -> None:
    with pytest.raises(ValueError, match="was not understood") as caught:
        parse_mask(text)
    said = str(caught.value)
    assert f"at character {at}, " in said
    assert message in said
    assert len(said) < 300
