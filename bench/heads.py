"""What statistics of heads cost beside the attention they are of, in one run.

    python bench/heads.py                 everything, about half an hour
    python bench/heads.py --quick         short texts and rounds, about a minute
    python bench/heads.py --only model    one group: layer or model
    python bench/heads.py --json FILE     also write the numbers; nothing is written otherwise
    CC= python bench/heads.py             without the compiled pass, by PyTorch's operations alone

Group layer: 12 heads of width 64, causal, float32, one text of T tokens. Group model: the shape of GPT-2
small. Times are medians of rounds in which all contestants run in turn; ratios are to the first contestant,
whose own work is not part of the statistics of a layer, but is part of those of a model. "Rows" is without
what keys receive. Peak memory is that of a process which runs the contestant once, beyond what it held
before. "dense" forms the matrix of weights, as `output_attentions` of transformers does, and takes the same
numbers from it; it is left out where that matrix is larger than 4 GB.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headwise.attention import Mask
from headwise.heads import AttentionCall, StatisticsCollector, observe
from headwise.hub import AttentionLayer, TokenBatch, attention_layers
from headwise.model import GPT, GPTConfig
from measure import Run, alternate, ceilings, peak_memory

N_HEAD, WIDTH = 12, 64
D_MODEL = N_HEAD * WIDTH
LAYER_LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768)
MODEL_LENGTHS = (1024, 2048)
QUICK = {"layer": (512, 1024), "model": (128,)}
LARGEST_MATRIX = 4e9
EVERY = 8
EVERY_NTH = f"statistics, all, every {EVERY}th query"


def tokens(T: int) -> TokenBatch:
    """Return a text whose first token is special, and every eighth punctuation."""
    index = torch.arange(T)[None]
    return TokenBatch(index * 0, index >= 0, index == 0, index % 8 == 7)


def dense(weights: Tensor, out_norms: Tensor, norms: Tensor, batch: TokenBatch) -> list[Tensor]:
    """Take the statistics of (1, H, T, T) weights by their formulas."""
    T = weights.shape[3]
    index = torch.arange(T)
    found = [
        torch.special.entr(weights).sum(-1).mean(-1),
        weights.amax(-1).mean(-1),
        weights[..., 1:].amax(-1).mean(-1),
        weights[..., 0].mean(-1),
        *(weights.diagonal(offset, 2, 3).mean(-1) for offset in range(-2, 3)),
        (weights @ batch.punctuation[0].to(weights)).mean(-1),
        (weights @ batch.special[0].to(weights)).mean(-1),
        (index - (weights @ index.to(weights))).mean(-1),
        (weights @ norms.unsqueeze(3)).mean((2, 3)),
        (out_norms / out_norms.sum(1, keepdim=True)).mean(-1),
    ]
    best = weights.argmax(-1)
    found += [(best == index + offset).float().mean(-1) for offset in (-1, 1)]
    received = weights.mean(2)
    return [*found, received.amax(-1), received.square().sum(-1)]


def layer_runs(T: int) -> dict[str, Callable[[], Run]]:
    """Return what runs on the heads of one layer."""
    q, k, v = (torch.randn(1, N_HEAD, T, WIDTH) for _ in range(3))
    out = torch.randn(1, N_HEAD, T, WIDTH)
    projection = nn.Linear(D_MODEL, D_MODEL)
    layer = AttentionLayer(0, "attention", projection, N_HEAD, N_HEAD, WIDTH, WIDTH, False, True, projection)
    call = AttentionCall(layer, q, k, v, out, Mask.causal(), WIDTH**-0.5)
    batch = tokens(T)

    def statistics(received: bool, every: int = 1) -> Run:
        collector = StatisticsCollector([layer], received=received, every=every)
        return lambda: collector.update(call, batch)

    def by_formulas() -> Run:
        hidden = torch.ones(T, T, dtype=torch.bool).triu(1)
        slices = projection.weight.detach().view(D_MODEL, N_HEAD, WIDTH).transpose(0, 1).mT  # (H, V, D)

        def run() -> list[Tensor]:
            scores = (q @ k.mT).mul_(WIDTH**-0.5).masked_fill_(hidden, -torch.inf)
            weights = scores.softmax(-1)
            norms, out_norms = (torch.linalg.vector_norm(t @ slices, dim=-1) for t in (v, out))
            return dense(weights, out_norms, norms, batch)

        return run

    made: dict[str, Callable[[], Run]] = {
        "SDPA": lambda: lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        "statistics, rows": lambda: statistics(False),
        "statistics, all": lambda: statistics(True),
        EVERY_NTH: lambda: statistics(True, EVERY),
    }
    if 4.0 * N_HEAD * T * T <= LARGEST_MATRIX:
        made["dense formulas"] = by_formulas
    return made


def model_runs(T: int) -> dict[str, Callable[[], Run]]:
    """Return what runs on a model of GPT-2 small's shape."""
    config = GPTConfig(
        vocab_size=50257, block_size=T, n_layer=12, n_head=N_HEAD, d_model=D_MODEL, position="learned"
    )
    model = GPT(config).eval()
    ids = torch.randint(0, config.vocab_size, (1, T))
    batch = tokens(T)

    def statistics(received: bool, every: int = 1) -> Run:
        collector = StatisticsCollector(attention_layers(model), received=received, every=every)

        def run() -> None:
            with observe(model, lambda call: collector.update(call, batch)):
                model(ids)

        return run

    def all_weights() -> Run:
        norms = torch.ones(1, N_HEAD, T)
        # all layers' weights at once, which is what output_attentions gives to take statistics of
        return lambda: [dense(w, norms, norms, batch) for w in model(ids, return_weights=True)[1]]

    return {
        "forward": lambda: lambda: model(ids),
        "forward and statistics, rows": lambda: statistics(False),
        "forward and statistics, all": lambda: statistics(True),
        f"forward and {EVERY_NTH}": lambda: statistics(True, EVERY),
        "forward with weights, dense formulas": all_weights,
    }


