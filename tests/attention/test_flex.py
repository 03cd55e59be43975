"""The backend that compiles: what it refuses, and that what it tells FlexAttention is what the mask means.

Compiling takes most of a minute, so that FlexAttention is run here by its own interpreter, on the functions
and blocks that would be compiled. Set HEADWISE_TEST_COMPILED=1 to compile as well.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.attention.flex_attention as torch_flex
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from headwise.attention import Mask, attention, flex
from headwise.attention.flex_lowering import plan
from headwise.attention.request import Request
from headwise.attention.shifted import shifted

Probe = Callable[..., Tensor]


@pytest.fixture
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let FlexAttention run without compiling, as it offers to for looking at such functions."""
    monkeypatch.setattr(torch_flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    monkeypatch.setattr(flex, "_kernel", lambda: torch_flex.flex_attention)
    monkeypatch.setattr(flex, "_has_compiler", lambda: True)


B, H, G = 2, 6, 2


def masks(T: int, S: int) -> dict[str, Mask | None]:
    """One mask per way of being told to FlexAttention."""
    torch.manual_seed(1)
    ids = torch.randint(0, 4, (B, S)).sort(1).values
    return {
        "none": None,
        "causal": Mask.causal(),
        "outside a window": ~Mask.window(4),
        "prefix": Mask.prefix(3) & Mask.lengths(torch.tensor([0, S - 1])),
        "not a prefix by sequence": ~Mask.prefix(torch.tensor([1, 5])),
        "documents": Mask.documents(ids) & Mask.causal(),
        "other documents": ~Mask.documents(ids[0]) | Mask.window(1),
        "table": Mask.keep(torch.rand(B, 1, T, S) > 0.4) & Mask.window(S),
        "table by head": Mask.hide(torch.rand(1, H, 1, S) > 0.6) | Mask.window(2),
        "everything": Mask.causal() | ~Mask.causal(),
        "nothing": Mask.causal() & ~Mask.causal(),
        "shifted": shifted(Mask.causal() & Mask.hide(torch.rand(B, 1, 1, S + 2) > 0.6) | Mask.prefix(4), 2),
    }


@pytest.mark.usefixtures("_interpreted")
@given(
    name=st.sampled_from(sorted(masks(2, 2))),
    sizes=st.sampled_from([(5, 7), (7, 5), (1, 9), (130, 140), (3, 260)]),
    offset=st.sampled_from([None, 0, -2, 3]),
    biased=st.booleans(),
    softcap=st.sampled_from([None, 2.0]),
    scale=st.sampled_from([0.4, -0.3]),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_equals_the_reference(
    name: str,
    sizes: tuple[int, int],
    offset: int | None,
    biased: bool,
    softcap: float | None,
    scale: float,
) -> None:
    T, S = sizes
    options: dict[str, Any] = {
        "mask": masks(T, S)[name],
        "offset": offset,
        "softcap": softcap,
        "scale": scale,
    }
    if biased:
        options["bias"] = torch.randn(1, H, 1, S).masked_fill(torch.arange(S) == 2, -math.inf)
    q, k, v = torch.randn(B, H, T, 5), torch.randn(B, G, S, 5), torch.randn(B, G, S, 3)
    with torch.no_grad():
        out = attention(q, k, v, backend="flex", **options)
    wanted = attention(q.double(), k.double(), v.double(), backend="reference", **options)
    torch.testing.assert_close(out.double(), wanted, rtol=0, atol=2e-6)
    assert torch.equal(out == 0, wanted == 0)


@pytest.mark.usefixtures("_interpreted")
@pytest.mark.parametrize("name", masks(2, 2))
def test_blocks_are_sorted_into_hidden_partial_and_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    T, S = 300, 400
    mask = masks(T, S)[name]
    if mask is None or name == "nothing":
        return
    requests: list[Request] = []
    monkeypatch.setattr(flex, "run", lambda request: (requests.append(request), (request.q, None))[1])
    q, k = torch.zeros(B, H, T, 1), torch.zeros(B, G, S, 1)
    attention(q, k, k, mask=mask, backend="flex")
    planned, region = plan(requests[0]), requests[0].region
    assert planned is not None
    table = mask.to_tensor(T, S).expand(B, H, T, S)
    table = table[:, :, region.row : region.row + region.rows, region.key : region.key + region.keys]
    assert torch.equal(planned.alive.expand(B, H, -1, 1)[..., 0], table.any(3))
    by_group = table.unflatten(1, (G, H // G)).any(2).any(2)
    assert torch.equal(planned.seen.expand(B, G, -1, 1)[..., 0], by_group)
    blocks = planned.blocks
    for b in range(B):
        for h in range(H):
            for i in range(-(-region.rows // 128)):
                for j in range(-(-region.keys // 128)):
                    cell = table[b, h, 128 * i : 128 * i + 128, 128 * j : 128 * j + 128]
                    at = (min(b, blocks.shape[0] - 1), min(h, blocks.shape[1] - 1), i)
                    partial = blocks.kv_indices[at][: int(blocks.kv_num_blocks[at])].tolist()
                    assert blocks.full_kv_num_blocks is not None
                    assert blocks.full_kv_indices is not None
                    whole = blocks.full_kv_indices[at][: int(blocks.full_kv_num_blocks[at])].tolist()
                    assert (j in whole) == bool(cell.all() and cell.shape == (128, 128))
                    assert (j in partial) == bool(cell.any() and j not in whole)


@pytest.mark.usefixtures("_interpreted")
def test_nan_stays_where_it_is_seen_and_never_leaks_from_hidden_keys() -> None:
    q, k, v = torch.randn(2, 2, 4, 3), torch.randn(2, 2, 6, 3), torch.randn(2, 2, 6, 3)
    q[0, 1, 2] = math.nan
    k[:, :, 5], v[:, :, 5] = math.nan, math.inf
    mask = Mask.causal() & Mask.lengths(torch.tensor([5, 4]))
    with torch.no_grad():
        out = attention(q, k, v, mask=mask, backend="flex")
    wanted = attention(q, k, v, mask=mask, backend="reference")
    torch.testing.assert_close(out, wanted, equal_nan=True)
    assert out[0, 1, 2].isnan().all()
    assert int(out.isnan().sum()) == 3


@pytest.mark.usefixtures("_interpreted")
@pytest.mark.parametrize("sizes", [(0, 3, 4), (2, 0, 4), (2, 3, 0)])
def test_empty_calls_give_what_the_reference_gives(sizes: tuple[int, int, int]) -> None:
    batch, T, S = sizes
    q, k = torch.randn(batch, 2, T, 3), torch.randn(batch, 2, S, 3)
    with torch.no_grad():
        out = attention(q, k, k, mask=Mask.causal(), backend="flex")
    assert torch.equal(out, torch.zeros(batch, 2, T, 3))


def call(**options: Any) -> None:
    q, k = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 5, 4)
    attention(q, k, k, backend="flex", **options)


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "weights": (lambda: call(return_weights=True), "it never forms the weights"),
    "dropout": (lambda: call(dropout=0.1), "FlexAttention has no dropout"),
    "sink": (lambda: call(sink=torch.zeros(2)), "FlexAttention has no sink"),
    "bias with gradients": (lambda: call(bias=torch.zeros(3, 5, requires_grad=True)), "no backward on CPU"),
    "float64": (
        lambda: attention(*[torch.randn(1, 1, 2, 2, dtype=torch.float64)] * 3, backend="flex"),
        "float32, bfloat16 and float16, not torch.float64",
    ),
    "another device": (
        lambda: attention(*[torch.randn(1, 1, 2, 2, device="meta")] * 3, backend="flex"),
        "on cpu and cuda only, not on meta",
    ),
}


@pytest.mark.usefixtures("_interpreted")
@pytest.mark.parametrize("name", REFUSED)
def test_what_it_cannot_do_is_refused_with_the_reason(name: str) -> None:
    make, reason = REFUSED[name]
    with pytest.raises(ValueError, match=f"backend 'flex' cannot run this call: .*{reason}"):
        make()


@pytest.mark.usefixtures("_interpreted")
@pytest.mark.parametrize("which", [0, 1, 2])
def test_gradients_on_cpu_are_refused_and_without_them_it_runs(which: int) -> None:
    inputs = [torch.randn(1, 2, 4, 4) for _ in range(3)]
    inputs[which].requires_grad_()
    with pytest.raises(ValueError, match=r"no backward on CPU \(under torch\.no_grad\(\) it runs\)"):
        attention(*inputs, backend="flex")
    with torch.no_grad():
        out = attention(*inputs, mask=Mask.causal(), backend="flex")
        torch.testing.assert_close(out, attention(*inputs, mask=Mask.causal(), backend="reference"))


def test_without_a_compiler_it_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    flex._has_compiler.cache_clear()
    try:
        with pytest.raises(ValueError, match=r"no C\+\+ compiler .*install g\+\+, or name one in CXX"):
            call()
    finally:
        flex._has_compiler.cache_clear()


def test_auto_never_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(request: object) -> None:
        raise AssertionError("auto chose flex")

    monkeypatch.setattr(flex, "run", run)
    for T, S in ((1, 3), (300, 300)):
        q, k = torch.randn(1, 2, T, 4), torch.randn(1, 2, S, 4)
        attention(q, k, k, mask=Mask.documents(torch.arange(S) // 4), softcap=3.0)


@pytest.fixture
def _compiler_caches_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[None]:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.skipif(not os.environ.get("HEADWISE_TEST_COMPILED"), reason="set HEADWISE_TEST_COMPILED=1")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("_compiler_caches_apart")
def test_compiled_it_equals_the_reference_and_one_kernel_serves_every_window() -> None:
    q, k, v = torch.randn(B, H, 40, 8), torch.randn(B, G, 150, 8), torch.randn(B, G, 150, 12)
    q[0, 0, 0] = math.nan
    for window, offset in ((7, None), (90, 3)):
        mask = Mask.window(window) & Mask.lengths(torch.tensor([0, 149]))
        with torch.no_grad():
            out = attention(q, k, v, mask=mask, offset=offset, backend="flex")
        wanted = attention(q, k, v, mask=mask, offset=offset, backend="reference")
        torch.testing.assert_close(out, wanted, rtol=1e-5, atol=1e-5, equal_nan=True)
