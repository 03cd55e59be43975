"""The module: equal to the textbook heads; projections, heads and dropout; bad input refused.

See also test_multi_head_options.py, test_multi_head_anywhere.py, test_convert.py and test_peers.py.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from headwise.attention import HeadList, LayerCache, Mask, MultiHeadAttention, Rotary, WeightsOf


@pytest.mark.parametrize("n_head", [1, 3, 6])
def test_separate_heads_and_one_cut_matrix_are_the_same_computation(n_head: int) -> None:
    torch.manual_seed(3)
    heads = HeadList(12, n_head, block_size=9)
    mha = MultiHeadAttention.from_heads(heads)
    x, into = torch.randn(2, 9, 12), torch.randn(2, 9, 12)
    x1, x2 = x.clone().requires_grad_(), x.clone().requires_grad_()
    (wanted, wanted_weights), (out, weights) = (
        heads(x1, return_weights=True),
        mha(x2, mask=Mask.causal(), return_weights=True),
    )
    close = {"atol": 1e-6, "rtol": 0.0}
    torch.testing.assert_close(out, wanted, **close)
    torch.testing.assert_close(weights, wanted_weights, **close)
    torch.testing.assert_close(mha(x, mask=Mask.causal()), wanted, **close)
    wanted.backward(into)
    out.backward(into)
    torch.testing.assert_close(x2.grad, x1.grad, **close)
    for whole, part in (("q_proj", "query"), ("k_proj", "key"), ("v_proj", "value")):
        parts = torch.cat([getattr(head, part).weight.grad for head in heads.heads])
        torch.testing.assert_close(mha.get_submodule(whole).weight.grad, parts, **close)
    torch.testing.assert_close(mha.o_proj.weight.grad, heads.proj.weight.grad, **close)
    torch.testing.assert_close(mha.o_proj.bias.grad, heads.proj.bias.grad, **close)


def test_from_heads_copies_and_keeps_dtype_mode_and_dropout() -> None:
    heads = HeadList(8, 2, block_size=4, dropout=0.3).double().eval()
    mha = MultiHeadAttention.from_heads(heads)
    assert (mha.q_proj.weight.dtype, mha.training, mha.dropout) == (torch.float64, False, 0.3)
    x = torch.randn(1, 4, 8, dtype=torch.float64)
    before = mha(x, mask=Mask.causal())
    torch.testing.assert_close(before, heads(x))
    with torch.no_grad():
        for parameter in heads.parameters():
            parameter.zero_()
    assert torch.equal(mha(x, mask=Mask.causal()), before)


def test_free_widths_give_these_shapes() -> None:
    mha = MultiHeadAttention(10, 6, n_kv_head=2, d_head=5, d_value=3, d_context=7, bias={"k", "o"})
    out, weights = mha(torch.randn(2, 4, 10), torch.randn(2, 9, 7), return_weights=True)
    assert (out.shape, weights.shape) == ((2, 4, 10), (2, 6, 4, 9))
    assert {name: tuple(p.shape) for name, p in mha.named_parameters()} == {
        "q_proj.weight": (30, 10),
        "k_proj.weight": (10, 7),
        "k_proj.bias": (10,),
        "v_proj.weight": (6, 7),
        "o_proj.weight": (10, 18),
        "o_proj.bias": (10,),
    }


def test_grouped_heads_equal_repeated_key_value_heads() -> None:
    grouped = MultiHeadAttention(12, 6, n_kv_head=2, rotary=Rotary(2))
    full = MultiHeadAttention(12, 6, rotary=Rotary(2))
    full.q_proj, full.o_proj = grouped.q_proj, grouped.o_proj
    with torch.no_grad():
        for name in ("k_proj", "v_proj"):
            rows = grouped.get_submodule(name).weight.unflatten(0, (2, 2)).repeat_interleave(3, dim=0)
            full.get_submodule(name).weight.copy_(rows.flatten(0, 1))
    x = torch.randn(2, 7, 12)
    torch.testing.assert_close(grouped(x, mask=Mask.causal()), full(x, mask=Mask.causal()))


def test_bias_true_is_every_part_and_false_none() -> None:
    def biased(**options: object) -> set[str]:
        named = MultiHeadAttention(4, 2, **options).named_parameters()  # type: ignore[arg-type]
        return {name[0] for name, _ in named if name.endswith("bias")}

    assert biased() == set()
    assert biased(bias=True) == set("qkvo")
    assert biased(bias={"q", "v"}) == set("qv")
    assert biased(bias=True, output_projection=False) == set("qkv")


def test_without_output_projection_the_heads_lie_side_by_side() -> None:
    mha, x = MultiHeadAttention(6, 3, output_projection=False), torch.randn(1, 4, 6)
    assert isinstance(mha.o_proj, nn.Identity)
    out, weights = mha(x, return_weights=True)
    v = mha.v_proj(x).unflatten(-1, (3, 2))
    for h in range(3):
        torch.testing.assert_close(out[..., 2 * h : 2 * h + 2], weights[:, h] @ v[:, :, h])


def test_with_rotary_the_order_of_earlier_tokens_matters_and_without_it_does_not() -> None:
    mha = MultiHeadAttention(8, 2, rotary=Rotary(4))
    x = torch.randn(1, 6, 8)
    out = mha(x, mask=Mask.causal())
    swapped = mha(x[:, [1, 0, 2, 3, 4, 5]], mask=Mask.causal())
    assert not torch.allclose(out[:, 5], swapped[:, 5])
    mha.rotary = None
    assert not torch.allclose(mha(x, mask=Mask.causal()), out)
    torch.testing.assert_close(
        mha(x, mask=Mask.causal())[:, 5], mha(x[:, [1, 0, 2, 3, 4, 5]], mask=Mask.causal())[:, 5]
    )


def test_the_bias_on_scores_is_alive_and_learns() -> None:
    mha, x = MultiHeadAttention(8, 2), torch.randn(1, 3, 8)
    bias = torch.tensor([[0.0, 100.0, 0.0]], requires_grad=True)
    _, weights = mha(x, bias=bias, return_weights=True)
    torch.testing.assert_close(weights[..., 1], torch.ones(1, 2, 3))
    bias = torch.zeros(2, 3, 3, requires_grad=True)
    (grad,) = torch.autograd.grad(mha(x, bias=bias).square().sum(), bias)
    assert (grad != 0).all()


def test_train_eval_and_no_grad_agree_without_dropout(any_backend: str) -> None:
    for n_head, d_model in ((3, 9), (4, 4), (2, 12)):
        mha = MultiHeadAttention(d_model, n_head, backend=any_backend)
        x = torch.randn(2, 8, d_model)
        mask = Mask.lengths(torch.tensor([7, 3]))  # the last column is padding for every sequence
        wanted = mha(x, mask=mask)
        assert wanted.shape == (2, 8, d_model)
        mha.eval()
        assert torch.equal(mha(x, mask=mask), wanted)
        with torch.no_grad():
            assert torch.equal(mha(x, mask=mask), wanted)
        with torch.inference_mode():
            assert torch.equal(mha(x, mask=mask), wanted)


def test_dropout_follows_train_and_eval(any_backend: str) -> None:
    mha = MultiHeadAttention(64, 2, dropout=0.5, backend=any_backend)
    plainly = MultiHeadAttention(64, 2, backend=any_backend)
    plainly.load_state_dict(mha.state_dict())
    x = torch.randn(1, 8, 64)
    out = mha(x)
    assert not torch.equal(out, mha(x))
    assert 0.3 < (out == 0).float().mean() < 0.7  # after the projection
    mha.eval()
    assert torch.equal(mha(x), mha(x))
    assert torch.equal(mha(x), plainly(x))


def test_dropout_falls_on_the_weights_too_but_not_on_those_returned() -> None:
    torch.manual_seed(5)
    mha = MultiHeadAttention(8, 2, dropout=0.5, output_projection=False)
    whole, weights = mha.eval()(torch.ones(1, 1, 8), return_weights=True)
    dropped = mha.train()(torch.ones(64, 1, 8))
    # one key: a head's whole output falls with its weight, single numbers fall after the projection
    by_head = (dropped == 0).unflatten(-1, (2, 4)).all(-1).float().mean()
    assert 0.4 < by_head < 0.7
    assert set((dropped / whole).round(decimals=3).unique().tolist()) == {0.0, 4.0}
    assert torch.equal(mha(torch.ones(64, 1, 8), return_weights=True)[1], torch.ones(64, 2, 1, 1))
    assert torch.equal(weights, torch.ones(1, 2, 1, 1))


def test_heads_are_returned_apart_not_averaged() -> None:
    mha = MultiHeadAttention(2, 2, backend="reference")
    with torch.no_grad():
        mha.q_proj.weight.copy_(torch.eye(2) * 100)
        mha.k_proj.weight.copy_(torch.eye(2))
    context = torch.tensor([[[1.0, -1.0], [-1.0, 1.0]]])
    _, weights = mha(torch.ones(1, 2, 2), context, return_weights=True)
    assert torch.equal(weights[0, 0], torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
    assert torch.equal(weights[0, 1], torch.tensor([[0.0, 1.0], [0.0, 1.0]]))


@pytest.mark.parametrize("weights", [False, True])
def test_permuting_heads_permutes_nothing_but_the_weights(weights: bool) -> None:
    mha, other = (MultiHeadAttention(6, 3) for _ in range(2))
    order = torch.tensor([2, 0, 1])
    with torch.no_grad():
        for name in ("q_proj", "k_proj", "v_proj"):
            rows = mha.get_submodule(name).weight.unflatten(0, (3, 2))[order].flatten(0, 1)
            other.get_submodule(name).weight.copy_(rows)
        other.o_proj.weight.copy_(mha.o_proj.weight.unflatten(1, (3, 2))[:, order].flatten(1))
    x = torch.randn(2, 5, 6)
    if not weights:
        torch.testing.assert_close(other(x), mha(x))
    else:
        torch.testing.assert_close(other(x, return_weights=True)[1], mha(x, return_weights=True)[1][:, order])


@pytest.mark.parametrize("weights", [False, True])
def test_a_query_that_sees_nothing_leaves_the_others_as_if_it_were_not_there(
    weights: bool, any_backend: str, refused: Callable[[str, Callable[[], object]], bool]
) -> None:
    torch.manual_seed(6)
    hidden = torch.zeros(4, 4, dtype=torch.bool)
    hidden[1] = True
    mha = MultiHeadAttention(8, 2, bias={"q", "k", "v"}, backend=any_backend)
    x, others = torch.randn(1, 4, 8), [0, 2, 3]

    def outputs(queries: Tensor, mask: Mask | None) -> tuple[Tensor, list[Tensor]]:
        leaf = queries.clone().requires_grad_()
        out = mha(leaf, x, mask=mask, return_weights=weights)
        out = out[0] if isinstance(out, tuple) else out
        return out, list(torch.autograd.grad(out.square().sum(), [leaf, *mha.parameters()]))

    if refused(any_backend, lambda: outputs(x, Mask.hide(hidden))):
        return
    out, grads = outputs(x, Mask.hide(hidden))
    wanted, wanted_grads = outputs(x[:, others], None)
    assert torch.equal(out[:, 1], torch.zeros(1, 8))
    torch.testing.assert_close(out[:, others], wanted)
    assert torch.equal(grads[0][:, 1], torch.zeros(1, 8))
    torch.testing.assert_close(grads[0][:, others], wanted_grads[0])
    for grad, want in zip(grads[1:], wanted_grads[1:], strict=True):
        torch.testing.assert_close(grad, want)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_asking_for_weights_changes_nothing(dropout: float) -> None:
    table = torch.rand(2, 3, 6, 6, generator=torch.Generator().manual_seed(7)) < 0.7
    for mask in (Mask.causal(), Mask.keep(table), Mask.causal() & Mask.lengths(torch.tensor([6, 2]))):
        mha, x = MultiHeadAttention(9, 3, dropout=dropout).eval(), torch.randn(2, 6, 9)
        out, weights = mha(x, mask=mask, return_weights=True)
        torch.testing.assert_close(mha(x, mask=mask), out)
        assert torch.equal(weights != 0, mask.to_tensor(6, 6).expand_as(weights))


def test_head_h_reads_key_value_head_h_by_group() -> None:
    mha, x = MultiHeadAttention(8, 4, n_kv_head=2, bias={"v"}, output_projection=False), torch.randn(1, 3, 8)
    with torch.no_grad():
        mha.v_proj.weight.zero_()
        mha.v_proj.bias.copy_(torch.tensor([0.0, 0, 1, 1]))  # key/value head j holds j
    assert mha(x)[0, 0].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


def test_sequences_of_a_batch_do_not_touch_each_other() -> None:
    mha, x = MultiHeadAttention(8, 4, n_kv_head=2), torch.randn(3, 5, 8)
    mask = Mask.causal() & Mask.lengths(torch.tensor([5, 3, 1]))
    out = mha(x, mask=mask)
    for b in range(3):
        alone = Mask.causal() & Mask.lengths(torch.tensor([[5], [3], [1]])[b])
        torch.testing.assert_close(out[b : b + 1], mha(x[b : b + 1], mask=alone))


def test_it_describes_itself_with_shapes() -> None:
    text = repr(MultiHeadAttention(12, 6, n_kv_head=2, d_value=3))
    assert "d_model=12, n_head=6, n_kv_head=2, d_head=2, d_value=3, d_context=12, d_out=12" in text
    assert "dropout=0.0, output_dropout=0.0, backend='auto'" in text
    assert "x (B, T, 12) → q (B, 6, T, 2), k (B, 2, S, 2), v (B, 2, S, 3)" in text
    assert "weights (B, 6, T, S) → heads (B, 6, T, 3) → (B, T, 12)" in text
    assert "sink" not in text
    assert "softcap" not in text
    text = repr(MultiHeadAttention(12, 6, d_out=5, qk_norm=True, softcap=30.0, sink=True, rotary=Rotary(2)))
    assert "d_out=5, dropout=0.0, output_dropout=0.0, softcap=30.0, sink=(6,), backend='auto'" in text
    assert "v (B, 6, S, 2), q and k normed and turned → weights" in text
    assert "→ (B, T, 5)" in text
    assert "(q_norm): RMSNorm((2,)" in text
    assert "(rotary): Rotary(d_head=2" in text


CONSTRUCTION: list[tuple[dict[str, object], str]] = [
    ({"n_head": 5}, "d_model=12 is not a multiple of n_head=5; 4 or 6 heads would fit"),
    ({"n_kv_head": 4}, "n_head=6 is not a multiple of n_kv_head=4; 3 or 6 key/value heads would fit"),
    ({"n_kv_head": 12}, "n_head=6 is not a multiple of n_kv_head=12; 6 key/value heads would fit"),
    ({"n_head": 0}, "n_head must be at least 1, got 0"),
    ({"d_value": 0}, "d_value must be at least 1, got 0"),
    ({"dropout": 1.0}, "0 ≤ dropout < 1, got 1.0"),
    ({"bias": {"q", "x"}}, "bias names the parts 'q', 'k', 'v' and 'o', got 'x'"),
    ({"bias": {"o"}, "output_projection": False}, "leaves no output projection"),
    ({"d_value": 3, "output_projection": False}, "6 · 3 = 18 and d_out=12"),
    ({"d_out": 0}, "d_out must be at least 1, got 0"),
    ({"d_out": 5, "output_projection": False}, "6 · 2 = 12 and d_out=5"),
    ({"output_dropout": -0.1}, "0 ≤ output_dropout < 1, got -0.1"),
    ({"softcap": 0.0}, "softcap must be a finite number above 0, or None for no cap, got 0.0"),
    ({"softcap": float("inf")}, "softcap must be a finite number above 0"),
    ({"rotary": Rotary(4)}, "rotary turns heads of width 4, but d_head is 2"),
    ({"backend": "flash"}, "unknown backend 'flash'"),
]


@pytest.mark.parametrize(("options", "message"), CONSTRUCTION)
def test_sizes_that_do_not_fit_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(**{"d_model": 12, "n_head": 6, **options})  # type: ignore[arg-type]


X = torch.zeros(2, 5, 12)
CALLS: list[tuple[dict[str, object], tuple[Tensor, ...], dict[str, object], type[Exception], str]] = [
    ({}, (torch.zeros(5, 12),), {}, ValueError, r"x must be \(batch, length, 12\), got shape \(5, 12\)"),
    ({}, (torch.zeros(2, 5, 13),), {}, ValueError, r"got shape \(2, 5, 13\)"),
    ({}, (X, torch.zeros(2, 5, 7)), {}, ValueError, r"context must be \(batch, length, 12\)"),
    ({}, (X, torch.zeros(5, 2, 12)), {}, ValueError, r"batch size 2 and context 5; x of .* looks time first"),
    ({}, (X, torch.zeros(3, 2, 12)), {}, ValueError, "batch size 2 and context 3; both are batch first"),
    ({}, (X,), {"mask": Mask.lengths(torch.ones(5).long())}, ValueError, r"or x of .* looks time first"),
    (
        {},
        (X,),
        {"mask": Mask.keep(torch.ones(5, 2, 2).bool())},
        ValueError,
        r"Mask\.keep got a tensor of shape \(5, 2, 2\).*; or x of shape \(2, 5, 12\) looks time first, "
        r"\(T, B, D\): give it batch first, x\.transpose\(0, 1\)",
    ),
    (
        {},
        (X, torch.zeros(2, 3, 12)),
        {"mask": Mask.keep(torch.ones(3, 5).bool())},
        ValueError,
        r"shape \(3, 5\) for scores with B=2, H=6, T=5, S=3; it looks transposed",
    ),
    ({"d_context": 7}, (X,), {}, ValueError, "made with d_context=7, so it needs a context"),
    ({"rotary": Rotary(2)}, (X, X), {}, ValueError, "rotary positions relate queries and keys of one"),
    (
        {},
        (X, X),
        {"cache": LayerCache(2, 6, 5, 2)},
        ValueError,
        "give either it or a context, or a context kept",
    ),
    ({}, (X,), {"gate": torch.ones(2)}, ValueError, r"gate must .* \(6,\) or .* \(2, 6\), got shape \(2,\)"),
    ({}, (X,), {"gate": 1.0}, TypeError, "gate must be a float tensor, got float"),
    ({}, (X,), {"return_weights": WeightsOf(heads=[6])}, ValueError, r"heads=…\) got 6"),
    ({}, (X.double(),), {}, TypeError, r"x is torch\.float64 and the weights are torch\.float32"),
    ({}, (X.long(),), {}, TypeError, "embed token ids first"),
    ({}, (X.to("meta"),), {}, ValueError, "x is on meta and the weights are on cpu"),
    ({}, (X,), {"mask": torch.ones(5, 5).bool()}, TypeError, r"Mask\.keep\(t\).*Mask\.hide\(t\)"),
    ({"backend": "sdpa"}, (X,), {"return_weights": True}, ValueError, "'sdpa' cannot run this call"),
]


@pytest.mark.parametrize(("made", "given", "options", "error", "message"), CALLS)
def test_inputs_that_do_not_fit_are_refused(
    made: dict[str, object],
    given: tuple[Tensor, ...],
    options: dict[str, object],
    error: type[Exception],
    message: str,
) -> None:
    mha = MultiHeadAttention(12, 6, **made)  # type: ignore[arg-type]
    with pytest.raises(error, match=message):
        mha(*given, **options)
