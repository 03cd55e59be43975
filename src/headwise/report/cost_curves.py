"""Curves of what attention costs when one number changes: heads, key/value heads, length."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from headwise.cost import Sweep
from headwise.cost.numbers import UNITS

_PARAMETERS, _SCORES, _CACHE = "C0", "C1", "C2"


def cost_curves(sweep: Sweep) -> Figure:
    """Four panels: parameters flat in H, scores linear in H, cache linear in G; over T, the scores beside the
    cache, quadratic beside linear. Where a head is 64 to 128 wide is shaded, with the reason below.
    """
    figure = Figure(figsize=(11, 7.6), layout="constrained")
    flat, scores, groups, lengths = figure.subplots(2, 2).flat
    w = sweep.workload
    heads = list(sweep.heads)
    flat.plot(heads, [p for p, _ in sweep.heads.values()], "o-", color=_PARAMETERS, markersize=4)
    flat.set_ylim(0, 2 * max(p for p, _ in sweep.heads.values()))
    flat.yaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n / 1e6:g} M"))
    flat.set_ylabel("projections of one layer")
    flat.set_title(f"Parameters do not depend on H (D={sweep.d_model})", fontsize="medium")
    scores.plot(heads, [s for _, s in sweep.heads.values()], "o-", color=_SCORES, markersize=4)
    scores.set_ylabel("score tensor of one layer")
    scores.set_title("The score tensor grows with H", fontsize="medium")
    _bytes_axis(scores)
    for axes in (flat, scores):
        _powers(axes, heads)
        axes.set_xlabel("query heads H")
        if sweep.band is not None:
            axes.axvspan(*sweep.band, color="C8", alpha=0.25, label="d_head 64–128")
        axes.axvline(sweep.n_head, color="grey", linewidth=0.8, linestyle=":", label=f"H={sweep.n_head}")
        axes.legend(fontsize="small", loc="upper left")
    groups.plot(list(sweep.kv_heads), list(sweep.kv_heads.values()), "o-", color=_CACHE, markersize=4)
    _powers(groups, list(sweep.kv_heads))
    _bytes_axis(groups)
    groups.axvline(sweep.n_kv_head, color="grey", linewidth=0.8, linestyle=":", label=f"G={sweep.n_kv_head}")
    groups.legend(fontsize="small", loc="upper left")
    groups.set_xlabel("key/value heads G")
    groups.set_ylabel(f"cache, {sweep.n_layer} layer{'s' * (sweep.n_layer > 1)}")
    groups.set_title(f"The cache grows with G (H={sweep.n_head}, d_head={sweep.d_head})", fontsize="medium")
    t = list(sweep.lengths)
    lengths.plot(t, [s for s, _ in sweep.lengths.values()], "o-", color=_SCORES, markersize=4)
    lengths.plot(t, [c for _, c in sweep.lengths.values()], "o-", color=_CACHE, markersize=4)
    lengths.legend(["score tensor, one layer: T²", f"cache, {sweep.n_layer} layers: T"], fontsize="small")
    _powers(lengths, t)
    _bytes_axis(lengths)
    lengths.set_xlabel("length T")
    lengths.set_title("Twice the length: four times the scores, twice the cache", fontsize="medium")
    figure.suptitle(f"What attention costs at B={w.batch}, T={w.length}, {w.dtype}, cache {w.cached}")
    figure.supxlabel(_REASON, fontsize="small")
    return figure


_REASON = (
    "Shaded: d_head 64–128. Narrower heads make more scores for the same parameters and leave tiles "
    "half empty;\n"
    "wider ones are fewer patterns to attend with, and many fused kernels grow slow or refuse them."
)


def _powers(axes: Axes, values: list[int]) -> None:
    """A logarithmic x axis with a tick at every second value or so, written out."""
    axes.set_xscale("log", base=2)
    step = -(-len(values) // 9)
    shown = values[::step]
    axes.set_xticks(shown, [f"{value:,}" for value in shown])
    axes.minorticks_off()
    axes.tick_params(axis="x", labelsize="small")
    axes.grid(alpha=0.3)


def _bytes_axis(axes: Axes) -> None:
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda n, _: _short(n)))


def _short(number: float) -> str:
    unit, size = max(((u, s) for u, s in UNITS.items() if s <= number), key=lambda u: u[1], default=("B", 1))
    return f"{number / size:g} {unit}"
