"""What is lost with the heads that go first: loss and recall against the share of heads pruned.

    python bench/pruning.py --model runs/a runs/b runs/c    several folders: seeds of one model
    python bench/pruning.py --model runs/a --orders importance random --points 4
    … --recall-keys ABCD… --recall-values 0123…             characters that the models learned to recall
    … --json FILE --plot FILE                               also write the numbers, and draw them

Orders: importance (gradients), ablation (what silencing each alone costs), greedy (the one that costs least,
given those that are gone; slow), random (by lot, several draws for each model), protected (importance,
but the retrieval heads stay). One head stays in each layer. Losses are on text
after that by which heads were ranked, as differences to the whole model; recall is asked in rows as
`headwise judge` does, and said only where the whole models reach 95 %. Intervals are Student's t over the
models; one alone has none.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from matplotlib.figure import Figure
from torch import nn

from headwise.cli.subjects import calibration_rows
from headwise.compress import choose, greedy_order, prune, rank, recall_scores, recall_tasks
from headwise.compress.recall import Recall
from headwise.compress.retrieval import retrieval_heads
from headwise.compress.rows import losses
from headwise.compress.verdicts import CANNOT_JUDGE, GATE
from headwise.heads.head_ids import HeadId
from headwise.hub import Subject, open_subject
from headwise.hub.surgery import head_counts
from headwise.report.figures import save_figure
from headwise.report.tables import aligned
from headwise.student_t import mean_interval

ORDERS = ("importance", "ablation", "greedy", "protected", "random")


@dataclass(frozen=True)
class Point:
    """One number of heads gone, in one order, over all models."""

    order: str
    share: float
    loss: float
    """Nats per token more than the whole model's, the mean over models."""
    loss_interval: tuple[float, float] | None
    recall: float | None
    recall_interval: tuple[float, float] | None
    values: list[tuple[float, float]]
    """By model: loss and recall; of random, the means over its draws."""


Choose = Callable[[int], list[HeadId]]


def choices(
    subject: Subject, texts: list[list[int]], orders: list[str], most: int, draws: int, task: Recall
) -> dict[str, list[Choose]]:
    """Return for each order one or several ways to say which heads go."""

    def by(order: list[HeadId], protect: list[HeadId] | None = None) -> Choose:
        return lambda count: choose(subject.model, order, count, protect=protect or [])

    found: dict[str, list[Choose]] = {}
    for name in orders:
        if name == "greedy":
            taken = greedy_order(subject, texts, most)
            found[name] = [lambda count, taken=taken: taken[:count]]
        elif name == "random":
            found[name] = [by(rank(subject, texts, "random", seed=seed)) for seed in range(draws)]
        elif name == "protected":
            found[name] = [by(rank(subject, texts, "importance"), retrieval_heads(subject, task))]
        else:
            found[name] = [by(rank(subject, texts, name))]
    return found


def measured(model: nn.Module, task: Recall, unseen: list) -> tuple[float, float]:
    (score,) = recall_scores(model, task).values()
    return float(losses(model, unseen).mean()), score.share


