"""The module where PyTorch's own work: low precision, autocast, meta device, vmap, higher derivatives."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import Tensor

from headwise.attention import LayerCache, Mask, MultiHeadAttention, Rotary, WeightsOf

EVERYTHING: dict[str, object] = {
    "n_kv_head": 2,
    "d_head": 8,
    "d_value": 5,
    "d_out": 9,
    "bias": True,
    "qk_norm": True,
    "softcap": 3.0,
    "sink": True,
}


def made(**options: object) -> MultiHeadAttention:
    torch.manual_seed(14)
    mha = MultiHeadAttention(16, 4, **{**EVERYTHING, "rotary": Rotary(8), **options})  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in mha.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return mha


@pytest.mark.parametrize("options", [{}, {"softcap": None, "sink": False, "d_value": None}])
def test_under_autocast_the_projections_are_low_and_the_result_is_near(options: dict[str, object]) -> None:
    mha, x, gate = made(**options), torch.randn(2, 6, 16), torch.rand(4)
    bias, mask = torch.randn(6, 6), Mask.causal() & Mask.lengths(torch.tensor([6, 3]))
    wanted, wanted_weights = mha(x, mask=mask, bias=bias, gate=gate, return_weights=True)
    plain = mha(x, mask=mask)
    with torch.autocast("cpu", torch.bfloat16):
        out, weights = mha(x, mask=mask, bias=bias, gate=gate, return_weights=True)
        fast = mha(x, mask=mask)
        cache = LayerCache(2, 2, 6, 8, mha.d_value, dtype=torch.bfloat16)
        steps = [
            mha(x[:, :4], mask=Mask.causal(), cache=cache),
            mha(x[:, 4:], mask=Mask.causal(), cache=cache),
        ]
    assert out.dtype == weights.dtype == fast.dtype == torch.bfloat16
    for low, high in ((out, wanted), (fast, plain), (weights, wanted_weights)):
        torch.testing.assert_close(low.float(), high, atol=0.03, rtol=0.03)
    torch.testing.assert_close(torch.cat(steps, 1).float(), mha(x, mask=Mask.causal()), atol=0.03, rtol=0.03)


def test_under_autocast_gradients_arrive_in_the_dtype_of_the_weights() -> None:
    mha, x = made(), torch.randn(2, 6, 16)
    with torch.autocast("cpu", torch.bfloat16):
        mha(x, mask=Mask.causal()).float().square().sum().backward()
    for name, parameter in mha.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.dtype == torch.float32
        assert parameter.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_low_precision_module_is_near_and_trains(dtype: torch.dtype) -> None:
    exact, x = made().double(), torch.randn(2, 6, 16).to(dtype)
    low = copy.deepcopy(exact).to(dtype)
    exact.load_state_dict(low.state_dict())  # the rounded weights, computed with exactly
    mask = Mask.causal() & Mask.hide(torch.tensor([[True] + [False] * 5, [False] * 6])[:, None, None, :])
    wanted, out = exact(x.double(), mask=mask), low(x, mask=mask)
    assert out.dtype == dtype
    assert torch.equal(out[0, 0], low.o_proj.bias)  # the one query that sees no key
    close = {"atol": 0.05, "rtol": 0.05}
    torch.testing.assert_close(out.double(), wanted, **close)
    wanted.sum().backward()
    out.sum().backward()
    for name, parameter in low.named_parameters():
        assert parameter.grad.isfinite().all(), name
        size = exact.get_parameter(name).grad.abs().max()
        torch.testing.assert_close(
            parameter.grad.double() / size, exact.get_parameter(name).grad / size, atol=0.1, rtol=0
        )


def test_made_on_meta_and_moved_it_works() -> None:
    with torch.device("meta"):
        mha = made()
        out, weights = mha(torch.zeros(2, 5, 16), mask=Mask.causal(), return_weights=True)
        cache = LayerCache(2, 2, 5, 8, 5, window=3)
        mha(torch.zeros(2, 5, 16), cache=cache)
    assert (out.device.type, out.shape, weights.shape) == ("meta", (2, 5, 9), (2, 4, 5, 5))
    real = made()
    mha.to_empty(device="cpu").load_state_dict(real.state_dict())
    x = torch.randn(2, 5, 16)
    assert torch.equal(mha(x, mask=Mask.causal()), real(x, mask=Mask.causal()))


def test_vmap_equals_one_call_after_another() -> None:
    mha, xs = made(backend="reference").double(), torch.randn(3, 2, 5, 16, dtype=torch.float64)
    gates = torch.rand(3, 4, dtype=torch.float64)
    mask = Mask.causal() & Mask.lengths(torch.tensor([5, 2]))

    def run(x: Tensor, gate: Tensor) -> tuple[Tensor, Tensor]:
        return mha(x, mask=mask, gate=gate, return_weights=True)

    outs, weights = torch.vmap(run)(xs, gates)
    for i in range(3):
        out, weight = run(xs[i], gates[i])
        torch.testing.assert_close(outs[i], out)
        torch.testing.assert_close(weights[i], weight)


def test_gradients_per_sample() -> None:
    mha, xs = made(backend="reference").double(), torch.randn(3, 5, 16, dtype=torch.float64)
    parameters = dict(mha.named_parameters())

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        out: Tensor = torch.func.functional_call(mha, parameters, (x[None],), {"mask": Mask.causal()})
        return out.square().sum()

    grads = torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, xs)
    for i in range(3):
        wanted = torch.autograd.grad(loss(parameters, xs[i]), list(parameters.values()))
        for grad, want in zip(grads.values(), wanted, strict=True):
            torch.testing.assert_close(grad[i], want)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # by PyTorch itself
def test_derivatives_of_derivatives_and_forward_mode() -> None:
    torch.manual_seed(15)
    options = {"qk_norm": True, "softcap": 3.0, "sink": True, "rotary": Rotary(2), "backend": "reference"}
    mha = MultiHeadAttention(4, 2, n_kv_head=1, **options).double()  # type: ignore[arg-type]
    x = torch.randn(1, 3, 4, dtype=torch.float64, requires_grad=True)
    gate = torch.rand(2, dtype=torch.float64, requires_grad=True)
    hidden = torch.zeros(3, 3, dtype=torch.bool)
    hidden[1] = True  # one query sees nothing
    mask = Mask.causal() & Mask.hide(hidden)

    def run(x: Tensor, gate: Tensor) -> Tensor:
        return mha(x, mask=mask, gate=gate)

    assert torch.autograd.gradcheck(run, (x, gate), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(run, (x, gate))


def test_copies_and_saved_weights_are_the_same_module() -> None:
    mha, x = made(), torch.randn(2, 5, 16)
    out = mha(x, mask=Mask.causal())
    assert torch.equal(copy.deepcopy(mha)(x, mask=Mask.causal()), out)
    saved = io.BytesIO()
    torch.save(mha.state_dict(), saved)
    saved.seek(0)
    other = MultiHeadAttention(16, 4, **EVERYTHING, rotary=Rotary(8))  # type: ignore[arg-type]
    assert not torch.equal(other(x, mask=Mask.causal()), out)
    other.load_state_dict(torch.load(saved, weights_only=True), strict=True)
    assert torch.equal(other(x, mask=Mask.causal()), out)
    assert {"sink", "q_norm.weight", "k_norm.weight"} <= mha.state_dict().keys()
    assert MultiHeadAttention(16, 4).state_dict().keys() == {f"{p}_proj.weight" for p in "qkvo"}


def test_a_copied_cache_goes_its_own_way() -> None:
    mha, x = made(), torch.randn(1, 6, 16)
    cache = LayerCache(1, 2, 6, 8, 5)
    with torch.no_grad():
        mha(x[:, :4], mask=Mask.causal(), cache=cache)
        other = copy.deepcopy(cache)
        mha(torch.randn(1, 1, 16), mask=Mask.causal(), cache=other)
        out = mha(x[:, 4:], mask=Mask.causal(), cache=cache)
    assert (cache.length, other.length) == (6, 5)
    torch.testing.assert_close(out, mha(x, mask=Mask.causal())[:, 4:])


@pytest.mark.parametrize("shape", [(0, 5, 16), (2, 0, 16), (0, 0, 16)])
def test_no_sequences_and_no_tokens_are_fine(shape: tuple[int, int, int]) -> None:
    mha, x = made(), torch.zeros(shape, requires_grad=True)
    for weights in (False, True, WeightsOf(heads=[1])):
        out = mha(x, mask=Mask.causal(), return_weights=weights)
        out = out[0] if isinstance(out, tuple) else out
        assert out.shape == (*shape[:2], 9)
    out.sum().backward()
    assert x.grad.shape == shape
    assert all(p.grad is None or not p.grad.any() for n, p in mha.named_parameters() if n[0] in "kv")


def test_no_context_leaves_the_output_bias() -> None:
    mha, x = made(rotary=None), torch.randn(2, 3, 16)
    out = mha(x, torch.zeros(2, 0, 16))
    assert torch.equal(out, mha.o_proj.bias.expand(2, 3, 9))
    out.sum().backward()
    assert all(not p.grad.any() for n, p in mha.named_parameters() if n != "o_proj.bias")
