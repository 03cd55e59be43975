"""The polarities of other code: what they mean there, they mean here."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from headwise.attention import Mask, attention


def ours(mha: nn.MultiheadAttention, x: Tensor, context: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
    """Output and weights of these projections, by our attention."""
    h = mha.num_heads
    wq, wk, wv = mha.in_proj_weight.chunk(3)
    q, k, v = (
        (t @ w.T).unflatten(-1, (h, -1)).transpose(1, 2) for t, w in ((x, wq), (context, wk), (context, wv))
    )
    out, weights = attention(q, k, v, mask=mask, return_weights=True)
    return mha.out_proj(out.transpose(1, 2).flatten(2)), weights


@given(data=st.data())
@settings(max_examples=80, deadline=None)
def test_from_torch_means_what_it_means_to_multihead_attention(data: st.DataObject) -> None:
    N, H, T, S = (data.draw(st.integers(1, size)) for size in (3, 3, 5, 5))
    torch.manual_seed(data.draw(st.integers(0, 999)))
    mha = nn.MultiheadAttention(2 * H, H, bias=False, batch_first=True, dtype=torch.float64).eval()
    x, context = torch.randn(N, T, 2 * H, dtype=torch.float64), torch.randn(N, S, 2 * H, dtype=torch.float64)
    padding = (torch.rand(N, S) > 0.6) if data.draw(st.booleans()) else None
    shape = data.draw(st.sampled_from([None, (T, S), (N * H, T, S)]))
    table = None if shape is None else torch.rand(shape) > 0.6
    as_float = data.draw(st.booleans())  # both arguments, or PyTorch warns

    def given_to_torch(t: Tensor | None) -> Tensor | None:
        return (
            torch.zeros(t.shape, dtype=torch.float64).masked_fill(t, -math.inf)
            if as_float and t is not None
            else t
        )

    padding_given, table_given = given_to_torch(padding), given_to_torch(table)
    with torch.no_grad():
        wanted, weights = mha(
            x, context, context, padding_given, attn_mask=table_given, average_attn_weights=False
        )
        mask = Mask.from_torch(padding_given, table_given, n_head=H)
        out, found = ours(mha, x, context, mask)
    alive = mask.to_tensor(T, S).expand(N, H, T, S).any(-1)
    torch.testing.assert_close(found[alive], weights[alive])
    assert (found[~alive] == 0).all()  # NaN there
    rows = alive.all(1)
    torch.testing.assert_close(out[rows], wanted[rows])


def test_nothing_given_hides_nothing() -> None:
    assert Mask.from_torch().rules == ()
    assert Mask.from_torch().to_tensor(2, 3).all()


def test_the_square_subsequent_mask_of_torch_is_causal() -> None:
    table = nn.Transformer.generate_square_subsequent_mask(5)
    assert torch.equal(Mask.from_torch(attn_mask=table).to_tensor(5, 5), Mask.causal().to_tensor(5, 5))


def test_one_sequence_needs_no_batch() -> None:
    padding = torch.tensor([False, True, True])
    assert Mask.from_torch(padding).to_tensor(2, 3).tolist() == [[True, False, False]] * 2


def test_a_bool_table_is_not_copied() -> None:
    table = torch.rand(4, 4) > 0.5
    assert Mask.from_torch(attn_mask=table).rules == Mask.hide(table).rules


B, S = 2, 5
TABLE = torch.zeros(3, S, dtype=torch.bool)
FLOATS = torch.zeros(3, S)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"attn_mask": torch.zeros(6, 3, S).bool()}, ValueError, "say n_head to tell them apart"),
        (
            {"attn_mask": torch.zeros(6, 3, S).bool(), "n_head": 4},
            ValueError,
            "B·H must be a multiple of n_head=4",
        ),
        ({"attn_mask": torch.zeros(6, 3, S).bool(), "n_head": 2.0}, TypeError, "n_head must be an int"),
        ({"attn_mask": torch.zeros(1, 6, 3, S).bool()}, ValueError, r"must be \(T, S\) or \(B·H, T, S\)"),
        ({"attn_mask": TABLE.int()}, TypeError, r"True hides.*-inf hides.*t\.bool\(\).*from_zero_hides"),
        ({"attn_mask": FLOATS + 1}, ValueError, "holds 1, .*hides nothing: write t.bool"),
        ({"attn_mask": FLOATS - 1e9}, ValueError, r"holds -1e\+09.*Mask\.hide\(t <= -1e\+09\)"),
        ({"attn_mask": FLOATS - 0.5}, ValueError, "holds -0.5.*pass such numbers as bias=t"),
        ({"attn_mask": FLOATS * torch.nan}, ValueError, "holds nan"),
        ({"key_padding_mask": torch.zeros(B, 1, S).bool()}, ValueError, r"\(B, S\), or \(S,\).*is attn_mask"),
        ({"key_padding_mask": [[True]]}, TypeError, "must be a tensor, got list"),
        (
            {"key_padding_mask": torch.zeros(S, B).bool(), "attn_mask": TABLE},
            ValueError,
            r"batch and time look swapped: write key_padding_mask\.T",
        ),
        (
            {"key_padding_mask": torch.zeros(B, 4).bool(), "attn_mask": TABLE},
            ValueError,
            "B=2 and S=4, attn_mask for S=5; both must be for the same keys",
        ),
    ],
)
def test_what_is_no_mask_is_refused_with_advice(
    arguments: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Mask.from_torch(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32, torch.float16])
def test_zero_hides(dtype: torch.dtype) -> None:
    table = torch.rand(2, 1, 4, 5) > 0.5
    scores = torch.randn(2, 1, 4, 5)
    weights = scores.masked_fill(table.to(dtype) == 0, -math.inf).softmax(-1)
    shown = Mask.from_zero_hides(table.to(dtype)).to_tensor(4, 5)
    assert torch.equal(shown, table)
    rows = table.any(-1)
    assert torch.equal(shown[rows], weights[rows] > 0)


@pytest.mark.parametrize(
    ("t", "error", "message"),
    [
        ([[1]], TypeError, "needs a tensor of zeros and ones, got list"),
        (torch.tensor([[0, 2]]), ValueError, r"got 2; write t != 0.*Mask\.documents"),
        (torch.tensor([[0.0, 0.5]]), ValueError, "got 0.5"),
        (torch.tensor([[0.0, -math.inf]]), ValueError, r"got -inf; .*Mask\.from_torch"),
        (torch.tensor([[0.0, math.nan]]), ValueError, "got nan"),
        (torch.ones(3), ValueError, r"\(T, S\), \(B, T, S\) or \(B, H, T, S\)"),
    ],
)
def test_other_numbers_are_no_mask(t: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Mask.from_zero_hides(t)  # type: ignore[arg-type]


def test_padding_of_two_axes_is_told_where_its_axes_belong() -> None:
    padding = torch.ones(3, 5).int()
    with pytest.raises(ValueError, match=r"t\[:, None, None, :\]"):
        Mask.from_zero_hides(padding).check(4, 5, B=3)
    assert Mask.from_zero_hides(padding[:, None, None, :]).to_tensor(4, 5).shape == (3, 1, 4, 5)
