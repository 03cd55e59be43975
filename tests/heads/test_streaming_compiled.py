"""The compiled pass gives what the tiles give in float64; where it cannot be had it is done without."""

from __future__ import annotations

import stat
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headwise.attention import Mask
from headwise.attention.request import Request, make_request
from headwise.heads import kernel as kernels
from headwise.heads import streaming_compiled, streaming_threads
from headwise.heads.sampled_queries import Sample
from headwise.heads.streaming_compiled import spans_for_kernel, sweep_compiled
from headwise.heads.streaming_rows import LOWEST, Marks, Swept
from headwise.heads.streaming_threads import sweep_heads, sweep_tiles
from headwise.hub import TokenBatch

needs_compiler = pytest.mark.skipif(kernels.kernel() is None, reason="there is no C compiler")


def padded(seed: int, B: int, S: int, side: str) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    cut = torch.randint(0, S, (B, 1), generator=generator)
    index = torch.arange(S)
    return {"none": index >= 0 * cut, "left": index >= cut, "right": index < S - cut}[side]


def masks(name: str, real: Tensor, S: int) -> Mask | None:
    documents = Mask.documents(torch.arange(S) // 9)
    chosen = {
        "causal": Mask.causal(),
        "full": None,
        "window": Mask.window(7),
        "prefix": Mask.prefix(5),
        "documents": documents,
        "documents, causal": documents & Mask.causal(),
    }[name]
    if bool(real.all()):
        return chosen
    keep = Mask.keep(real[:, None, None])
    return keep if chosen is None else chosen & keep


def make(
    seed: int,
    *,
    B: int = 2,
    H: int = 4,
    G: int = 2,
    S: int = 60,
    K: int = 8,
    mask: str = "causal",
    **options: object,
) -> tuple[Request, Marks, Tensor]:
    """Return a call in float32, what is known of its tokens, and lengths of values.

    Numbers are such that float32 holds every score exactly: rounding them, which no pass can help, would hide
    and imitate faults of the pass.
    """
    generator = torch.Generator().manual_seed(seed)
    real = padded(seed, B, S, str(options.pop("padding", "none")))
    every = int(str(options.pop("every", 1)))
    spread = float(str(options.pop("spread", 3.0)))
    q = spread * torch.randn(B, S, H, K, generator=generator).transpose(1, 2)  # as models have it
    k, v = (torch.randn(B, S, G, K, generator=generator).transpose(1, 2) for _ in range(2))
    q, k = ((64 * t).round() / 64 for t in (q, k))
    tokens = TokenBatch(torch.randint(0, 50, (B, S), generator=generator), real, real, real)
    sample = Sample.of(tokens, every)
    request = make_request(
        sample.rows(q),
        k,
        v,
        mask=sample.mask(masks(mask, real, S), S, S),
        bias=None,
        scale=0.25,
        dropout=0.0,
        offset=None,
        softcap=None,
        sink=torch.randn(H, generator=generator) if options.pop("sink", False) else None,
        return_weights=False,
    )
    region = request.region
    keys = slice(region.key, region.key + region.keys)
    first = real.to(torch.int8).argmax(dim=1) - region.key
    first = first.masked_fill((first < 0) | (first >= region.keys), -1)
    special, punctuation = ((torch.rand(B, S, generator=generator) < 0.2)[:, keys] for _ in range(2))
    counted = sample.rows(real, 1)[:, region.row : region.row + region.rows]
    corner = sample.start + sample.step * region.row - region.key if options.pop("placed", True) else None
    assert not options
    marks = Marks(counted, first, special, punctuation, corner, sample.step)
    return request, marks, torch.rand(B, H, region.keys, generator=generator)


def exact(request: Request) -> Request:
    sink = None if request.sink is None else request.sink.double()
    return replace(request, q=request.q.double(), k=request.k.double(), v=request.v.double(), sink=sink)


def compiled(request: Request, marks: Marks, norms: Tensor | None, received: bool = True) -> Swept:
    library, spans = kernels.kernel(), spans_for_kernel(request)
    assert library is not None
    assert spans is not None
    return sweep_compiled(library, request, spans, marks, norms, near=2, received=received)


def check(request: Request, marks: Marks, norms: Tensor | None, tolerance: float = 3e-6) -> None:
    """Compare what is said of the queries that count; a score by which others are scaled is one of these."""
    got = compiled(request, marks, norms)
    wanted = sweep_tiles(
        exact(request), marks, None if norms is None else norms.double(), near=2, received=True
    )
    counts = marks.counted[:, None] & (wanted.rows.top > LOWEST / 2)

    def close(name: str, one: Tensor, other: Tensor, where: Tensor | None = None) -> None:
        one, other = torch.broadcast_tensors(one.double(), other.double())
        if where is not None:
            one, other = one[where.expand(one.shape)], other[where.expand(one.shape)]
        torch.testing.assert_close(
            one, other, atol=tolerance, rtol=tolerance, equal_nan=True, msg=lambda m: f"{name}: {m}"
        )

    left_out = set() if norms is not None else {"norm", "special_norm"}
    for name, value in vars(got.rows).items():
        if name == "near":
            assert value.keys() == wanted.rows.near.keys()
            for offset, scores in value.items():
                close(f"near {offset}", scores, wanted.rows.near[offset], counts)
        elif name not in left_out:
            close(name, value, getattr(wanted.rows, name), counts)
    for name, value in vars(got.seen).items():
        if name != "distance" or marks.corner is not None:
            close(f"seen {name}", value, getattr(wanted.seen, name))
    assert got.received is not None
    assert wanted.received is not None
    close("received", got.received, wanted.received)
    close("equal", got.equal, wanted.equal)


@needs_compiler
@given(
    seed=st.integers(0, 2**16),
    B=st.integers(1, 3),
    heads=st.sampled_from([(1, 1), (3, 3), (4, 2), (6, 1)]),
    S=st.sampled_from([1, 2, 3, 15, 16, 17, 47, 48, 49, 100, 150]),
    K=st.sampled_from([1, 3, 8, 20]),
    mask=st.sampled_from(["causal", "full", "window", "prefix", "documents", "documents, causal"]),
    padding=st.sampled_from(["none", "left", "right"]),
    sink=st.booleans(),
    placed=st.booleans(),
    every=st.sampled_from([1, 1, 2, 5, 40]),
    spread=st.sampled_from([0.1, 3.0]),
    lengths=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_gives_what_the_tiles_give(
    seed: int, B: int, heads: tuple[int, int], lengths: bool, **options: object
) -> None:
    H, G = heads
    request, marks, norms = make(seed, B=B, H=H, G=G, **options)  # type: ignore[arg-type]
    check(request, marks, norms if lengths else None)


@needs_compiler
@pytest.mark.parametrize("mask", ["causal", "full", "window"])
def test_texts_longer_than_a_stretch_and_many_strips(mask: str) -> None:
    check(*make(1, B=1, H=2, G=1, S=1500, K=4, mask=mask, padding="left"))


@needs_compiler
def test_large_scores_underflow_to_nothing() -> None:
    request, marks, norms = make(2, spread=300.0)
    got, wanted = (
        compiled(request, marks, norms),
        sweep_tiles(exact(request), marks, norms.double(), near=2, received=True),
    )
    torch.testing.assert_close(got.rows.total.double(), wanted.rows.total, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(got.rows.moment.double(), wanted.rows.moment, atol=1e-3, rtol=1e-3)


@needs_compiler
def test_a_nan_that_is_not_seen_or_not_counted_reaches_nobody() -> None:
    request, marks, norms = make(3, B=1, S=40, padding="right")
    real = int(marks.counted.sum())
    assert 2 < real < 38
    clean = compiled(request, marks, norms)
    q, k, lengths = request.q.clone(), request.k.clone(), norms.clone()
    q[:, :, real:], k[:, :, real:], lengths[..., real:] = (torch.nan,) * 3
    got = compiled(replace(request, q=q, k=k), marks, lengths)
    for name in ("total", "moment", "norm", "distance"):
        one, other = getattr(got.rows, name), getattr(clean.rows, name)
        assert torch.equal(one[..., :real], other[..., :real])
    assert torch.equal(got.received, clean.received)  # type: ignore[arg-type]


@needs_compiler
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_change_nothing(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    request, marks, norms = make(4, B=2, H=6, G=3)
    monkeypatch.setattr(streaming_compiled, "_WORTH_A_THREAD", 1)
    one = compiled(request, marks, norms)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        more = compiled(request, marks, norms)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert torch.equal(one.rows.moment, more.rows.moment)
    assert torch.equal(one.received, more.received)  # type: ignore[arg-type]


@pytest.mark.parametrize("what", ["bias", "softcap", "float64", "two stretches", "by head", "nothing"])
def test_other_calls_are_left_to_the_tiles(what: str) -> None:
    request, _, _ = make(5, B=1, S=12)
    far = (torch.arange(12)[:, None] - torch.arange(12)).abs()
    request = {
        "bias": replace(request, bias=torch.zeros(1, 1, 12, 12)),
        "softcap": replace(request, softcap=2.0),
        "float64": exact(request),
        "two stretches": replace(request, mask=Mask.keep((far != 3) & (far < 5))),
        "by head": replace(request, mask=Mask.keep(torch.ones(1, 4, 12, 12, dtype=torch.bool).tril())),
        "nothing": replace(request, q=request.q[:, :, :0]),
    }[what]
    assert spans_for_kernel(request) is None


@needs_compiler
def test_only_larger_calls_are_worth_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    request, marks, norms = make(6)
    called = []
    monkeypatch.setattr(streaming_threads, "kernel", lambda: called.append(1))
    for least, calls in ((request.pairs + 1, 0), (request.pairs, 1)):
        monkeypatch.setattr(streaming_threads, "WORTH_COMPILING", least)
        sweep_heads(request, marks, norms, near=2, received=True)
        assert len(called) == calls


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Forget the compiled library for one test."""
    kernels.kernel.cache_clear()
    yield monkeypatch
    kernels.kernel.cache_clear()


def test_without_a_compiler_there_is_no_kernel(fresh: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fresh.setenv("CC", "")
    assert kernels.kernel() is None
    kernels.kernel.cache_clear()
    fresh.delenv("CC")
    fresh.setenv("PATH", str(tmp_path))
    assert kernels.kernel() is None


@pytest.mark.parametrize("command", ["no-such-compiler -O9", "fails"])
def test_a_compiler_that_fails_is_named_once(command: str, fresh: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fails = tmp_path / "fails"
    fails.write_text(f"#!{sys.executable}\nraise SystemExit('out of order')\n")
    fails.chmod(fails.stat().st_mode | stat.S_IXUSR)
    fresh.setenv("CC", command.replace("fails", str(fails)))
    with pytest.warns(RuntimeWarning, match=r"could not compile .* CC.*(out of order|No such file)"):
        assert kernels.kernel() is None
    assert kernels.kernel() is None
