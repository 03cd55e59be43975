"""What fewer key/value heads cost, before and after a little more training: the ladder of a small model.

    python bench/ladder.py --out FOLDER                  hours; goes on from where it was left
    python bench/ladder.py --out FOLDER --data book.txt   another text than the built-in one
    python bench/ladder.py --out FOLDER --quick           tiny models and minutes, to see that it runs
    python bench/ladder.py --out FOLDER --report          only the table and the plot of what is there

Parents are GPTs of 4 layers with 8 heads, width 256, trained on a text of which RECALL_SHARE are lines of
associative recall, one for each seed. (It first learns recall alone, and then from
rows half of which are recall: from the lines alone a model of this size does not learn to look things up.)
Each is grouped to 4, 2 and 1 key/value heads by every method, judged, and then trained on for a share of its
parent's tokens. Controls: the parent trained on as long, and the same shape from nothing on as many tokens.

FOLDER holds the parents as model folders, `rows.jsonl` with every number, `table.md` and `ladder.png`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headwise.attention import MultiHeadAttention
from headwise.compress import group, recall_lines, recall_rows, recall_scores, uptrain
from headwise.compress.grouping import Method
from headwise.compress.recall import Recall
from headwise.compress.rows import losses
from headwise.files import write_text
from headwise.model import GPT, GPTConfig, load_model, save_model
from headwise.student_t import mean_interval
from headwise.text import Tokenizer, open_corpus
from headwise.training.config import LEARNING_RATES, MATRIX_LEARNING_RATE

KEYS = "αβγδεζηθικλμνξοπρστυφχψω"
VALUES = "абвгдежзийклмнопрстуфхцч"
RECALL_SHARE = 0.08
PAIRS = (4, 8, 16)
WARM_UPS = 9
"""How many warm-ups there are at most, until 8 of 10 questions about 8 pairs are answered."""
STEADY: dict[str, Any] = {"schedule": "constant", "warmup_steps": 10}
METHODS = get_args(Method)
SHARES = (0.005, 0.01, 0.02, 0.05)
BEST: Method = "fitted"
PEAK = {"learning_rate": LEARNING_RATES["muon"], "matrix_learning_rate": MATRIX_LEARNING_RATE}
"""The rates of warm-ups and of models from nothing. Parents go on at half of them, children at a quarter."""


@dataclass(frozen=True)
class Size:
    """How large everything is."""

    shape: dict[str, int]
    window: int
    step: int
    """Tokens of a step."""
    tokens: int
    """Tokens that a parent is trained on after its warm-ups."""
    warm_up: int
    """Tokens of a warm-up."""
    finest: int
    """Tokens of a step of uptraining."""
    rows: int
    """Rows of text that losses are measured on."""
    calibration: int
    counts: tuple[int, ...]


FULL = Size(
    shape={"n_layer": 4, "n_head": 8, "d_model": 256, "block_size": 256},
    window=128,
    step=2048,
    tokens=1_000_000,
    warm_up=204_800,
    finest=2048,
    rows=96,
    calibration=40,
    counts=(2, 1, 4),
)
QUICK = Size(
    shape={"n_layer": 2, "n_head": 4, "d_model": 32, "block_size": 64},
    window=64,
    step=1024,
    tokens=20_000,
    warm_up=20_480,
    finest=512,
    rows=8,
    calibration=8,
    counts=(2, 1),
)


class Texts:
    """The text with lines of recall in it, as tokens."""

    def __init__(self, text: str, size: Size) -> None:
        cut = int(0.9 * len(text))
        self.size = size
        self.tokenizer = Tokenizer.from_alphabet({*text, *KEYS, *VALUES, "\n"})
        self.training, self.other = text[:cut], text[cut:]

    @cached_property
    def learned(self) -> Tensor:
        """The tokens that parents and children learn from."""
        return self._mixed(self.training, RECALL_SHARE, seed=1)

    @cached_property
    def calibration(self) -> list[Tensor]:
        """Rows (1, T) of the text that parents learned from."""
        return self._rows(self.learned, self.size.calibration)

    @cached_property
    def held_out(self) -> list[Tensor]:
        """Rows (1, T) of text that no model has seen."""
        return self._rows(self._mixed(self.other, RECALL_SHARE, seed=3), self.size.rows)

    def batches(self, tokens: Tensor, amount: int, step: int, seed: int) -> list[tuple[Tensor, Tensor]]:
        """Return windows at random places and their targets, as many tokens as asked for."""
        generator = torch.Generator().manual_seed(seed)
        window = torch.arange(self.size.window)
        pairs = []
        for _ in range(-(-amount // step)):
            start = torch.randint(
                len(tokens) - len(window) - 1, (step // len(window), 1), generator=generator
            )
            pairs.append((tokens[start + window], tokens[start + window + 1]))
        return pairs

    def warm_up(self, seed: int) -> list[tuple[Tensor, Tensor]]:
        """Return batches of recall alone."""
        generator = torch.Generator().manual_seed(seed)
        window = self.size.window // 2
        rows = torch.tensor([self._recall_row(window, generator) for _ in range(self.size.warm_up // window)])
        each = self.size.step // window
        return [(ids[:, :-1], ids[:, 1:]) for ids in rows.split(each) if len(ids) == each]

    def first(self, seed: int) -> list[tuple[Tensor, Tensor]]:
        """Return the batches that follow: in the first of them half of the rows are recall alone."""
        generator = torch.Generator().manual_seed(seed)
        batches = self.batches(self.learned, self.size.tokens, self.size.step, seed)
        for number in range(len(batches) // 2):
            recall = len(batches[number][0]) // 2
            rows = torch.tensor([self._recall_row(self.size.window, generator) for _ in range(recall)])
            for part, ids in zip(batches[number], (rows[:, :-1], rows[:, 1:]), strict=True):
                part[:recall] = ids
        return batches

    def _recall_row(self, length: int, generator: torch.Generator) -> list[int]:
        """Make length + 1 tokens: pairs, all of which are asked for again and again."""
        pairs = int(torch.randint(2, length // 6 + 1, (), generator=generator))
        keys, values = (
            [letters[i] for i in torch.randperm(len(letters), generator=generator)[:pairs]]
            for letters in (KEYS, VALUES)
        )
        row = "\n" + "".join(key + value for key, value in zip(keys, values, strict=True))
        while len(row) <= length:
            order = torch.randperm(pairs, generator=generator).tolist()
            row += "".join(keys[i] + values[i] for i in order)
        return self.tokenizer.encode(row[: length + 1])

    def _rows(self, tokens: Tensor, count: int) -> list[Tensor]:
        length = self.size.shape["block_size"]
        starts = torch.linspace(0, len(tokens) - length - 1, count).long()
        return [tokens[start : start + length].unsqueeze(0) for start in starts]

    def _mixed(self, text: str, share: float, seed: int) -> Tensor:
        recall = _recall(seed)
        parts, length, recalled = [], 0, 0
        for line in text.splitlines(keepends=True):
            parts.append(line)
            length += len(line)
            while recalled < share * length:
                parts.append(next(recall))
                length += len(parts[-1])
                recalled += len(parts[-1])
        return torch.tensor(self.tokenizer.encode("".join(parts)))


def _recall(seed: int) -> Iterator[str]:
    """Yield lines of recall with few and many pairs."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        sizes = torch.randint(2, max(PAIRS) + 1, (256,), generator=generator).tolist()
        for number, pairs in enumerate(sizes):
            line_seed = int(torch.randint(2**31, (), generator=generator)) + number
            yield recall_lines(1, pairs, keys=KEYS, values=VALUES, seed=line_seed)[0] + "\n"


