"""What the attention function refuses: each message says what came, what was wanted and what to do."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from headwise.attention import Mask, WeightsOf, attention


def tensors(**replaced: Tensor) -> dict[str, Tensor]:
    made = {"q": torch.randn(2, 4, 5, 8), "k": torch.randn(2, 2, 7, 8), "v": torch.randn(2, 2, 7, 6)}
    return {**made, **replaced}


SHAPES = {
    "three axes": ({"q": torch.randn(4, 5, 8)}, r"q must have four axes .* \(4, 5, 8\); .*unsqueeze"),
    "batch sizes": ({"k": torch.randn(3, 2, 7, 8)}, r"same batch size, the first axis.*k \(3, 2, 7, 8\)"),
    "heads of k and v": ({"v": torch.randn(2, 4, 7, 6)}, r"k and v must have the same number of heads"),
    "length of k and v": ({"v": torch.randn(2, 2, 6, 6)}, r"k and v must have the same length"),
    "width of q and k": ({"k": torch.randn(2, 2, 7, 9)}, r"q and k must have the same width"),
    "no width": ({"q": torch.randn(2, 4, 5, 0), "k": torch.randn(2, 2, 7, 0)}, r"at least 1"),
    "heads do not divide": (
        {"q": torch.randn(2, 5, 5, 8)},
        r"multiple of the heads of k and v, got q \(2, 5, 5, 8\).*transpose\(1, 2\)",
    ),
    "more key heads than query heads": ({"q": torch.randn(2, 1, 5, 8)}, r"multiple of the heads"),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_that_do_not_fit(name: str) -> None:
    replaced, message = SHAPES[name]
    with pytest.raises(ValueError, match=message):
        attention(**tensors(**replaced))


def test_wrong_dtypes() -> None:
    with pytest.raises(TypeError, match=r"share one dtype, got torch\.float32, torch\.float64 and"):
        attention(**tensors(k=torch.randn(2, 2, 7, 8, dtype=torch.float64)))
    with pytest.raises(TypeError, match=r"q must hold floating-point numbers, got torch\.int64"):
        attention(**tensors(q=torch.ones(2, 4, 5, 8, dtype=torch.int64)))
    with pytest.raises(TypeError, match="v must be a tensor, got list"):
        attention(torch.randn(2, 4, 5, 8), torch.randn(2, 2, 7, 8), [1.0])  # type: ignore[call-overload]


def test_different_devices_are_both_named() -> None:
    with pytest.raises(ValueError, match="one device, got cpu, meta and cpu"):
        attention(**tensors(k=torch.empty(2, 2, 7, 8, device="meta")))
    lengths = torch.tensor([1, 2], device="meta")
    with pytest.raises(ValueError, match=r"mask's tensor is on meta and q is on cpu"):
        attention(**tensors(), mask=Mask.lengths(lengths))
    with pytest.raises(ValueError, match=r"bias is on meta and q is on cpu"):
        attention(**tensors(), bias=torch.zeros(5, 7, device="meta"))


@pytest.mark.parametrize("bare", [torch.ones(5, 7, dtype=torch.bool), torch.zeros(5, 7), [[True]], True])
def test_a_bare_tensor_is_no_mask(bare: object) -> None:
    with pytest.raises(TypeError, match=r"must be a Mask.*Mask\.keep\(t\).*Mask\.hide\(t\)"):
        attention(**tensors(), mask=bare)  # type: ignore[call-overload]


def test_masks_that_do_not_fit_the_call() -> None:
    with pytest.raises(ValueError, match=r"3 lengths for a batch of 2"):
        attention(**tensors(), mask=Mask.lengths(torch.tensor([1, 2, 3])))
    with pytest.raises(ValueError, match=r"shape \(3, 1, 1, 7\) for scores with B=2, H=4, T=5, S=7"):
        attention(**tensors(), mask=Mask.keep(torch.ones(3, 1, 1, 7, dtype=torch.bool)))
    with pytest.raises(ValueError, match="looks transposed"):
        attention(**tensors(), mask=Mask.causal() & Mask.hide(torch.ones(7, 5, dtype=torch.bool)))
    with pytest.raises(ValueError, match="key padding"):
        attention(**tensors(), mask=Mask.keep(torch.ones(2, 7, dtype=torch.bool)))


def test_biases_that_do_not_fit_the_call() -> None:
    with pytest.raises(ValueError, match=r"bias of shape \(7, 5\) .* \(B, H, T, S\) = \(2, 4, 5, 7\)"):
        attention(**tensors(), bias=torch.zeros(7, 5))
    with pytest.raises(TypeError, match=r"torch\.bool; to hide keys use mask=Mask\.keep"):
        attention(**tensors(), bias=torch.ones(5, 7, dtype=torch.bool))
    with pytest.raises(TypeError, match="bias must be a float tensor"):
        attention(**tensors(), bias=0.5)  # type: ignore[call-overload]


@pytest.mark.parametrize("dropout", [-0.1, 1.0, float("nan")])
def test_dropout_out_of_range(dropout: float) -> None:
    with pytest.raises(ValueError, match="0 ≤ dropout < 1"):
        attention(**tensors(), dropout=dropout)


def test_other_numbers_out_of_range() -> None:
    with pytest.raises(ValueError, match="scale must be a finite number, got inf"):
        attention(**tensors(), scale=float("inf"))
    with pytest.raises(TypeError, match="offset must be an int.*got float"):
        attention(**tensors(), offset=1.0)  # type: ignore[call-overload]


def test_options_per_head_that_do_not_fit() -> None:
    with pytest.raises(
        ValueError, match=r"sink must have one number per query head, \(H,\) = \(4,\), got .*\(2,\)"
    ):
        attention(**tensors(), sink=torch.zeros(2))
    with pytest.raises(ValueError, match=r"\(H,\) = \(4,\) or \(B, H\) = \(2, 4\), got shape \(4, 2\)"):
        attention(**tensors(), gate=torch.zeros(4, 2))
    with pytest.raises(TypeError, match="gate must be a float tensor, got list"):
        attention(**tensors(), gate=[1.0] * 4)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"gate must hold floating-point numbers, got torch\.bool"):
        attention(**tensors(), gate=torch.ones(4, dtype=torch.bool))
    with pytest.raises(ValueError, match="sink is on meta and q is on cpu"):
        attention(**tensors(), sink=torch.zeros(4, device="meta"))


@pytest.mark.parametrize("softcap", [0.0, -1.0, float("inf"), float("nan")])
def test_a_softcap_out_of_range(softcap: float) -> None:
    with pytest.raises(ValueError, match="softcap must be a finite number above 0, or None for no cap"):
        attention(**tensors(), softcap=softcap)


def test_weights_of_what_is_not_there() -> None:
    with pytest.raises(ValueError, match=r"WeightsOf\(heads=…\) got 4, but this call has 4 of them"):
        attention(**tensors(), return_weights=WeightsOf(heads=[0, 4]))
    with pytest.raises(ValueError, match=r"WeightsOf\(rows=…\) got -6, but this call has 5"):
        attention(**tensors(), return_weights=WeightsOf(rows=[-6]))
    with pytest.raises(
        TypeError, match=r"WeightsOf\(heads=…\) needs a sequence of ints such as \[0, 2\], got int"
    ):
        attention(**tensors(), return_weights=WeightsOf(heads=1))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"WeightsOf\(rows=…\) needs ints, got bool"):
        attention(**tensors(), return_weights=WeightsOf(rows=[True]))
    with pytest.raises(TypeError, match=r"return_weights must be True, False or a WeightsOf.*got int"):
        attention(**tensors(), return_weights=1)  # type: ignore[call-overload]


def test_an_unknown_backend_is_named_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown backend 'flash'; there are 'auto', 'sdpa', 'blockwise', "):
        attention(**tensors(), backend="flash")


def test_autocast_does_not_reach_into_the_softmax() -> None:
    given = tensors()
    mask, bias = Mask.causal(), torch.randn(5, 7)
    weights = attention(**given, mask=mask, bias=bias, return_weights=True)[1]
    for backend in ("auto", "blockwise", "reference"):
        wanted = attention(**given, mask=mask, bias=bias, backend=backend)
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(attention(**given, mask=mask, bias=bias, backend=backend), wanted)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(attention(**given, mask=mask, bias=bias, return_weights=True)[1], weights)
        half = {name: t.bfloat16() for name, t in given.items()}
        out = attention(**half, mask=mask, bias=bias)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), wanted, atol=0.05, rtol=0.05)
