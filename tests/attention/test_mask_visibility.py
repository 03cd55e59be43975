"""The probe on masks of every kind: with q = 0 and v = identity an output row shows the visible set."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from headwise.attention import LayerCache, Mask, attention

Probe = Callable[..., Tensor]
Rows = Callable[[list[list[int]], int], Tensor]

PACKED = torch.tensor([0, 0, 1, 1, 1, 2])
CASES: dict[str, tuple[Mask, int, int, dict[str, int], list[list[int]]]] = {
    "prefix": (Mask.prefix(2), 4, 4, {}, [[0, 1], [0, 1], [0, 1, 2], [0, 1, 2, 3]]),
    "prefix of nothing": (Mask.prefix(0), 3, 3, {}, [[0], [0, 1], [0, 1, 2]]),
    "prefix of all": (Mask.prefix(9), 2, 3, {}, [[0, 1, 2], [0, 1, 2]]),
    "prefix, one query": (Mask.prefix(1), 1, 4, {}, [[0, 1, 2, 3]]),
    "prefix, two of five": (Mask.prefix(2), 2, 5, {}, [[0, 1, 2, 3], [0, 1, 2, 3, 4]]),
    "prefix, top-left": (Mask.prefix(3), 2, 5, {"offset": 0}, [[0, 1, 2], [0, 1, 2]]),
    "prefix, before all keys": (Mask.prefix(1), 4, 2, {}, [[0], [0], [0], [0, 1]]),
    "prefix & window": (Mask.prefix(2) & Mask.window(2), 4, 4, {}, [[0], [0, 1], [1, 2], [2, 3]]),
    "prefix | window": (
        Mask.prefix(1) & ~Mask.causal() | Mask.window(2) | Mask.prefix(1) & ~Mask.window(3),
        4,
        4,
        {},
        [[0], [0, 1], [1, 2], [0, 2, 3]],
    ),
    "sinks: the first keys and a window": (
        Mask.window(2) | Mask.causal() & Mask.keep(torch.tensor([[True, False, False, False, False]])),
        5,
        5,
        {},
        [[0], [0, 1], [0, 1, 2], [0, 2, 3], [0, 3, 4]],
    ),
    "prefix & padding": (
        Mask.prefix(3) & Mask.lengths(torch.tensor([2])),
        2,
        4,
        {},
        [[0, 1], [0, 1]],
    ),
    "prefix by sequence": (Mask.prefix(torch.tensor([3])), 3, 4, {"offset": 0}, [[0, 1, 2]] * 3),
    "documents": (Mask.documents(PACKED), 6, 6, {}, [[0, 1]] * 2 + [[2, 3, 4]] * 3 + [[5]]),
    "documents & causal": (
        Mask.documents(PACKED) & Mask.causal(),
        6,
        6,
        {},
        [[0], [0, 1], [2], [2, 3], [2, 3, 4], [5]],
    ),
    "documents, three of six": (Mask.documents(PACKED) & Mask.causal(), 3, 6, {}, [[2, 3], [2, 3, 4], [5]]),
    "documents, in the middle": (Mask.documents(PACKED), 2, 6, {"offset": 1}, [[0, 1], [2, 3, 4]]),
    "documents, beyond the keys": (Mask.documents(PACKED), 3, 6, {"offset": 5}, [[5], [], []]),
    "documents that come back": (Mask.documents(torch.tensor([0, 1, 0, 1])), 2, 4, {}, [[0, 2], [1, 3]]),
    "other documents": (~Mask.documents(PACKED), 2, 6, {}, [[0, 1, 5], [0, 1, 2, 3, 4]]),
    "only the future": (~Mask.causal(), 3, 4, {}, [[2, 3], [3], []]),
    "outside the window": (~Mask.window(2), 3, 4, {}, [[2, 3], [0, 3], [0, 1]]),
    "both ways": (
        Mask.window(2) | ~Mask.causal() & ~Mask.keep(torch.eye(3, dtype=torch.bool)),
        3,
        3,
        {},
        [
            [0, 1, 2],
            [0, 1, 2],
            [1, 2],
        ],
    ),
    "padding keys only": (~Mask.lengths(torch.tensor([2])), 2, 4, {}, [[2, 3], [2, 3]]),
    "everything": (Mask.causal() | ~Mask.causal(), 2, 3, {}, [[0, 1, 2], [0, 1, 2]]),
    "nothing": (Mask.causal() & ~Mask.causal(), 2, 3, {}, [[], []]),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("H", "G"), [(1, 1), (6, 2)])
def test_each_query_sees_exactly_these_keys(
    name: str, H: int, G: int, backend: str, probe: Probe, visible: Rows
) -> None:
    mask, T, S, options, sets = CASES[name]
    wanted = visible(sets, S).expand(1, H, T, S)
    out = probe(mask, T, S, H=H, G=G, backend=backend, **options)
    torch.testing.assert_close(out, wanted)
    assert torch.equal(out == 0, wanted == 0)
    assert torch.equal(mask.to_tensor(T, S, **options).expand_as(wanted), wanted > 0)


@pytest.mark.parametrize("name", CASES)
def test_a_mask_and_its_opposite_share_out_the_keys(
    name: str, backend: str, probe: Probe, visible: Rows
) -> None:
    mask, T, S, options, sets = CASES[name]
    others = [[j for j in range(S) if j not in keys] for keys in sets]
    torch.testing.assert_close(
        probe(~mask, T, S, backend=backend, **options), visible(others, S).expand(1, 1, T, S)
    )


def test_each_sequence_has_its_own_prefix_and_documents(backend: str, probe: Probe, visible: Rows) -> None:
    out = probe(Mask.prefix(torch.tensor([0, 3])), 2, 3, B=2, H=6, G=2, backend=backend, offset=0)
    torch.testing.assert_close(out[0], visible([[0], [0, 1]], 3).expand(6, 2, 3))
    torch.testing.assert_close(out[1], visible([[0, 1, 2]] * 2, 3).expand(6, 2, 3))
    ids = torch.tensor([[0, 0, 1], [0, 1, 1]])
    out = probe(Mask.documents(ids), 2, 3, B=2, H=6, G=2, backend=backend)
    torch.testing.assert_close(out[0], visible([[0, 1], [2]], 3).expand(6, 2, 3))
    torch.testing.assert_close(out[1], visible([[1, 2], [1, 2]], 3).expand(6, 2, 3))


@pytest.mark.parametrize("kind", ["prefix", "documents"])
def test_chunks_into_a_cache_see_what_the_whole_sequence_sees(kind: str, backend: str, visible: Rows) -> None:
    ids = torch.arange(12) // 5
    cache = LayerCache(1, 1, 12, 12)
    keys, values, rows = torch.randn(1, 1, 12, 12), torch.eye(12)[None, None], []
    for start, stop in [(0, 5), (5, 6), (6, 7), (7, 11), (11, 12)]:
        k, v = cache.append(keys[:, :, start:stop], values[:, :, start:stop])
        mask = Mask.prefix(4) if kind == "prefix" else Mask.causal() & Mask.documents(ids[:stop])
        rows.append(attention(torch.zeros(1, 1, stop - start, 12), k, v, mask=mask, backend=backend))
    first = [0] * 12 if kind == "prefix" else [5 * (i // 5) for i in range(12)]
    last = [max(i, 3) if kind == "prefix" else i for i in range(12)]
    sets = [list(range(a, b + 1)) for a, b in zip(first, last, strict=True)]
    torch.testing.assert_close(torch.cat(rows, dim=2)[0, 0], visible(sets, 12))


def test_packed_documents_are_what_they_are_alone(backend: str) -> None:
    torch.manual_seed(0)
    sizes = [3, 1, 5]
    q, k, v = (torch.randn(1, heads, 9, 4, dtype=torch.float64) for heads in (6, 2, 2))
    ids = torch.repeat_interleave(torch.arange(3), torch.tensor(sizes))
    packed = attention(q, k, v, mask=Mask.documents(ids) & Mask.causal(), backend=backend)
    parts = zip(*(t.split(sizes, dim=2) for t in (q, k, v)), strict=True)
    alone = torch.cat([attention(*part, mask=Mask.causal(), backend=backend) for part in parts], dim=2)
    torch.testing.assert_close(packed, alone, rtol=0, atol=1e-12)
