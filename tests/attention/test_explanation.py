"""What `explain` says, and that it is what `attention` then does."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from headwise.attention import Mask, WeightsOf, attention, explain
from headwise.attention.backends import BACKENDS


def tensors(
    T: int, S: int | None = None, *, H: int = 8, G: int = 8, K: int = 16, V: int = 16
) -> list[Tensor]:
    S = T if S is None else S
    return [torch.randn(2, H, T, K), torch.randn(2, G, S, K), torch.randn(2, G, S, V)]


LONG = 1024


CASES = {
    "fused": ({}, tensors(LONG), "sdpa"),
    "causal": ({"mask": Mask.causal()}, tensors(LONG), "sdpa"),
    "grouped": ({"mask": Mask.causal()}, tensors(LONG, G=2), "sdpa"),
    "dropout": ({"dropout": 0.1}, tensors(LONG), "blockwise"),
    "dropout, short": ({"dropout": 0.1}, tensors(64), "sdpa"),
    "dropout, grouped, short": ({"dropout": 0.1}, tensors(64, G=2), "reference"),
    "wide values": ({}, tensors(LONG, V=24), "blockwise"),
    "learned bias": ({"bias": torch.zeros(LONG, LONG, requires_grad=True)}, tensors(LONG), "blockwise"),
    "softcap": ({"softcap": 5.0}, tensors(LONG), "blockwise"),
    "sink, short": ({"sink": torch.zeros(8)}, tensors(64), "reference"),
    "padding": ({"mask": Mask.lengths(torch.tensor([5, LONG]))}, tensors(LONG), "blockwise"),
    "padding, short": ({"mask": Mask.lengths(torch.tensor([5, 64]))}, tensors(64), "sdpa"),
    "all weights": ({"return_weights": True}, tensors(LONG), "reference"),
    "some weights": ({"return_weights": WeightsOf(heads=[1])}, tensors(LONG), "sdpa"),
    "one step": ({"mask": Mask.causal()}, tensors(1, 4096, G=2), "sdpa"),
}


@pytest.mark.parametrize("name", CASES)
def test_auto_runs_what_the_rule_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options, (q, k, v), wanted = CASES[name]
    told = explain(q, k, v, **options)  # type: ignore[arg-type]
    assert told.backend == wanted
    assert set(told.refused) | set(told.passed_over) | {wanted} == set(BACKENDS)
    assert all(reasons for reasons in (*told.refused.values(), *told.passed_over.values()))
    ran = []
    for each, backend in BACKENDS.items():
        run = backend.run
        monkeypatch.setattr(
            backend, "run", lambda request, each=each, run=run: (ran.append(each), run(request))[1]
        )
    with torch.no_grad():
        attention(q, k, v, **options)  # type: ignore[call-overload]
    assert ran == [wanted] or name == "learned bias"  # that one is fused where no gradient is wanted


def test_the_table_shows_every_backend_and_its_reasons() -> None:
    text = str(explain(*tensors(LONG, G=2), mask=Mask.causal(), dropout=0.1))
    lines = text.splitlines()
    assert lines[0] == ("q (2, 8, 1024, 16), k (2, 2, 1024, 16), v (2, 2, 1024, 16), torch.float32, cpu")
    assert [line.split()[:2] for line in lines[1:]] == [
        ["sdpa", "cannot:"],
        ["blockwise", "runs"],
        ["reference", "could:"],
        ["flex", "cannot:"],
    ]
    assert "copied 4 times (the fused CPU kernel has no dropout)" in lines[1]
    assert "forms all scores, 64.0 MiB" in lines[3]


def test_the_backend_asked_for_is_explained_too() -> None:
    told = explain(*tensors(8), backend="reference")
    assert told.backend == "reference"
    assert told.passed_over["sdpa"] == ["reference was asked for"]
    told = explain(*tensors(8), softcap=1.0, backend="sdpa")
    assert told.backend is None
    assert "its kernels know no softcap" in told.refused["sdpa"]
    assert "runs" not in str(told)


def test_explain_refuses_what_attention_refuses() -> None:
    q, k, v = tensors(8)
    with pytest.raises(ValueError, match="unknown backend 'flash'"):
        explain(q, k, v, backend="flash")
    with pytest.raises(ValueError, match="same width"):
        explain(q, k[..., :3], v)
    with pytest.raises(ValueError, match="gate must have one number per query head"):
        explain(q, k, v, gate=torch.ones(3))
