"""Shared means of these tests: the probe, which makes masks visible, and attention written as plain loops."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from headwise.attention import Mask, attention, blockwise_passes
from headwise.attention.functional import BACKENDS
from headwise.attention.tiles import TileSizes

Sees = Callable[[int, int, int, int], bool]
"""Whether, in batch element b and head h, the query at position p sees key j: ``sees(b, h, p, j)``."""


@pytest.fixture(params=["reference", "sdpa", "blockwise"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A backend's name; blockwise attention works in tiles so small that these calls have several."""
    if request.param == "blockwise":
        monkeypatch.setattr(blockwise_passes, "tile_sizes", lambda _: TileSizes(queries=2, keys=3, heads=1))
    return str(request.param)


@pytest.fixture(params=["auto", *(name for name in BACKENDS if name != "flex")])
def any_backend(request: pytest.FixtureRequest) -> str:
    """Every backend but the one that compiles for each kind of call, which has tests of its own."""
    return str(request.param)


@pytest.fixture
def refused() -> Callable[[str, Callable[[], object]], bool]:
    """Whether a backend says that it cannot do a call, which those that can do everything must not."""

    def ask(backend: str, call: Callable[[], object]) -> bool:
        try:
            call()
        except ValueError as error:
            return backend not in ("auto", "reference") and "cannot run this call" in str(error)
        return False

    return ask


class Operations(TorchDispatchMode):
    """Notes the name of each operation and, of each result, the dtype and how many numbers it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.results: list[tuple[torch.dtype, int]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        self.names.append(func.overloadpacket.__name__)
        for t in result if isinstance(result, tuple) else (result,):
            if isinstance(t, Tensor) and t.numel():
                # an expanded view counts as what it stores
                stored = t.untyped_storage().nbytes() // t.element_size()
                self.results.append((t.dtype, min(t.numel(), stored)))
        return result

    def count(self, name: str) -> int:
        return self.names.count(name)

    def largest(self, dtype: torch.dtype | None = None) -> int:
        sizes = [size for kind, size in self.results if dtype in (None, kind)]
        assert sizes, "no such operation was seen"
        return max(sizes)


@pytest.fixture
def operations() -> Callable[[], Operations]:
    """Watches what is computed: ``with operations() as seen: …``."""
    return Operations


@pytest.fixture
def probe() -> Callable[..., Tensor]:
    """With q = 0 and v = identity, each output row is the visible set divided by its size."""

    def run(
        mask: Mask | None, T: int, S: int, *, B: int = 1, H: int = 1, G: int | None = None, **options: object
    ) -> Tensor:
        groups = H if G is None else G
        q, k = torch.zeros(B, H, T, S), torch.randn(B, groups, S, S)
        v = torch.eye(S).expand(B, groups, S, S)
        result = attention(q, k, v, mask=mask, **options)  # type: ignore[call-overload]
        assert isinstance(result, Tensor)
        return result

    return run


@pytest.fixture
def visible() -> Callable[..., Tensor]:
    """The rows that the probe must give for these visible sets."""

    def rows(sets: list[list[int]], S: int) -> Tensor:
        table = torch.zeros(len(sets), S)
        for i, keys in enumerate(sets):
            table[i, keys] = 1 / max(len(keys), 1)
        return table

    return rows


@pytest.fixture
def plain() -> Callable[..., tuple[Tensor, Tensor]]:
    """Attention row by row over the visible keys only: nothing is masked, as nothing hidden is touched."""

    def run(
        q: Tensor, k: Tensor, v: Tensor, sees: Sees, *, offset: int, scale: float, bias: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        (B, H, T, _), (G, S), V = q.shape, k.shape[1:3], v.shape[3]
        out, weights = q.new_zeros(B, H, T, V), q.new_zeros(B, H, T, S)
        for b in range(B):
            for h in range(H):
                g = h // (H // G)
                for i in range(T):
                    keys = [j for j in range(S) if sees(b, h, offset + i, j)]
                    if not keys:
                        continue
                    score = k[b, g, keys] @ q[b, h, i] * scale
                    if bias is not None:
                        score = score + bias.expand(B, H, T, S)[b, h, i, keys]
                    weight = (score - score.max()).exp()
                    weight = weight / weight.sum()
                    weights[b, h, i, keys] = weight
                    out[b, h, i] = weight @ v[b, g, keys]
        return out, weights

    return run