class Ladder:
    """All models and measurements of one folder."""

    def __init__(self, folder: Path, texts: Texts, size: Size, bf16: bool) -> None:
        self.folder, self.texts, self.size, self.bf16 = folder, texts, size, bf16
        self.log = folder / "rows.jsonl"
        self.rows: list[dict[str, Any]] = read_rows(self.log)
        tokenizer = texts.tokenizer
        self.recall = {
            pairs: after_a_line(
                recall_rows(
                    48,
                    4 * pairs,
                    pairs,
                    keys=tokenizer.encode(KEYS),
                    values=tokenizer.encode(VALUES),
                    answered=True,
                    power=1.0,
                    seed=4,
                ),
                tokenizer.encode("\n")[0],
            )
            for pairs in PAIRS
            if 4 * pairs < size.shape["block_size"]
        }

    def known(self, **about: Any) -> bool:
        return any(all(row[name] == value for name, value in about.items()) for row in self.rows)

    def measure(self, model: nn.Module, tokens: int, started: float, **about: Any) -> None:
        """Judge a model and write down what was found."""
        found: dict[str, Any] = {
            "loss": float(losses(model, self.texts.held_out).mean()),
            "recall": self.recalled(model),
        }
        row = about | {"tokens": tokens, "seconds": round(time.perf_counter() - started, 1)} | found
        self.rows.append(json.loads(json.dumps(row)))
        with self.log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        recalled = ", ".join(f"{pairs} pairs {share:.2f}" for pairs, share in found["recall"].items())
        print(f"{about}: loss {found['loss']:.4f}, recall {recalled}, {row['seconds']} s", flush=True)

    def recalled(self, model: nn.Module) -> dict[str, float]:
        """Return the share of right answers by the number of pairs."""
        scores = {pairs: recall_scores(model, task) for pairs, task in self.recall.items()}
        return {str(pairs): score.share for pairs, found in scores.items() for score in found.values()}

    def learn(
        self,
        model: nn.Module,
        parent: nn.Module | None,
        batches: Sequence[tuple[Tensor, Tensor]],
        kl: float,
        seed: int,
        **rates: Any,
    ) -> nn.Module:
        """Return the model after it has learned from all batches."""
        tokens = amount_of(batches)
        with self._precision():
            made = uptrain(model, parent, batches, tokens=tokens, kl=kl, seed=seed, **rates)
        if not made.losses[-1] < 2 * made.losses[0]:
            raise RuntimeError(f"training went wrong: loss {made.losses[0]:.3f} to {made.losses[-1]:.3f}")
        return made.model

    def parent(self, seed: int) -> GPT:
        folder = self.folder / f"parent-{seed}"
        if not folder.is_dir():
            started = time.perf_counter()
            model: nn.Module = self.untrained(seed, self.size.shape["n_head"])
            tokens = 0
            for again in range(WARM_UPS):
                batches = self.texts.warm_up(100 * seed + again)
                model = self.learn(model, None, batches, 0.0, seed, **PEAK, **STEADY)
                tokens += amount_of(batches)
                print(f"recall after {tokens} tokens: {self.recalled(model)}", flush=True)
                if list(self.recalled(model).values())[1] > 0.8:
                    break
            batches = self.texts.first(seed)
            model = self.learn(model, None, batches, 0.0, seed, **share_of_peak(0.5))
            tokens += amount_of(batches)
            about = {
                "seed": seed,
                "g": self.size.shape["n_head"],
                "method": "parent",
                "share": 0.0,
                "kl": 0.0,
            }
            self.measure(model, tokens, started, **about)
            save_model(folder, model, self.texts.tokenizer)
        model, _ = load_model(folder)
        return prepared(model, self.bf16)

    def untrained(self, seed: int, g: int) -> GPT:
        torch.manual_seed(seed)
        config = GPTConfig(vocab_size=self.texts.tokenizer.vocab_size, n_kv_head=g, **self.size.shape)
        return prepared(GPT(config), self.bf16)

    def climb(self, seed: int) -> None:
        """Group a parent in every way, and then train some of the results on."""
        parent = self.parent(seed)
        kinds: list[tuple[int, Method]] = [(g, method) for g in self.size.counts for method in METHODS]
        for trained in (False, True):  # first what costs least
            for g, method in kinds:
                wanted = self.wanted(seed, g, method, trained)
                started = time.perf_counter()
                if wanted:
                    child = prepared(group(parent, g, method, self.texts.calibration).model, self.bf16)
                for share, kl in wanted:
                    if share:
                        self.uptrained(child, parent, seed=seed, g=g, method=method, share=share, kl=kl)
                    else:
                        self.measure(child, 0, started, seed=seed, g=g, method=method, share=share, kl=kl)

    def wanted(self, seed: int, g: int, method: Method, trained: bool) -> list[tuple[float, float]]:
        """Return the shares and weights of KL that have not been measured yet."""
        rows = [(share, 1.0) for share in SHARES] if trained else [(0.0, 0.0)]
        if trained and method == BEST:
            rows.append((max(SHARES), 0.0))  # plain cross-entropy beside
        return [
            (share, kl)
            for share, kl in rows
            if not self.known(seed=seed, g=g, method=method, share=share, kl=kl)
        ]

    def controls(self, seed: int) -> None:
        """Train the parent on, and the children's shapes from nothing."""
        parent = self.parent(seed)
        most = max(SHARES)
        h = self.size.shape["n_head"]
        about: dict[str, Any] = {"seed": seed, "g": h, "method": "parent", "share": most, "kl": 0.0}
        if not self.known(**about):
            self.uptrained(parent, parent, **about)
        for g in self.size.counts:
            about = {"seed": seed, "g": g, "method": "from nothing", "share": most, "kl": 0.0}
            if not self.known(**about):
                batches = self.uptraining_batches(most, seed)
                started = time.perf_counter()
                model = self.learn(self.untrained(seed, g), None, batches, 0.0, seed, **PEAK)
                self.measure(model, amount_of(batches), started, **about)

    def uptraining_batches(self, share: float, seed: int) -> list[tuple[Tensor, Tensor]]:
        parent = next(row for row in self.rows if row["seed"] == seed and row["method"] == "parent")
        amount = int(share * parent["tokens"])
        return self.texts.batches(self.texts.learned, amount, self.size.finest, 1000 + seed)

    def uptrained(
        self, child: nn.Module, parent: nn.Module, *, seed: int, share: float, kl: float, **at: Any
    ) -> None:
        started = time.perf_counter()
        batches = self.uptraining_batches(share, seed)
        model = self.learn(child, parent, batches, kl, seed, **share_of_peak(0.25))
        self.measure(model, amount_of(batches), started, seed=seed, share=share, kl=kl, **at)

    def _precision(self) -> AbstractContextManager[object]:
        return torch.autocast("cpu", torch.bfloat16) if self.bf16 else nullcontext()