def part(subject: Subject) -> int:
    """Return how many heads go at once."""
    return math.lcm(*(h // g for h, g in head_counts(subject.model) if h))


def task_of(subject: Subject, given: argparse.Namespace) -> Recall:
    (task,) = recall_tasks(
        subject,
        keys=given.recall_keys,
        values=given.recall_values,
        pairs=[given.pairs],
        powers=[1.0],
        rows=given.rows,
        longest=subject.max_tokens,
    )
    return task


def curves(given: argparse.Namespace) -> tuple[list[Point], list[float]]:
    """Return all points, and what the whole models recall."""
    values: dict[tuple[str, int], list[tuple[float, float]]] = {}
    whole: list[float] = []
    heads = 0
    for number, source in enumerate(given.model):
        subject = open_subject(source)
        fitted, unseen = calibration_rows(subject, source, given.data, given.tokens, given.held_out)
        texts = [row[0].tolist() for row in fitted]
        task = task_of(subject, given)
        layers = head_counts(subject.model)
        if number and sum(h for h, _ in layers) != heads:
            raise SystemExit(f"{source} has not as many heads as {given.model[0]}; give seeds of one model")
        heads, size = sum(h for h, _ in layers), part(subject)
        most = sum(h - h // g for h, g in layers) // size * size
        counts = sorted(
            {round(most * (i + 1) / given.points / size) * size for i in range(given.points)} - {0}
        )
        full, recalled = measured(subject.model, task, unseen)
        whole.append(recalled)
        print(f"{source}: {heads} heads, loss {full:.4f}, recall {recalled:.1%}", flush=True)
        for name, ways in choices(subject, texts, given.orders, counts[-1], given.draws, task).items():
            for count in counts:
                found = []
                for way in ways:
                    try:
                        gone = way(count)
                    except ValueError:  # fewer heads than that may go, as others are protected
                        continue
                    loss, recall = measured(prune(subject.model, gone).model, task, unseen)
                    found.append((loss - full, recall))
                if found:
                    means = fmean(loss for loss, _ in found), fmean(recall for _, recall in found)
                    values.setdefault((name, count), []).append(means)
            print(f"  {name} done", flush=True)
    judged = min(whole) >= GATE
    return [point(name, count / heads, each, judged) for (name, count), each in values.items()], whole


def point(order: str, share: float, values: list[tuple[float, float]], judged: bool) -> Point:
    lost, recalled = ([value[i] for value in values] for i in range(2))
    several = len(values) > 1
    return Point(
        order,
        share,
        fmean(lost),
        mean_interval(lost) if several else None,
        fmean(recalled) if judged else None,
        mean_interval(recalled) if several and judged else None,
        values,
    )


def lines(points: list[Point]) -> list[str]:
    rows = [["order", "heads gone", "loss more", "95 %", "recall", "95 %"]]
    for p in points:
        rows.append(
            [
                p.order,
                f"{100 * p.share:.0f} %",
                f"{p.loss:+.4f}",
                "–" if p.loss_interval is None else "{:+.4f} … {:+.4f}".format(*p.loss_interval),
                CANNOT_JUDGE if p.recall is None else f"{100 * p.recall:.1f} %",
                "–"
                if p.recall_interval is None
                else "{:.1f} … {:.1f}".format(*(100 * end for end in p.recall_interval)),
            ]
        )
    return aligned(rows)


def figure_of(points: list[Point], whole: list[float], chance: float) -> Figure:
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for index, name in enumerate(dict.fromkeys(p.order for p in points)):
        here = [p for p in points if p.order == name]
        x = [0.0, *(p.share for p in here)]
        start = fmean(whole)
        for axes, values, ends in (
            (left, [0.0, *(p.loss for p in here)], [p.loss_interval for p in here]),
            (
                right,
                [start, *(math.nan if p.recall is None else p.recall for p in here)],
                [p.recall_interval for p in here],
            ),
        ):
            axes.plot(x, values, "o-", color=f"C{index}", markersize=3, label=name)
            if all(ends):
                low, high = zip(*(end for end in ends if end), strict=True)
                axes.fill_between(x[1:], low, high, color=f"C{index}", alpha=0.15)
    left.set_yscale("symlog", linthresh=0.01)
    left.set_ylabel("nats per token more than the whole model")
    right.set_ylim(-0.03, 1.03)
    right.axhline(chance, color="black", linewidth=0.8, linestyle=":")
    right.set_ylabel("share of right answers (dotted: guessing)")
    if min(whole) < GATE:
        right.set_title(f"{CANNOT_JUDGE}: a whole model does not reach 95 %", fontsize="medium")
    for axes in (left, right):
        axes.set_xlabel("share of heads gone")
        axes.grid(alpha=0.3)
    left.legend(title=f"{len(whole)} model{'s' * (len(whole) > 1)}")
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", nargs="+", required=True, help="model folders, seeds of one model")
    parser.add_argument("--data", help="the text; default what the first run held out, else python-docs")
    parser.add_argument("--orders", nargs="+", choices=ORDERS, default=list(ORDERS), help="default all")
    parser.add_argument("--points", type=int, default=8, help="numbers of heads, evenly spaced")
    parser.add_argument("--draws", type=int, default=5, help="random orders for each model")
    parser.add_argument("--tokens", type=int, default=4000, help="tokens to rank heads by")
    parser.add_argument("--held-out", type=int, default=8000, help="tokens after those, to measure on")
    parser.add_argument("--recall-keys", help="characters; default as for `headwise judge`")
    parser.add_argument("--recall-values", help="characters")
    parser.add_argument("--pairs", type=int, default=4, help="pairs in a row of recall")
    parser.add_argument("--rows", type=int, default=64, help="rows of recall")
    parser.add_argument("--json", type=Path, help="file to write the numbers to")
    parser.add_argument("--plot", type=Path, help="file to draw to, .png or .svg")
    given = parser.parse_args()
    points, whole = curves(given)
    print("\n".join(["", *lines(points)]))
    if given.json:
        found = {"models": given.model, "recall_whole": whole, "points": [asdict(p) for p in points]}
        given.json.write_text(json.dumps(found, indent=1))
    if given.plot:
        chance = task_of(open_subject(given.model[0]), given).chance
        save_figure(figure_of(points, whole, chance), given.plot)


if __name__ == "__main__":
    main()
