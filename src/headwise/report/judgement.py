"""A parent and its children side by side: as lines of text, and as a picture."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from pathlib import PurePath

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headwise.compress.judging import Judgement
from headwise.compress.validity import ProbeCheck
from headwise.compress.verdicts import CANNOT_JUDGE, GATE, Verdict
from headwise.report.fonts import Lettering, lettering
from headwise.report.tables import aligned

_NAME = 20
"""Columns of the terminal for a model's name."""


def judgement_lines(judgement: Judgement, width: int) -> list[str]:
    """Return a table with a column for each model, in as many parts as the width asks for.

    Each part begins with the parent. Recall by the gap is told of the most pairs only; the rest is in the
    judgement's table. Probes that the parent fails altogether are named in a sentence below.
    """
    rows = [("", short_names(judgement.names)), *_measures(judgement)]
    children = list(range(1, len(judgement.names)))
    at_once = len(children)
    while True:
        parts = [children[i : i + at_once] for i in range(0, len(children), max(1, at_once))] or [[]]
        blocks = [
            aligned([[label, *(cells[i] for i in (0, *part))] for label, cells in rows]) for part in parts
        ]
        if at_once <= 1 or all(len(line) <= width for block in blocks for line in block):
            break
        at_once -= 1
    lines = [line for block in blocks for line in ("", *block)][1:]
    failed = _failed(judgement)
    if failed:
        told = f"{CANNOT_JUDGE}, as the parent itself is right in less than {GATE:.0%} there: "
        whole = (told + "; ".join(failed)).replace(" %", "\N{NO-BREAK SPACE}%")
        wrapped = textwrap.wrap(whole, width, break_on_hyphens=False)
        lines += ["", *(line.replace("\N{NO-BREAK SPACE}", " ") for line in wrapped)]
    return lines


def short_names(names: Sequence[str]) -> list[str]:
    """Return the last parts of paths, as many as tell the models apart, cut to fit a column."""
    parts = [PurePath(name).parts for name in names]
    for depth in range(1, max(map(len, parts)) + 1):
        short = ["/".join(part[-depth:]) for part in parts]
        if len(set(short)) == len(set(names)):
            break
    return [name if len(name) <= _NAME else "…" + name[1 - _NAME :] for name in short]


def _measures(j: Judgement) -> list[tuple[str, list[str]]]:
    """Return lines: a label, and what is told of each model."""
    every: list[tuple[str, list[str]]] = [
        ("loss, nats per token", [f"{t.loss:.4f}" for t in j.text]),
        ("  more than the parent", ["", *(f"{t.more:+.4f}" for t in j.text[1:])]),
        ("  95 % interval", ["", *(f"± {(t.high - t.low) / 2:.4f}" for t in j.text[1:])]),
        ("  where a pair of tokens recurs", [_number(t.recurring, 4) for t in j.text]),
        ("  elsewhere", [_number(t.other, 4) for t in j.text]),
        ("perplexity", [f"{t.perplexity:.2f}" for t in j.text]),
        ("bits per byte", [f"{bits:.4f}" for bits in j.bits_per_byte]),
    ]
    for verdict in _told(j.recall):
        every.append((_label(verdict), _shares(verdict)))
    for verdict in j.passkey if _says_something(j.passkey) else ():
        every.append((f"pass key at depth {verdict.depth:g}", _shares(verdict)))
    cache = [f.cache_bytes for f in j.footprints]
    every += [
        ("parameters", [f"{f.parameters:,}" for f in j.footprints]),
        (f"cache of {j.length:,} tokens, bytes", [f"{size:,}" for size in cache]),
        ("  share of the parent's", ["", *(_share(size, cache[0]) for size in cache[1:])]),
    ]
    if j.speeds is not None:
        read = j.speeds[0].read
        for label, timings in (
            (f"ms to read {read:,} tokens", [s.prefill for s in j.speeds]),
            ("ms to write each of the rest", [s.decode for s in j.speeds]),
        ):
            every.append((label, [f"{1e3 * t.median:,.2f} ± {100 * t.spread:.0f} %" for t in timings]))
    return every


def _told(recall: Sequence[Verdict]) -> list[Verdict]:
    most = {v.power: max(o.pairs or 0 for o in recall if o.power == v.power) for v in recall}
    told = [v for v in recall if v.gaps is None or v.pairs == most[v.power]]
    return [v for v in told if _says_something([o for o in told if (o.pairs, o.power) == (v.pairs, v.power)])]


def _says_something(verdicts: Sequence[Verdict]) -> bool:
    return any(verdict.can_judge for verdict in verdicts)


def _failed(j: Judgement) -> list[str]:
    """Return in words the probes in no part of which the parent passes the gate, and its shares there."""
    told = _told(j.recall)
    lost = [v for v in j.recall if v.gaps is None and v not in told]
    found = []
    for power in dict.fromkeys(v.power for v in lost):
        here = [v for v in lost if v.power == power]
        pairs = ", ".join(str(v.pairs) for v in here)
        found.append(f"recall of {pairs} pairs, {_spread(here[0])} ({_range(here)})")
    if j.passkey and not _says_something(j.passkey):
        found.append(f"pass keys ({_range(j.passkey)})")
    return found


