"""How fast attention is and how much memory it takes, beside its peers, in one run.

    python bench/attention.py                 everything, about half an hour
    python bench/attention.py --quick         fewer lengths and rounds, a few minutes
    python bench/attention.py --only decode   one group: module, dropout, weights, masks or decode
    python bench/attention.py --json FILE     also write the numbers; nothing is written otherwise

Times are medians of rounds in which all contestants run in turn, ± half the distance between the quartiles;
ratios are to the first contestant of the case. Peak memory is that of a process which runs the contestant
once, beyond what it held before.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headwise.attention import HeadList, Mask, MultiHeadAttention, WeightsOf, attention
from measure import Ceilings, Run, alternate, ceilings, peak_memory

try:
    from x_transformers.x_transformers import Attention as XAttention
except ImportError:
    XAttention = None

D_MODEL, N_HEAD, D_HEAD = 512, 8, 64
LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192)
LONGEST_MATRIX = 4096
"""Contestants that form the matrix of all scores are left out beyond this length: they need tens of GB."""
FORMS_MATRIX = ("per-head loop", "dropout", "weights", "table")


@dataclass(frozen=True)
class Case:
    """One comparison: contestants that do the same work."""

    group: str
    name: str
    build: Callable[[], dict[str, Callable[[], Run]]]
    """Returns for each contestant what makes it ready; the first is the one to compare with."""
    flops: float = 0.0
    """What has to be computed at least."""
    bytes: float = 0.0
    """What has to be read at least."""


class ByHand(nn.Module):
    """What one writes by hand: projections around `F.scaled_dot_product_attention`."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.qkv = nn.Linear(D_MODEL, 3 * D_MODEL, bias=False)
        self.out = nn.Linear(D_MODEL, D_MODEL, bias=False)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        B, T, _ = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, N_HEAD, D_HEAD).permute(2, 0, 3, 1, 4)  # (B, H, T, K) each
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout)
        return F.dropout(self.out(y.transpose(1, 2).flatten(2)), self.dropout)


def both_ways(forward: Callable[[Tensor], Tensor], x: Tensor, module: nn.Module) -> Run:
    """Return a run of forward and backward, with gradients of the input and all parameters."""
    x = x.detach().requires_grad_()
    leaves = [x, *module.parameters()]
    return lambda: torch.autograd.grad(forward(x).sum(), leaves)


def one_way(forward: Callable[[Tensor], object], x: Tensor, module: nn.Module) -> Run:
    del module
    return torch.no_grad()(lambda: forward(x))


def modules(T: int, way: Callable[..., Run], dropout: float) -> dict[str, Callable[[], Run]]:
    """Return the modules that map (1, T, d_model) to itself causally."""
    x, causal = torch.randn(1, T, D_MODEL), Mask.causal()

    def headwise() -> Run:
        mha = MultiHeadAttention(D_MODEL, N_HEAD, dropout=dropout)
        return way(lambda x: mha(x, mask=causal), x, mha)

    def by_hand() -> Run:
        module = ByHand(dropout)
        return way(module, x, module)

    def torch_mha(weights: bool) -> Run:
        mha = nn.MultiheadAttention(D_MODEL, N_HEAD, dropout=dropout, bias=False, batch_first=True)
        hidden = torch.ones(T, T, dtype=torch.bool).triu(1)
        options = {"attn_mask": hidden, "is_causal": not weights, "need_weights": weights}
        return way(lambda x: mha(x, x, x, average_attn_weights=False, **options)[0], x, mha)

    def x_transformers() -> Run:
        module = XAttention(D_MODEL, dim_head=D_HEAD, heads=N_HEAD, causal=True, flash=True, dropout=dropout)
        return way(lambda x: module(x), x, module)

    def loop() -> Run:
        heads = HeadList(D_MODEL, N_HEAD, block_size=T, dropout=dropout)
        return way(heads, x, heads)

    made: dict[str, Callable[[], Run]] = {
        "SDPA by hand" + (", dropout" if dropout else ""): by_hand,
        "headwise": headwise,
        "nn.MultiheadAttention" + (", dropout" if dropout else ""): partial(torch_mha, False),
        "nn.MultiheadAttention, weights": partial(torch_mha, True),
        "per-head loop": loop,
    }
    if XAttention is not None:
        made["x-transformers" + (", dropout" if dropout else "")] = x_transformers
    return made


