"""The matrix: every backend × masks, bias, options, group sizes, shapes, strides and dtypes, all gradients.

Calls are drawn; what is right is the reference in float64, which `test_backends` compares with plain loops.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headwise.attention import Mask, WeightsOf, attention, blockwise, blockwise_passes
from headwise.attention.dropout import PairDropout
from headwise.attention.functional import checked_request
from headwise.attention.tiles import TileSizes

LOW = [torch.float32, torch.bfloat16, torch.float16]
SIZES = st.sampled_from([0, 1, 2, 3, 5, 7, 8, 16, 17, 21])

LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda t: t,
    "projected": lambda t: t.transpose(1, 2).contiguous().transpose(1, 2),
    "width first": lambda t: t.mT.contiguous().mT,
    "every second": lambda t: t.repeat_interleave(2, dim=2)[:, :, ::2],
    "part of a buffer": lambda t: torch.cat((t, t), dim=2)[:, :, : t.shape[2]],
    "expanded batch": lambda t: t[:1].expand(t.shape),
    "expanded heads": lambda t: t[:, :1].expand(t.shape),
    "expanded length": lambda t: t[:, :, :1].expand(t.shape),
}


@dataclass
class Call:
    """A drawn call: leaves in float64, how they are laid out, and the other arguments."""

    leaves: dict[str, Tensor]
    layouts: dict[str, str]
    into: Tensor
    mask: Mask | None
    options: dict[str, float | int | None]
    chosen: WeightsOf
    tiles: TileSizes
    made_of: str = field(repr=True, default="")

    def arguments(
        self, dtype: torch.dtype, rounded_to: torch.dtype | None = None
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return fresh leaves in this dtype and the tensors made of them."""
        leaves = {
            name: leaf.to(rounded_to or dtype).to(dtype).requires_grad_()
            for name, leaf in self.leaves.items()
        }
        given = {
            name: LAYOUTS[self.layouts[name]](leaf) if name in self.layouts else leaf
            for name, leaf in leaves.items()
        }
        return leaves, given

    def on_the_way(self) -> Tensor:
        """Return the largest that the sums can be whose differences are the gradient of the scores."""
        heads, groups = self.into.shape[1], self.leaves["v"].shape[1]
        gate = self.leaves.get("gate", torch.ones(heads)).view(-1, heads, 1, 1)
        return (self.into * gate).abs() @ self.leaves["v"].abs().repeat_interleave(heads // groups, dim=1).mT

    def run(
        self, dtype: torch.dtype, how: Callable[..., Tensor], rounded_to: torch.dtype | None = None
    ) -> list[Tensor]:
        """Return the output and the gradients of all leaves, in float64."""
        leaves, given = self.arguments(dtype, rounded_to)
        into = self.into.to(rounded_to or dtype).to(dtype)
        out = how(**given)
        return [t.detach().double() for t in (out, *gradients(out, into, list(leaves.values())))]


def largest(t: Tensor) -> float:
    return float(t.abs().max()) if t.numel() else 0.0


def gradients(out: Tensor, into: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    grads = torch.autograd.grad(out, leaves, into, allow_unused=True, materialize_grads=True)
    return list(grads)


@st.composite
def masks(draw: st.DrawFn, B: int, H: int, T: int, S: int, generator: torch.Generator) -> Mask:
    def table(T: int = T) -> Tensor:
        shape = [draw(st.sampled_from([1, size])) for size in (B, H, T)]
        return torch.rand([*shape, S], generator=generator) < draw(st.sampled_from([0.1, 0.6, 0.95]))

    def part() -> Mask:
        kind = draw(st.sampled_from(["causal", "window", "lengths", "keep", "hide", "prefix", "documents"]))
        if kind == "causal":
            return Mask.causal()
        if kind == "window":
            return Mask.window(draw(st.integers(1, 6)))
        if kind == "lengths":
            return Mask.lengths(torch.randint(0, S + 2, (B,), generator=generator))
        if kind == "keep":
            return Mask.keep(table())
        if kind == "hide":
            return Mask.hide(table())
        if kind == "prefix":
            if draw(st.booleans()):
                return Mask.prefix(draw(st.integers(0, S + 1)))
            return Mask.prefix(torch.randint(0, S + 2, (B,), generator=generator))
        shape = (S,) if draw(st.booleans()) else (B, S)
        return Mask.documents(torch.randint(0, 3, shape, generator=generator).sort(dim=-1).values)

    mask = part()
    for _ in range(draw(st.integers(0, 2))):
        other = part()
        if draw(st.booleans()):
            other = ~other
        mask = mask & other if draw(st.booleans()) else mask | other
    return mask


@st.composite
def calls(draw: st.DrawFn, backend: str = "") -> Call:
    """Draw a call; for "sdpa" mostly one that it does not refuse."""
    everything = backend != "sdpa" or draw(st.integers(0, 5)) == 0
    B = draw(st.sampled_from([1, 2, 2, 3, 0]))
    G, R = draw(st.sampled_from([(1, 1), (3, 1), (1, 4), (2, 3), (3, 2), (2, 2), (4, 3)]))
    H, T, S = G * R, draw(SIZES), draw(SIZES)
    K, V = draw(st.sampled_from([(4, 4), (8, 8), (5, 3), (3, 7), (1, 1), (16, 8)]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**30)))

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    leaves = {"q": normal(B, H, T, K), "k": normal(B, G, S, K), "v": normal(B, G, S, V)}
    if draw(st.booleans()):
        bias = normal(*(draw(st.sampled_from([1, size])) for size in (B, H, T, S)))
        if draw(st.booleans()):
            bias = bias.masked_fill(torch.rand(bias.shape, generator=generator) < 0.2, -math.inf)
        leaves["bias"] = bias[0] if bias.shape[0] == 1 and draw(st.booleans()) else bias
    if everything and draw(st.booleans()):
        leaves["sink"] = normal(H)
    if draw(st.booleans()):
        leaves["gate"] = normal(B, H) if draw(st.booleans()) else normal(H)
    mask = draw(masks(B, H, T, S, generator)) if draw(st.integers(0, 4)) else None
    heads = draw(st.none() | st.lists(st.integers(-H, H - 1), max_size=3))
    rows = draw(st.none() | st.lists(st.integers(-T, T - 1), max_size=4)) if T else None
    return Call(
        leaves,
        {name: draw(st.sampled_from(sorted(LAYOUTS))) for name in "qkv"},
        normal(B, H, T, V),
        mask,
        {
            "offset": draw(st.sampled_from([None, None, S - T, 0, -2, S + 1])),
            "scale": draw(st.sampled_from([None, None, 0.3, -1.0] if everything else [None, 0.3])),
            "softcap": draw(st.sampled_from([None, None, 0.7, 5.0])) if everything else None,
        },
        WeightsOf(heads, rows if draw(st.booleans()) else slice(draw(st.integers(-3, 3)), None, 2)),
        TileSizes(draw(st.integers(1, 9)), draw(st.integers(1, 9)), draw(st.integers(1, 9))),
        made_of=f"{B=} {H=} {G=} {T=} {S=} {K=} {V=}",
    )


def plain_maths(
    call: Call,
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None = None,
    sink: Tensor | None = None,
    gate: Tensor | None = None,
    kept: Tensor | None = None,
) -> Tensor:
    """Attention as one would write it down, in the dtype of its inputs throughout."""
    (B, H, T, K), G, S = q.shape, k.shape[1], k.shape[2]
    options = call.options
    k, v = k.repeat_interleave(H // G, dim=1), v.repeat_interleave(H // G, dim=1)
    score = q @ k.mT * (K**-0.5 if options["scale"] is None else options["scale"])
    if options["softcap"] is not None:
        score = options["softcap"] * (score / options["softcap"]).tanh()
    hidden = torch.zeros(1, 1, T, S, dtype=torch.bool)
    if call.mask is not None:
        hidden = ~call.mask.to_tensor(T, S, offset=options["offset"])  # type: ignore[arg-type]
    if bias is not None:
        hidden = hidden | (bias.detach() == -math.inf)
        score = score + bias.masked_fill(bias.detach() == -math.inf, 0.0)
    hidden = hidden.expand(B, H, T, S)
    blind = hidden.all(dim=-1, keepdim=True)
    score = score.masked_fill(hidden & ~blind, -math.inf)
    if sink is not None:
        score = torch.cat((score, sink[:, None, None].expand(B, H, T, 1)), dim=-1)
    weight = score.softmax(dim=-1)[..., :S].masked_fill(blind, 0.0)
    out = (weight if kept is None else weight * kept) @ v
    return out if gate is None else out * gate.view(-1, H, 1, 1)


def ours(call: Call, backend: str, **given: Tensor) -> Tensor:
    out = attention(**given, mask=call.mask, **call.options, backend=backend)  # type: ignore[call-overload]
    assert isinstance(out, Tensor)
    return out


def refuses(call: Call, backend: str, dtype: torch.dtype = torch.float64) -> bool:
    """Whether the backend refuses the call; then it must be for a reason that holds."""
    _, given = call.arguments(dtype)
    try:
        ours(call, backend, **given)
    except ValueError as error:
        message = str(error)
    else:
        return False
    assert backend == "sdpa"
    assert "cannot run this call" in message
    heads, groups, scale = given["q"].shape[1], given["k"].shape[1], call.options["scale"]
    assert (
        call.options["softcap"] is not None
        or "sink" in given
        or (scale is not None and scale <= 0)
        or (heads > groups and ("bias" in given or given["q"].shape[3] != given["v"].shape[3]))
    )
    return True


def with_tiles(call: Call, do: Callable[[], None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blockwise_passes, "tile_sizes", lambda _: call.tiles)
        do()


SEARCH = settings(max_examples=40, deadline=None)


@given(call=calls())
@SEARCH
def test_the_reference_is_plain_maths(call: Call) -> None:
    wanted = call.run(torch.float64, lambda **given: plain_maths(call, **given))
    got = call.run(torch.float64, lambda **given: ours(call, "reference", **given))
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("backend", ["blockwise", "sdpa", "auto"])
def test_backends_equal_the_reference_in_outputs_and_all_gradients(backend: str) -> None:
    @given(call=calls(backend))
    @SEARCH
    def check(call: Call) -> None:
        def run() -> None:
            if refuses(call, backend):
                return
            wanted = call.run(torch.float64, lambda **given: ours(call, "reference", **given))
            got = call.run(torch.float64, lambda **given: ours(call, backend, **given))
            for a, b in zip(got, wanted, strict=True):
                torch.testing.assert_close(a, b)
            # blind rows are not small but 0
            assert torch.equal(got[0] == 0, wanted[0] == 0)

        with_tiles(call, run)

    check()


@pytest.mark.parametrize("backend", ["blockwise", "sdpa"])
def test_chosen_weights_and_their_gradients_are_those_of_the_reference(backend: str) -> None:
    @given(call=calls(backend))
    @SEARCH
    def check(call: Call) -> None:
        def run() -> None:
            if refuses(call, backend):
                return
            heads, rows = call.chosen.resolve(call.into.shape[1], call.into.shape[2])

            def both(name: str, wanted: WeightsOf | bool) -> list[Tensor]:
                leaves, given = call.arguments(torch.float64)
                out, weights = attention(
                    **given, mask=call.mask, **call.options, backend=name, return_weights=wanted
                )  # type: ignore[call-overload]
                if wanted is True:
                    weights = weights[:, heads][:, :, rows]
                assert weights.shape == (call.into.shape[0], len(heads), len(rows), given["k"].shape[2])
                loss = (out * call.into).sum() + weights.square().sum()
                return [out, weights, *gradients(loss, torch.ones_like(loss), list(leaves.values()))]

            for a, b in zip(both(backend, call.chosen), both("reference", True), strict=True):
                torch.testing.assert_close(a, b)

        with_tiles(call, run)

    check()


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("backend", ["blockwise", "sdpa", "reference"])
def test_low_precision_is_as_good_as_plain_maths_in_it(backend: str, dtype: torch.dtype) -> None:
    @given(call=calls(backend))
    @settings(SEARCH, max_examples=30)
    def check(call: Call) -> None:
        def run() -> None:
            if refuses(call, backend, dtype):
                return
            exact = call.run(
                torch.float64, lambda **given: ours(call, "reference", **given), rounded_to=dtype
            )
            rough = call.run(dtype, lambda **given: plain_maths(call, **given))
            got = call.run(dtype, lambda **given: ours(call, backend, **given))
            # where plain maths is right by luck (one key: its weight is 1 and the gradient of its score 0):
            # units in the last place of the largest number on the way
            units = 8 if dtype == torch.float32 else 1
            floor = units * torch.finfo(dtype).eps * max(map(largest, (*exact, call.on_the_way())))
            for i, (a, b, c) in enumerate(zip(exact, rough, got, strict=True)):
                if not a.numel():
                    continue
                factor = 2 if i == 0 else 3
                assert (c - a).abs().max() <= factor * (b - a).abs().max() + floor

        with_tiles(call, run)

    check()


@given(call=calls(), p=st.sampled_from([0.1, 0.5, 0.9]), seed=st.integers(0, 2**20))
@SEARCH
def test_blockwise_dropout_is_plain_maths_with_the_mask_it_tells(call: Call, p: float, seed: int) -> None:
    (B, H, T, _), S = call.leaves["q"].shape, call.leaves["k"].shape[2]
    kept = torch.zeros(B, H, T, S, dtype=torch.bool)

    def blocks(**given: Tensor) -> Tensor:
        gate = given.pop("gate", None)
        arguments = {**given, **call.options, "mask": call.mask, "dropout": p}
        arguments = dict.fromkeys(("bias", "sink", "gate")) | arguments
        request, _ = checked_request(**arguments, return_weights=False)  # type: ignore[arg-type]
        region = request.region
        dropout = PairDropout.draw(p, (B, H, region.rows, region.keys), torch.device("cpu"))
        rows = slice(region.row, region.row + region.rows)
        kept[:, :, rows, region.key : region.key + region.keys] = dropout.kept()
        out = blockwise.run_with(request, dropout)
        out = torch.nn.functional.pad(out, (0, 0, rows.start, T - rows.stop))
        return out if gate is None else out * gate.view(-1, H, 1, 1)

    def run() -> None:
        torch.manual_seed(seed)
        got = call.run(torch.float64, blocks)
        wanted = call.run(
            torch.float64, lambda **given: plain_maths(call, **given, kept=kept.double() / (1 - p))
        )
        for a, b in zip(got, wanted, strict=True):
            torch.testing.assert_close(a, b)
        torch.manual_seed(seed)
        again = call.run(
            torch.float64,
            lambda **given: attention(
                **given, mask=call.mask, **call.options, dropout=p, backend="blockwise"
            ),  # type: ignore[call-overload]
        )
        for a, b in zip(again, got, strict=True):
            assert torch.equal(a, b)

    with_tiles(call, run)