def _range(verdicts: Sequence[Verdict]) -> str:
    """Return the least and the largest share of the parent."""
    shares = [verdict.shares[0] for verdict in verdicts]
    return " … ".join(dict.fromkeys(_percent(share) for share in (min(shares), max(shares))))


def _label(verdict: Verdict) -> str:
    if verdict.gaps is not None:
        return f"  gap of {verdict.gaps[0]} … {verdict.gaps[1] - 1} tokens"
    return f"recall of {verdict.pairs} pairs, {_spread(verdict)}"


def _spread(verdict: Verdict) -> str:
    return "evenly" if verdict.power == 1 else f"power {verdict.power:g}"


def _shares(verdict: Verdict) -> list[str]:
    children = [_percent(share) if verdict.can_judge else CANNOT_JUDGE for share in verdict.shares[1:]]
    return [_percent(verdict.shares[0]), *children]


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _share(size: int, of: int) -> str:
    return _percent(size / of) if of else "–"  # a parent without heads has no cache


def _number(value: float, digits: int) -> str:
    return "–" if math.isnan(value) else f"{value:.{digits}f}"


def check_lines(check: ProbeCheck) -> list[str]:
    """Return what silencing heads did to a recall task, and what follows."""
    rows = [["heads silent", "those that look at the answer", "as many others: median (least … most)"]]
    rows.append(["0", _percent(check.full), _percent(check.full)])
    for step in check.steps:
        spread = f"{_percent(step.median)} ({_percent(min(step.random))} … {_percent(max(step.random))})"
        rows.append([str(step.heads), _percent(step.top), spread])
    if not check.can_judge:
        told = f"the parent does not reach {GATE:.0%} itself, so the check says nothing"
    elif check.valid:
        told = "the probe asks for what retrieval heads do: it fails without them and not without others"
    else:
        told = (
            "the probe is not shown to ask for what retrieval heads do: it does not fail without them alone"
        )
    return [*aligned(rows), told]


def judgement_figure(judgement: Judgement) -> Figure:
    """Draw what the children lose, recall, and take, beside the parent: one panel for each.

    Where the parent misses the gate, what its children do is not drawn, and the panel says so.
    """
    letters = lettering(short_names(judgement.names))
    names = [letters.legible(name) for name in short_names(judgement.names)]
    panels: list[Callable[[Axes], None]] = [lambda axes: _draw_loss(axes, judgement, names, letters)]
    whole = [v for v in judgement.recall if v.gaps is None]
    if whole:
        panels.append(lambda axes: _draw_pairs(axes, whole))
    by_gap = _furthest(judgement.recall)
    if by_gap:
        panels.append(lambda axes: _draw_gaps(axes, by_gap))
    if judgement.passkey:
        panels.append(lambda axes: _draw_passkeys(axes, judgement.passkey))
    panels.append(lambda axes: _draw_sizes(axes, judgement))
    if judgement.speeds is not None:
        panels.append(lambda axes: _draw_times(axes, judgement))
    columns = min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(4.4 * columns, 3.6 * rows + 0.4), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes, draw in zip(grid.flat, panels, strict=False):
        draw(axes)
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_axis_off()
    handles = [Axes.plot(grid[0, 0], [], [], "o-", color=f"C{i}", label=n)[0] for i, n in enumerate(names)]
    figure.legend(
        handles=handles, loc="outside upper left", ncols=min(6, len(names)), prop={"family": letters.families}
    )
    return figure


def _draw_loss(axes: Axes, j: Judgement, names: Sequence[str], letters: Lettering) -> None:
    for i, loss in enumerate(j.text):
        around = [[loss.more - loss.low], [loss.high - loss.more]]
        axes.errorbar(loss.more, i, xerr=around if i else None, fmt="o", capsize=4, color=f"C{i}")
        axes.annotate(
            f"perplexity {loss.perplexity:.2f}",
            (loss.more, i),
            xytext=(0, 7),
            textcoords="offset points",
            ha="center",
            fontsize="small",
        )
    axes.axvline(0, color="grey", linewidth=0.8)
    axes.set_yticks(range(len(names)), names, fontfamily=letters.families)
    axes.set_ylim(len(names) - 0.5, -0.7)
    axes.margins(x=0.25)
    if not any(loss.more for loss in j.text):
        axes.set_xlim(-0.1, 0.1)
    axes.set_xlabel("nats per token more than the parent")
    axes.set_title("Loss, with 95 % intervals", fontsize="medium")


def _draw_pairs(axes: Axes, verdicts: Sequence[Verdict]) -> None:
    pairs = sorted({v.pairs or 0 for v in verdicts})
    powers = sorted({v.power or 0.0 for v in verdicts}, reverse=True)
    for power, style in zip(powers, ("-", "--", ":", "-.") * len(powers), strict=False):
        here = [v for v in verdicts if v.power == power]
        _lines(axes, here, [v.pairs or 0 for v in here], style)
        axes.plot([], [], style, color="grey", label=_spread(here[0]))
    if len(powers) > 1:
        axes.legend(fontsize="small", loc="center left", title="questions spread", title_fontsize="small")
    axes.set_xlabel("pairs in a row")
    axes.set_xscale("log", base=2)
    axes.set_xticks(pairs, [str(n) for n in pairs])
    axes.minorticks_off()
    _finish(axes, verdicts, "Recall by the number of pairs")


