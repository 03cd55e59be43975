"""How long an exact ablation sweep takes, as a share of running the model once for every head.

    python bench/ablation.py             presets, widths and lengths, about three minutes
    python bench/ablation.py --quick     one of them, shorter rounds
    python bench/ablation.py --json FILE also write the numbers; nothing is written otherwise

The model is a GPT of 6 layers with 6 heads, of width 384 on texts of 256 tokens if nothing else is said. The
sweep silences each of the 36 heads alone, reads the loss of each text, and computes nothing twice; it is held
against 36 plain forward passes of the same texts, which compute logits and no loss. Times are medians of
rounds in which the two take turns, ± half the distance between the quartiles, that of the share being the
sum of both; FLOPs are those of linear layers. Before anything is timed, every loss is checked against a pass
with that head's gate shut.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from headwise.heads import observe
from headwise.heads.documents import make_batch, make_documents
from headwise.heads.silencing import Silencing
from headwise.heads.sweep import Sweep, all_heads
from headwise.hub.subject import OwnSubject
from headwise.model import GPT, PRESETS, GPTConfig
from headwise.text import Tokenizer
from measure import Run, alternate

TARGET = 0.55
ALPHABET = "".join(chr(ord("!") + i) for i in range(65))


@dataclass(frozen=True)
class Case:
    """One model, its texts, and how many it reads at once."""

    preset: str = "gpt"
    width: int = 384
    tokens: int = 256
    texts: int = 4
    at_once: int = 1

    @property
    def name(self) -> str:
        texts = f"{self.texts} texts of {self.tokens} tokens, {self.at_once} at once"
        return f"{self.preset}, width {self.width}, {texts}"


CASES = (
    Case(),
    Case(at_once=4),
    Case(preset="gpt2"),
    Case(tokens=128),
    Case(tokens=512, texts=2),
    Case(width=192),
    Case(width=768, texts=2),
)


def subject_of(case: Case) -> OwnSubject:
    torch.manual_seed(0)
    settings = PRESETS[case.preset].model_dump(exclude_defaults=True)
    shape = {
        "n_layer": 6,
        "n_head": 6,
        "d_model": case.width,
        "block_size": case.tokens,
        "vocab_size": len(ALPHABET),
    }
    return OwnSubject(GPT(GPTConfig(**(settings | shape))), Tokenizer.from_alphabet(ALPHABET))


def sweep_of(subject: OwnSubject, case: Case) -> Sweep:
    length = subject.gpt.config.block_size
    ids = torch.randint(0, len(ALPHABET), (case.texts, length)).tolist()
    documents = make_documents(subject, ids)
    silencing = Silencing.make(subject, [documents], "zero", reference=[], tokens=length)
    return Sweep(subject, documents, silencing, tokens=length * case.at_once)


def check(subject: OwnSubject, sweep: Sweep) -> float:
    """Return the largest difference of any text's loss to a pass with the gate shut; raise beyond 1e-5."""
    costs = sweep.run(all_heads(subject))
    batch = make_batch(subject, sweep.documents, list(range(len(sweep.documents))))
    worst = 0.0
    for i, (layer, head) in enumerate(costs.heads):
        gates = torch.ones(6, 6)
        gates[layer, head] = 0.0
        with torch.no_grad(), observe(subject.model, gates=gates):
            logits = subject.run(batch.tokens)
        losses = F.cross_entropy(logits.mT, batch.targets, reduction="none")  # (B, T)
        expected = losses.double().sum(1)
        per_token = (costs.sums[i, :, 0] - expected) / costs.counts[:, 0]
        worst = max(worst, float(per_token.abs().max()))
    if worst > 1e-5:
        raise RuntimeError(f"the sweep is off by {worst} nats per token")
    return worst


def flops(run: Run) -> int:
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def measure(case: Case, seconds: float) -> dict[str, object]:
    subject = subject_of(case)
    sweep = sweep_of(subject, case)
    worst = check(subject, sweep)
    heads = all_heads(subject)
    batches = [
        make_batch(subject, sweep.documents, list(range(start, min(start + case.at_once, case.texts))))
        for start in range(0, case.texts, case.at_once)
    ]

    @torch.no_grad()
    def plain() -> None:
        for batch in batches:
            subject.run(batch.tokens)

    counted = flops(lambda: sweep.run(heads)) / (len(heads) * flops(plain))
    timings = alternate({"plain": plain, "sweep": lambda: sweep.run(heads)}, seconds=seconds, least=3)
    once, all_of_them = timings["plain"], timings["sweep"]
    share = all_of_them.median / (len(heads) * once.median)
    spread = share * (once.spread + all_of_them.spread)
    best = all_of_them.best / (len(heads) * once.best)
    print(f"\n{case.name}: losses equal to {worst:.1e} nats per token")
    for name, timing in timings.items():
        print(f"  {name:<6} {timing.median * 1e3:9.1f} ms ± {100 * timing.spread:3.0f} %")
    verdict = "reached" if share <= TARGET else "missed"
    print(f"  sweep = {share:.3f} ± {spread:.3f} of {len(heads)} plain passes", end="")
    print(f" (best of {once.runs}: {best:.3f})", end="")
    print(f", {counted:.3f} in FLOPs; target {TARGET} {verdict}")
    return {
        "case": case.name,
        "share": share,
        "spread": spread,
        "best": best,
        "flops": counted,
        "difference": worst,
        "plain": once.as_dict(),
        "sweep": all_of_them.as_dict(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one case, shorter rounds")
    parser.add_argument("--threads", type=int, help="threads to use; default PyTorch's own choice")
    parser.add_argument("--json", type=Path, help="file to write the numbers to")
    given = parser.parse_args()
    if given.threads:
        torch.set_num_threads(given.threads)
    print(f"torch {torch.__version__} on {torch.get_num_threads()} threads")
    cases = (Case(texts=2),) if given.quick else CASES
    rows = [measure(case, 1.0 if given.quick else 12.0) for case in cases]
    if len(rows) > 1:
        shares = sorted(float(str(row["share"])) for row in rows)
        print(f"\nshare over all cases: {shares[0]:.3f} … {shares[-1]:.3f}")
    if given.json:
        given.json.write_text(json.dumps({"target": TARGET, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
