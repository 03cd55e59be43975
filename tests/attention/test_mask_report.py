"""The report on a batch of weights: what it proves, what it names, what it warns of."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from headwise.attention import Mask, attention, mask_report

B, H, T, S = 2, 3, 4, 6


def weights_of(mask: Mask | None, T: int = T, S: int = S, **options: object) -> Tensor:
    torch.manual_seed(0)
    q, k = torch.randn(B, H, T, 5), torch.randn(B, H, S, 5)
    return attention(q, k, k, mask=mask, return_weights=True, **options)[1]  # type: ignore[call-overload, no-any-return]


GOOD = {
    "causal": Mask.causal(),
    "window": Mask.window(2),
    "prefix": Mask.prefix(3),
    "padding": Mask.causal() & Mask.lengths(torch.tensor([6, 2])),
    "packed": Mask.causal() & Mask.documents(torch.tensor([0, 0, 1, 1, 1, 2])),
    "table": Mask.keep(torch.rand(B, 1, 1, 6) > 0.2) | Mask.window(1),
    "everything": Mask.causal() | ~Mask.causal(),
}


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("queries", [4, 6])
def test_our_own_weights_are_ok_and_usual_masks_raise_no_warning(name: str, queries: int) -> None:
    report = mask_report(weights_of(GOOD[name], queries, 6), GOOD[name])
    assert report.ok
    assert report.warnings == ()
    table = GOOD[name].to_tensor(queries, 6).expand(B, H, queries, 6)
    assert report.hidden == int((~table).sum())
    assert report.blind_rows == int((~table.any(-1)).sum())
    assert str(report).startswith("ok: a query should see ")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_sums_are_judged_by_the_precision_of_the_weights(dtype: torch.dtype) -> None:
    q = torch.randn(1, 2, 64, 8).to(dtype)
    _, weights = attention(q, q, q, mask=Mask.causal(), return_weights=True)
    assert mask_report(weights, Mask.causal()).ok


def test_the_worst_leak_is_named() -> None:
    weights = weights_of(Mask.causal())
    weights[0, 1, 0, 4] = 1e-30
    weights[1, 2, 1, 5] = -0.25
    report = mask_report(weights, Mask.causal(), sum_to_one=False)
    assert not report.ok
    assert report.leaks == 2
    assert report.worst_leak == (1, 2, 1, 5, -0.25)
    assert "2 not 0, the greatest in batch 1, head 2, query 1, key 5: weight -0.25" in str(report)
    assert str(report).startswith("NOT OK")


def test_a_nan_in_a_hidden_weight_is_the_worst_leak() -> None:
    weights = weights_of(Mask.causal())
    weights[0, 0, 0, 5], weights[1, 0, 0, 5] = math.nan, 0.5
    worst = mask_report(weights, Mask.causal()).worst_leak
    assert worst is not None
    assert worst[:4] == (0, 0, 0, 5)
    assert math.isnan(worst.weight)


def test_a_row_that_does_not_sum_to_one_is_named() -> None:
    weights = weights_of(None)
    weights[1, 2, 3] *= 0.5
    weights[0, 1, 2, 0] = math.nan
    report = mask_report(weights, Mask.causal() | ~Mask.causal())
    assert (report.bad_sums, report.ok) == (2, False)
    assert report.worst_sum is not None
    assert report.worst_sum[:3] == (0, 1, 2)
    weights = weights_of(None)
    weights[1, 2, 3] *= 0.5
    report = mask_report(weights, Mask.causal() | ~Mask.causal())
    assert "1, the worst in batch 1, head 2, query 3: sum 0.5" in str(report)
    assert mask_report(weights, Mask.causal() | ~Mask.causal(), sum_to_one=False).ok


def test_a_blind_row_is_counted_and_need_not_sum_to_one() -> None:
    mask = Mask.causal() & Mask.hide(torch.tensor([[True, True, True, False, False, False]]))
    report = mask_report(weights_of(mask), mask)
    assert report.ok
    assert report.blind_rows == B * H
    assert f"rows that see no key: {B * H} of {B * H * T}" in str(report)


def test_nan_in_blind_rows_as_other_libraries_leave_it_is_a_leak() -> None:
    mask = Mask.causal() & ~Mask.causal()
    weights = torch.full((1, 1, 2, 2), math.nan)
    assert mask_report(weights, mask).leaks == 4


def test_an_inverted_mask_is_told_by_the_weights() -> None:
    tables = torch.tensor([[True] * 3 + [False] * 3, [True] * 5 + [False]])[:, None, None, :]
    report = mask_report(weights_of(Mask.keep(tables)), Mask.hide(tables))
    assert not report.ok
    assert any("looks inverted (Mask.keep and Mask.hide exchanged)" in warning for warning in report.warnings)


def test_a_transposed_mask_is_told_by_the_weights() -> None:
    table = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]], dtype=torch.bool)
    report = mask_report(weights_of(Mask.keep(table), 3, 3), Mask.keep(table.T))
    assert any("obey the transposed mask" in warning for warning in report.warnings)


def test_another_offset_is_told_by_the_weights() -> None:
    report = mask_report(weights_of(Mask.causal(), offset=0), Mask.causal() & Mask.window(9))
    assert report.ok  # top-left shows less
    report = mask_report(weights_of(Mask.causal()), Mask.causal(), offset=0)
    assert "the weights obey this mask with offset=2, aligned bottom-right" in report.warnings
    report = mask_report(weights_of(Mask.window(2), offset=0), Mask.window(2))
    assert "the weights obey this mask with offset=0, aligned top-left" in report.warnings
    assert mask_report(weights_of(Mask.causal(), offset=0), Mask.causal(), offset=0).ok


UPPER = torch.ones(6, 6, dtype=torch.bool).triu(1)
REAL = torch.arange(6) < torch.tensor([3, 6])[:, None, None, None]
SUSPECT: dict[str, tuple[Mask, str]] = {
    "only the future": (Mask.keep(UPPER), "queries see keys after their own but never one before"),
    "hide(tril)": (Mask.hide(~UPPER), "the causal mask looks inverted"),
    "the future and itself": (Mask.keep(UPPER | torch.eye(6).bool()), "the causal mask looks inverted"),
    "not a window": (~Mask.window(2) & Mask.causal(), "no query sees the key at its own position"),
    "inverted padding, a full sequence": (Mask.hide(REAL), "nothing can be seen in sequence 1 of the batch"),
    "inverted padding & causal": (Mask.causal() & Mask.hide(REAL), "nothing can be seen in sequence 1"),
    "inverted padding, none full": (
        Mask.hide(torch.arange(6) < torch.tensor([3, 5])[:, None, None, None]),
        "every sequence hides its first keys and shows its last",
    ),
    "padding on the query axis": (
        Mask.keep(REAL.mT.expand(2, 1, 6, 6)),
        r"key padding looks transposed, it is written t\[:, None",
    ),
    "nothing": (Mask.causal() & ~Mask.causal(), "the mask hides everything"),
    "few rows see": (
        Mask.keep(~UPPER & (torch.arange(6) < 2)[:, None]),
        "more than half of the queries",
    ),
}


@pytest.mark.parametrize("name", SUSPECT)
def test_a_suspicious_mask_is_warned_of_though_it_is_obeyed(name: str) -> None:
    mask, message = SUSPECT[name]
    report = mask_report(weights_of(mask, 6, 6), mask)
    assert report.ok
    with pytest.raises(AssertionError, match=message):
        raise AssertionError("\n".join(report.warnings))
    assert f"warning: {report.warnings[0]}" in str(report)


def test_counts_falling_from_all_to_none_are_suspicious_wherever_the_queries_are() -> None:
    table = torch.ones(4, 6, dtype=torch.bool).triu()
    table[3] = False
    mask = Mask.keep(table)
    report = mask_report(weights_of(mask), mask, offset=-20)
    assert any("first query sees every key, the last hardly any" in warning for warning in report.warnings)


@pytest.mark.parametrize(
    ("weights", "mask", "error", "message"),
    [
        (torch.ones(2, 3, 3), Mask.causal(), ValueError, "average_attn_weights=False"),
        (torch.ones(3, 3), Mask.causal(), ValueError, r"must be \(B, H, T, S\), .* got shape \(3, 3\)"),
        (torch.ones(1, 1, 2, 2, dtype=torch.int64), Mask.causal(), TypeError, "float tensor"),
        ([1.0], Mask.causal(), TypeError, "got list"),
        (torch.ones(1, 1, 2, 2), torch.ones(2, 2).bool(), TypeError, r"Mask\.keep\(t\)"),
        (
            torch.ones(3, 1, 2, 2),
            Mask.lengths(torch.tensor([1, 2])),
            ValueError,
            "2 lengths for a batch of 3",
        ),
    ],
)
def test_what_cannot_be_judged_is_refused(
    weights: object, mask: object, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        mask_report(weights, mask)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(0, 2, 3, 3), (1, 2, 0, 3), (1, 2, 3, 0)])
def test_empty_weights_are_ok(shape: tuple[int, int, int, int]) -> None:
    report = mask_report(torch.zeros(shape), Mask.causal())
    assert report.ok
    assert report.leaks == 0