def _furthest(recall: Sequence[Verdict]) -> list[Verdict]:
    """Return recall by the gap of the task that asks for most pairs, most evenly."""
    parts = [v for v in recall if v.gaps is not None]
    most = max(((v.pairs or 0, v.power or 0.0) for v in parts), default=None)
    return [v for v in parts if (v.pairs, v.power) == most]


def _draw_gaps(axes: Axes, verdicts: Sequence[Verdict]) -> None:
    _lines(axes, verdicts, list(range(len(verdicts))), "-")
    axes.set_xticks(range(len(verdicts)), [f"{v.gaps[0]}–{v.gaps[1] - 1}" for v in verdicts if v.gaps])
    axes.set_xlabel("tokens between question and answer")
    _finish(axes, verdicts, f"Recall of {verdicts[0].pairs} pairs by the gap ({_spread(verdicts[0])})")


def _draw_passkeys(axes: Axes, verdicts: Sequence[Verdict]) -> None:
    _lines(axes, verdicts, [v.depth or 0.0 for v in verdicts], "-")
    axes.set_xlabel("depth: 0 is the front of the text")
    _finish(axes, verdicts, "Pass keys by depth")


def _lines(axes: Axes, verdicts: Sequence[Verdict], places: Sequence[float], style: str) -> None:
    """Draw the shares of all models; those of children only where the parent passes the gate."""
    for i in range(len(verdicts[0].shares)):
        shares = [v.shares[i] if v.can_judge or i == 0 else math.nan for v in verdicts]
        filled = "full" if all(v.can_judge for v in verdicts) or i else "none"
        axes.plot(places, shares, "o" + style, color=f"C{i}", markersize=4, fillstyle=filled)


def _finish(axes: Axes, verdicts: Sequence[Verdict], title: str) -> None:
    axes.axhline(GATE, color="grey", linewidth=0.8, linestyle=":")
    axes.axhline(verdicts[0].chance, color="black", linewidth=0.8, linestyle=(0, (1, 3)))
    right = axes.get_xlim()[1]
    for told, height, above in (("guessing", verdicts[0].chance, 3), (f"gate {GATE:.0%}", GATE, -11)):
        axes.annotate(
            told,
            (right, height),
            xytext=(-3, above),
            ha="right",
            textcoords="offset points",
            fontsize="small",
            color="grey",
        )
    failed = [v for v in verdicts if not v.can_judge]
    if failed:
        where = "" if len(failed) == len(verdicts) else f" at {len(failed)} of {len(verdicts)} points"
        title += f"\n{CANNOT_JUDGE}{where}: the parent misses the gate"
    axes.set_ylim(-0.05, 1.05)
    axes.set_ylabel("share of right answers")
    axes.set_title(title, fontsize="medium")


def _draw_sizes(axes: Axes, j: Judgement) -> None:
    kinds = [
        ("parameters", [f.parameters for f in j.footprints]),
        (f"cache of\n{j.length:,} tokens", [f.cache_bytes for f in j.footprints]),
    ]
    _bars(
        axes,
        [
            (label, [v / sizes[0] if sizes[0] else math.nan for v in sizes], None, [f"{v:,}" for v in sizes])
            for label, sizes in kinds
        ],
    )
    axes.set_title("Size, as a share of the parent's", fontsize="medium")


def _draw_times(axes: Axes, j: Judgement) -> None:
    if j.speeds is None:
        return
    groups = []
    for label, timings in (
        (f"read {j.speeds[0].read:,}\ntokens", [s.prefill for s in j.speeds]),
        ("write\none token", [s.decode for s in j.speeds]),
    ):
        base = timings[0].median
        groups.append(
            (
                label,
                [t.median / base for t in timings],
                [t.median / base * t.spread for t in timings],
                [f"{1e3 * t.median:,.{1 if t.median < 1 else 0}f} ms" for t in timings],
            )
        )
    _bars(axes, groups)
    axes.set_title("Time on this machine, as a share of the parent's", fontsize="medium")


def _bars(axes: Axes, groups: Sequence[tuple[str, list[float], list[float] | None, list[str]]]) -> None:
    models = len(groups[0][1])
    width = 0.8 / models
    for place, (_, heights, spreads, told) in enumerate(groups):
        for i, height in enumerate(heights):
            x = place + (i - (models - 1) / 2) * width
            around = None if spreads is None else spreads[i]
            axes.bar(x, height, 0.92 * width, yerr=around, color=f"C{i}", alpha=0.6, capsize=3)
            axes.text(x, 0.02, told[i], rotation=90, ha="center", va="bottom", fontsize="small")
    axes.set_xticks(range(len(groups)), [label for label, *_ in groups])
    axes.axhline(1, color="grey", linewidth=0.8)
