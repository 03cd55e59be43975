"""From and to other forms of attention: equal outputs and gradients there, and what is refused by name."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from headwise.attention import HeadList, Mask, MultiHeadAttention, Rotary
from headwise.attention.convert import PROJECTIONS


def shaken(module: nn.Module) -> nn.Module:
    """Give every parameter, zeros of biases included, a number that matters."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("widths", [{}, {"kdim": 10, "vdim": 10}])
def test_to_pytorch_and_back_is_the_same_module(widths: dict[str, int], biased: bool) -> None:
    theirs = nn.MultiheadAttention(12, 3, dropout=0.2, bias=biased, batch_first=True, **widths)
    shaken(theirs.double().eval())
    ours = MultiHeadAttention.from_torch(theirs)
    assert (ours.dropout, ours.output_dropout, ours.training) == (0.2, 0.0, False)
    back = ours.to_torch()
    assert (back.dropout, back.training, back.batch_first) == (0.2, False, True)
    assert back.state_dict().keys() == theirs.state_dict().keys()
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(back.state_dict()[name], tensor), name
    again = MultiHeadAttention.from_torch(back)
    for name, tensor in ours.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name


def test_time_first_is_the_same_after_swapping_the_axes() -> None:
    theirs = shaken(nn.MultiheadAttention(12, 3, batch_first=False))
    ours, x = MultiHeadAttention.from_torch(theirs), torch.randn(5, 2, 12)
    torch.testing.assert_close(ours(x.transpose(0, 1)).transpose(0, 1), theirs(x, x, x)[0])


def test_dropout_falls_on_the_weights_only_as_it_did_there() -> None:
    torch.manual_seed(9)
    ours = MultiHeadAttention.from_torch(shaken(nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)))
    x = torch.randn(1, 1, 8)  # one key: in each head its weight is dropped, or kept and doubled
    weight, v = ours.o_proj.weight, ours.v_proj(x)[0, 0]
    first, second = weight[:, :4] @ v[:4], weight[:, 4:] @ v[4:]
    possible = [ours.o_proj.bias + 2 * (a * first + b * second) for a in (0, 1) for b in (0, 1)]
    seen = set()
    for _ in range(40):
        out = ours(x)[0, 0]
        (which,) = [i for i, wanted in enumerate(possible) if torch.allclose(out, wanted, atol=1e-5)]
        seen.add(which)
    assert seen == {0, 1, 2, 3}


@pytest.mark.parametrize("part", [set(), {"q"}, {"o"}, {"k", "v"}])
@pytest.mark.parametrize("n_kv_head", [6, 3, 1])
def test_shared_heads_and_missing_biases_reach_pytorch_filled_in(n_kv_head: int, part: set) -> None:
    ours = MultiHeadAttention(12, 6, n_kv_head=n_kv_head, d_context=7, bias=part)
    shaken(ours.double())
    theirs = ours.to_torch()
    assert (theirs.in_proj_bias is not None) == bool(part)
    x, context = torch.randn(2, 5, 12).double(), torch.randn(2, 4, 7).double()
    torch.testing.assert_close(theirs(x, context, context)[0], ours(x, context))


def test_weights_are_copied_not_shared() -> None:
    theirs = shaken(nn.MultiheadAttention(12, 3, batch_first=True))
    ours, x = MultiHeadAttention.from_torch(theirs), torch.randn(1, 4, 12)
    before = ours(x)
    back = ours.to_torch()
    for module in (theirs, back):
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.zero_()
    assert torch.equal(ours(x), before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"add_bias_kv": True}, r"no place for add_bias_kv=True"),
        ({"add_zero_attn": True}, r"no place for add_zero_attn=True"),
        ({"kdim": 5, "vdim": 7}, r"kdim=5 apart from vdim=7, as both are made from one context"),
        ({"add_bias_kv": True, "add_zero_attn": True}, "add_bias_kv=True; add_zero_attn=True"),
    ],
)
def test_what_pytorch_has_and_we_have_not_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention.from_torch(nn.MultiheadAttention(12, 3, **options))