def prepared(model: nn.Module, bf16: bool) -> Any:
    """Let attention of short windows run in bfloat16, where PyTorch's own backward pass is slow on CPUs."""
    if bf16:
        for module in model.modules():
            if isinstance(module, MultiHeadAttention):
                module.backend = "reference"
    return model


def after_a_line(task: Recall, line_end: int) -> Recall:
    """Let rows begin as lines of text do, after the end of another."""
    return replace(
        task,
        ids=F.pad(task.ids, (1, 0), value=line_end),
        wanted=F.pad(task.wanted, (1, 0), value=-100),
        gap=F.pad(task.gap, (1, 0)),
    )


def share_of_peak(share: float) -> dict[str, float]:
    """Return learning rates."""
    return {name: share * rate for name, rate in PEAK.items()}


def amount_of(batches: Sequence[tuple[Tensor, Tensor]]) -> int:
    """Count the tokens of batches."""
    return sum(x.numel() for x, _ in batches)


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.is_file() else []


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return what was found as Markdown: means over seeds with 95 % intervals."""
    lines = [
        "| key/value heads | method | uptrained | seeds | more loss than its parent | recall | seconds |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (g, method, share, kl), found in summary(rows).items():
        how = "no" if not share else f"{100 * share:g} %{'' if kl else ', without KL'}"
        recall = ", ".join(
            f"{pairs} pairs {100 * mean(values):.0f} %" for pairs, values in found.recall.items()
        )
        lines.append(
            f"| {g} | {method} | {how} | {len(found.more)} | {_spread(found.more)} | {recall} "
            f"| {mean(found.seconds):.0f} |"
        )
    return "\n".join(lines) + "\n"


@dataclass
class Found:
    """What one kind of model came to, a number for each seed."""

    more: list[float]
    recall: dict[str, list[float]]
    seconds: list[float]


def summary(rows: Sequence[dict[str, Any]]) -> dict[tuple[int, str, float, float], Found]:
    """Gather the seeds of each kind of model."""
    parents = {row["seed"]: row for row in rows if row["method"] == "parent" and not row["share"]}
    gathered: dict[tuple[int, str, float, float], Found] = {}
    for row in sorted(rows, key=lambda row: (-row["g"], row["method"], row["share"], row["kl"])):
        kind = gathered.setdefault(
            (row["g"], row["method"], row["share"], row["kl"]),
            Found([], {pairs: [] for pairs in row["recall"]}, []),
        )
        kind.more.append(row["loss"] - parents[row["seed"]]["loss"])
        kind.seconds.append(row["seconds"])
        for pairs, share in row["recall"].items():
            kind.recall[pairs].append(share)
    return gathered


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _spread(values: Sequence[float]) -> str:
    if len(values) < 2:
        return f"{values[0]:+.3f}"
    low, high = mean_interval(values)
    return f"{mean(values):+.3f} ({low:+.3f} … {high:+.3f})"


def plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw loss and recall against the share of uptraining, one panel for each number of heads."""
    from matplotlib.figure import Figure

    found = summary(rows)
    counts = sorted({g for g, method, _, _ in found if method != "parent"}, reverse=True)
    figure = Figure(figsize=(4 * len(counts), 6.5), layout="constrained")
    axes = figure.subplots(2, len(counts), squeeze=False, sharex=True, sharey="row")
    for column, g in enumerate(counts):
        above, below = axes[0][column], axes[1][column]
        for method in METHODS:
            points = sorted(
                (share, one)
                for (n, name, share, kl), one in found.items()
                if n == g and name == method and (kl or not share)
            )
            if not points:
                continue
            x = [100 * share for share, _ in points]
            above.plot(x, [mean(one.more) for _, one in points], marker="o", label=method)
            below.plot(
                x, [100 * mean([mean(s) for s in one.recall.values()]) for _, one in points], marker="o"
            )
        above.set_yscale("symlog", linthresh=0.02)
        above.set_title(f"{g} key/value head{'s' * (g > 1)}")
        below.set_xlabel("uptrained on, % of the parent's tokens")
    axes[0][0].set_ylabel("more loss than the parent, nats")
    axes[1][0].set_ylabel("recall, %")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside right upper", frameon=False)
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for models and numbers")
    parser.add_argument("--data", default="shakespeare", help="text, as for headwise train")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="one parent each")
    parser.add_argument("--threads", type=int, help="threads to use; default PyTorch's own choice")
    parser.add_argument("--quick", action="store_true", help="tiny models, to see that it runs")
    parser.add_argument("--bf16", action="store_true", help="train with matrix products in bfloat16")
    parser.add_argument("--report", action="store_true", help="only table and plot of what is there")
    given = parser.parse_args()
    if given.threads:
        torch.set_num_threads(given.threads)
    given.out.mkdir(parents=True, exist_ok=True)
    if not given.report:
        size = QUICK if given.quick else FULL
        texts = Texts("".join(open_corpus(given.data).chunks()), size)
        ladder = Ladder(given.out, texts, size, given.bf16)
        for seed in given.seeds:
            ladder.climb(seed)
            ladder.controls(seed)
    rows = read_rows(given.out / "rows.jsonl")
    write_text(given.out / "table.md", table(rows))
    plot(rows, given.out / "ladder.png")
    print(f"\n{table(rows)}\n{given.out / 'table.md'}, {given.out / 'ladder.png'}")


if __name__ == "__main__":
    main()