GROUPS = {"layer": (LAYER_LENGTHS, layer_runs), "model": (MODEL_LENGTHS, model_runs)}


def child(group: str, T: int, contestant: str) -> int | None:
    """Return the peak memory of one contestant, run once in a process of its own."""
    command = [sys.executable, __file__, "--child", group, str(T), contestant]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"measuring the memory of {contestant} failed:\n{done.stderr}")
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@torch.no_grad()
def run_child(group: str, T: int, contestant: str) -> None:
    GROUPS["layer"][1](8)["statistics, all"]()()
    print(json.dumps(peak_memory(GROUPS[group][1](T)[contestant]())))


@torch.no_grad()
def measure(group: str, T: int, seconds: float, least: int, memory: bool) -> list[dict[str, object]]:
    """Time one length, print it and return it as rows."""
    runs = {name: make() for name, make in GROUPS[group][1](T).items()}
    timings = alternate(runs, seconds=seconds, least=least)
    del runs
    first, *_ = timings.values()
    peaks = {name: child(group, T, name) if memory else None for name in timings}
    base = next(iter(peaks.values()))
    print(f"\n{group}, T = {T}")
    rows: list[dict[str, object]] = []
    for name, timing in timings.items():
        ratio, best = timing.median / first.median, timing.best / first.best
        line = f"  {name:<44} {timing.median * 1e3:10.1f} ms ± {100 * timing.spread:3.0f} %"
        line += f"  {ratio:5.2f}× the time (best of {timing.runs}: {best:.2f}×)"
        peak = peaks[name]
        if peak is not None:
            line += f"  {peak / 2**20:8.1f} MiB" + (f" {peak / base:5.2f}×" if base else "")
        print(line)
        rows.append({"group": group, "T": T, "contestant": name, "ratio": ratio, "peak": peak})
        rows[-1].update(timing.as_dict())
    sys.stdout.flush()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="short texts and rounds")
    parser.add_argument("--only", choices=GROUPS, action="append", help="measure this group (repeatable)")
    parser.add_argument("--length", type=int, action="append", help="measure this length (repeatable)")
    parser.add_argument("--threads", type=int, help="threads to use; default PyTorch's own choice")
    parser.add_argument("--no-memory", action="store_true", help="do not measure memory")
    parser.add_argument("--json", type=Path, help="file to write the numbers to")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.manual_seed(0)
    if given.child:
        run_child(given.child[0], int(given.child[1]), given.child[2])
        return
    if given.threads:
        torch.set_num_threads(given.threads)
    limits = ceilings()
    print(f"torch {torch.__version__}, {limits}")
    rows = []
    for group, (lengths, _) in GROUPS.items():
        if given.only and group not in given.only:
            continue
        for T in given.length or (QUICK[group] if given.quick else lengths):
            rows += measure(group, T, 1.0 if given.quick else 10.0, 3 if T > 8192 else 5, not given.no_memory)
    if given.json:
        given.json.write_text(json.dumps({"ceilings": asdict(limits), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