def test_only_its_own_module_is_taken() -> None:
    with pytest.raises(TypeError, match=r"needs a torch\.nn\.MultiheadAttention, got Linear"):
        MultiHeadAttention.from_torch(nn.Linear(2, 2))  # type: ignore[arg-type]


BEYOND: list[tuple[dict[str, object], str]] = [
    ({"rotary": Rotary(2)}, "rotary positions"),
    ({"qk_norm": True}, "qk_norm=True"),
    ({"softcap": 5.0}, "softcap=5.0"),
    ({"sink": True}, "sink=True"),
    ({"d_head": 3}, "n_head · d_head = 18 apart from d_model=12"),
    ({"d_value": 3}, "d_value=3 apart from d_head=2"),
    ({"d_out": 5}, "d_out=5 apart from d_model=12"),
    ({"output_projection": False}, "output_projection=False"),
    ({"qk_norm": True, "sink": True}, "qk_norm=True; sink=True"),
]


@pytest.mark.parametrize(("options", "message"), BEYOND)
def test_what_we_have_and_others_have_not_is_refused(options: dict[str, object], message: str) -> None:
    mha = MultiHeadAttention(12, 6, **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"MultiheadAttention has no place for .*{message}"):
        mha.to_torch()
    with pytest.raises(ValueError, match=f"separate heads have no place for .*{message}"):
        mha.to_heads(8)


def test_options_that_only_one_of_them_lacks_are_refused() -> None:
    with pytest.raises(ValueError, match=r"output_dropout=0\.5 \(set it to 0\.0 and drop out afterwards\)"):
        MultiHeadAttention(12, 6, dropout=0.5).to_torch()
    with pytest.raises(ValueError, match=r"output_dropout=0\.0 apart from dropout=0\.5"):
        MultiHeadAttention(12, 6, dropout=0.5, output_dropout=0.0).to_heads(8)
    with pytest.raises(ValueError, match="d_context=7 apart from d_model=12"):
        MultiHeadAttention(12, 6, d_context=7).to_heads(8)
    with pytest.raises(ValueError, match="a bias in q_proj; a bias in v_proj"):
        MultiHeadAttention(12, 6, bias={"q", "v"}).to_heads(8)


def test_to_heads_and_back_is_the_same_module() -> None:
    heads = shaken(HeadList(12, 3, block_size=9, dropout=0.1).double().eval())
    mha = MultiHeadAttention.from_heads(heads)
    back = mha.to_heads(9)
    assert (back.dropout, back.training) == (0.1, False)
    assert {head.block_size for head in back.heads} == {9}
    for name, tensor in heads.state_dict().items():
        assert torch.equal(back.state_dict()[name], tensor), name


@pytest.mark.parametrize("bias", [set(), {"o"}])
@pytest.mark.parametrize("n_kv_head", [6, 3, 1])
def test_separate_heads_give_the_same_outputs_weights_and_gradients(n_kv_head: int, bias: set) -> None:
    mha = shaken(MultiHeadAttention(12, 6, n_kv_head=n_kv_head, bias=bias).double())
    heads = mha.to_heads(7)
    x, into = torch.randn(2, 7, 12).double(), torch.randn(2, 7, 12).double()
    out, weights = mha(x, mask=Mask.causal(), return_weights=True)
    wanted, wanted_weights = heads(x, return_weights=True)
    torch.testing.assert_close(out, wanted)
    torch.testing.assert_close(weights, wanted_weights)
    out.backward(into)
    wanted.backward(into)
    for name, part in zip(PROJECTIONS, ("query", "key", "value"), strict=True):
        grads = torch.stack([getattr(head, part).weight.grad for head in heads.heads])
        if part != "query":  # what a shared head learns is the sum of what its copies learn
            grads = grads.unflatten(0, (n_kv_head, -1)).sum(1)
        torch.testing.assert_close(mha.get_submodule(name).weight.grad, grads.flatten(0, 1))
    torch.testing.assert_close(mha.o_proj.weight.grad, heads.proj.weight.grad)