def looking(T: int, way: Callable[..., Run]) -> dict[str, Callable[[], Run]]:
    """Return modules whose weights are asked for, all or some."""
    x, causal = torch.randn(1, T, D_MODEL), Mask.causal()

    def headwise(wanted: bool | WeightsOf) -> Run:
        mha = MultiHeadAttention(D_MODEL, N_HEAD)
        return way(lambda x: mha(x, mask=causal, return_weights=wanted)[0 if wanted else ...], x, mha)

    peer = "nn.MultiheadAttention, weights"
    return {
        peer: modules(T, way, 0.0)[peer],
        "headwise, all weights": partial(headwise, True),
        "headwise, weights of 1 head of 8": partial(headwise, WeightsOf(heads=[3])),
        "headwise, weights of the last query": partial(headwise, WeightsOf(rows=[-1])),
        "headwise, none": partial(headwise, False),
    }


def masked(T: int, way: Callable[..., Run], kind: str) -> dict[str, Callable[[], Run]]:
    """Return the function with a mask that SDPA has no flag for."""
    mask = {
        "window of 256": Mask.window(256),
        "causal and padding": Mask.causal() & Mask.lengths(torch.tensor([T * 3 // 4])),
        "documents of 256": Mask.causal() & Mask.documents(torch.arange(T) // 256),
    }[kind]
    q, k, v = (torch.randn(1, N_HEAD, T, D_HEAD, requires_grad=True) for _ in range(3))

    def run(do: Callable[[], Tensor]) -> Run:
        if way is one_way:
            return torch.no_grad()(do)
        return lambda: torch.autograd.grad(do().sum(), (q, k, v))

    def table() -> Run:
        seen = mask.to_tensor(T, T).view(1, 1, T, T)
        return run(lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=seen))

    return {"SDPA, table": table, "headwise": lambda: run(lambda: attention(q, k, v, mask=mask))}


def decoding(S: int, G: int, dtype: torch.dtype) -> dict[str, Callable[[], Run]]:
    """Return one decoding step: one query of 32 heads of width 128 against S cached keys of G heads."""
    q = torch.randn(1, 32, 1, 128).to(dtype)
    # as a cache hands them out: views of what is written in a longer buffer
    k, v = (torch.randn(1, G, S + 64, 128).to(dtype)[:, :, :S] for _ in range(2))
    sdpa, group, causal = F.scaled_dot_product_attention, 32 // G, Mask.causal()

    def run(step: Callable[[], Tensor]) -> Run:
        return torch.no_grad()(step)

    if G == 32:
        return {
            "SDPA": lambda: run(lambda: sdpa(q, k, v)),
            "headwise": lambda: run(lambda: attention(q, k, v, mask=causal)),
        }
    return {
        "SDPA enable_gqa": lambda: run(lambda: sdpa(q, k, v, enable_gqa=True)),
        "headwise": lambda: run(lambda: attention(q, k, v, mask=causal)),
        "SDPA, repeated keys": lambda: run(
            lambda: sdpa(q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1))
        ),
    }


def cases(quick: bool) -> Iterator[Case]:
    """Return all comparisons, in the order in which they are shown."""
    lengths = (512, 2048) if quick else LENGTHS
    ways = {"forward": one_way, "forward + backward": both_ways}
    for group, dropout in (("module", 0.0), ("dropout", 0.1)):
        for T in lengths:
            for way, make in ways.items():
                yield Case(group, f"T = {T}, {way}", partial(modules, T, make, dropout), work(T, way))
    for T in (512, 2048):
        for way, make in ways.items():
            yield Case("weights", f"T = {T}, {way}", partial(looking, T, make), work(T, way))
    for T in (2048,) if quick else (1024, 2048, 4096, 8192):
        for kind in ("window of 256", "causal and padding", "documents of 256"):
            for way, make in ways.items():
                yield Case("masks", f"T = {T}, {kind}, {way}", partial(masked, T, make, kind))
    for G in (8, 32):
        for dtype in (torch.float32, torch.bfloat16):
            for S in (8192,) if quick else (1024, 8192, 32768):
                name = f"32 query heads, {G} key/value heads, S = {S}, {str(dtype)[6:]}"
                yield Case(
                    "decode",
                    name,
                    partial(decoding, S, G, dtype),
                    flops=4 * 32 * S * 128,
                    bytes=2 * G * S * 128 * dtype.itemsize,
                )


def work(T: int, way: str) -> float:
    """Return the FLOPs of a causal attention module: projections, and half of the scores.

    Forward is two products with the scores; backward makes them again and adds four (Dao et al. 2022).
    """
    projections = 2 * 4 * T * D_MODEL**2
    products = 2 * N_HEAD * T * T * D_HEAD / 2
    return projections + 2 * products if way == "forward" else 3 * projections + 7 * products


def needs_matrix(contestant: str) -> bool:
    return any(word in contestant for word in FORMS_MATRIX) and "headwise" not in contestant


def contestants_of(case: Case) -> dict[str, Callable[[], Run]]:
    T = int(case.name.split()[2].rstrip(",")) if case.name.startswith("T = ") else 0
    return {n: make for n, make in case.build().items() if T <= LONGEST_MATRIX or not needs_matrix(n)}


def note(case: Case, seconds: float, limits: Ceilings) -> str:
    """Say what the fastest possible would be and which share of it headwise reaches."""
    least = max(case.flops / limits.flops, case.bytes / limits.read)
    if not least:
        return ""
    what = (
        f"{case.flops / 1e9:.2f} GFLOP"
        if case.flops / limits.flops >= least
        else f"{case.bytes / 1e6:.0f} MB"
    )
    return f"  at least {what}, so {least * 1e3:.2f} ms: headwise reaches {100 * least / seconds:.0f} %"


def measure(case: Case, seconds: float, limits: Ceilings, memory: bool) -> list[dict[str, object]]:
    """Run one case and print its table."""
    ready = {name: make() for name, make in contestants_of(case).items()}
    timings = alternate(ready, seconds=seconds)
    ready.clear()
    peaks = {name: child(case, name) if memory else None for name in timings}
    first = next(iter(timings))
    print(f"\n{case.group}: {case.name}")
    rows: list[dict[str, object]] = []
    for name, timing in timings.items():
        peak = peaks[name]
        ratio = timings[first].median / timing.median
        best = timings[first].best / timing.best
        line = f"  {name:<36} {timing.median * 1e3:9.2f} ms ± {100 * timing.spread:3.0f} %"
        line += f"  {ratio:6.2f}× as fast (best of {timing.runs}: {best:.2f}×)"
        line += "" if peak is None else f"  {peak / 2**20:8.1f} MiB"
        print(line)
        rows.append(
            {"group": case.group, "case": case.name, "contestant": name, "ratio": ratio, "peak": peak}
        )
        rows[-1].update(timing.as_dict())
    if "headwise" in timings and (text := note(case, timings["headwise"].median, limits)):
        print(text)
    sys.stdout.flush()
    return rows


def child(case: Case, contestant: str) -> int | None:
    """Return the peak memory of one contestant, run once in a process of its own."""
    command = [sys.executable, __file__, "--child", case.group, case.name, contestant]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"measuring the memory of {contestant} failed:\n{done.stderr}")
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def run_child(group: str, name: str, contestant: str) -> None:
    both_ways(small := nn.Linear(64, 64), torch.randn(64, 64), small)()
    attention(*(torch.randn(1, 2, 64, 8) for _ in range(3)), mask=Mask.causal())
    (case,) = [
        case for quick in (True, False) for case in cases(quick) if (case.group, case.name) == (group, name)
    ][:1]
    print(json.dumps(peak_memory(contestants_of(case)[contestant]())))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    groups = ("module", "dropout", "weights", "masks", "decode")
    parser.add_argument("--quick", action="store_true", help="fewer lengths, shorter rounds")
    parser.add_argument("--only", choices=groups, action="append", help="measure this group (repeatable)")
    parser.add_argument("--threads", type=int, help="threads to use; default PyTorch's own choice")
    parser.add_argument("--no-memory", action="store_true", help="do not measure memory")
    parser.add_argument("--json", type=Path, help="file to write the numbers to")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.manual_seed(0)
    if given.child:
        run_child(*given.child)
        return
    if given.threads:
        torch.set_num_threads(given.threads)
    limits = ceilings()
    print(f"torch {torch.__version__}, {limits}")
    rows = []
    for case in cases(given.quick):
        if not given.only or case.group in given.only:
            rows += measure(case, 1.0 if given.quick else 4.0, limits, not given.no_memory)
    if given.json:
        given.json.write_text(json.dumps({"ceilings": asdict(limits), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
