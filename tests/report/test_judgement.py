"""A judgement as lines and as a picture."""

from __future__ import annotations

import re
from dataclasses import replace

from headwise.compress.footprint import Footprint, Speed
from headwise.compress.judging import Judgement
from headwise.compress.recall import Score
from headwise.compress.text_loss import TextLoss
from headwise.compress.validity import ProbeCheck, Silenced
from headwise.compress.verdicts import Verdict
from headwise.cost.timing import Timing
from headwise.heads.intervals import Estimate
from headwise.report.judgement import check_lines, judgement_figure, judgement_lines, short_names

MORE = [Estimate(0.0, 0.0, 0.0), Estimate(-0.5, -0.6, -0.4)]


def verdict(parent: int, child: int, **what: object) -> Verdict:
    return Verdict([Score(parent, 100), Score(child, 100)], MORE, 0.1, **what)  # type: ignore[arg-type]


TIME = Timing(0.5, 0.4, 0.1, 5)
FOUND = Judgement(
    names=["runs/판정/parent", "runs/판정/child"],
    tokens=100,
    text_bytes=300,
    text=[TextLoss(2.0, 1.0, 3.0, 0.0, 0.0, 0.0), TextLoss(2.25, float("nan"), 3.5, 0.25, 0.2, 0.3)],
    recall=[
        verdict(100, 50, pairs=4, power=1.0),
        verdict(90, 40, pairs=8, power=1.0),
        verdict(100, 45, pairs=4, power=1.0, gaps=(0, 8)),
        verdict(99, 35, pairs=8, power=1.0, gaps=(8, 16)),
    ],
    passkey=[verdict(10, 10, depth=0.5)],
    length=64,
    footprints=[Footprint(1000, 4096, 4096), Footprint(900, 1024, None)],
    speeds=[Speed(TIME, TIME, 48, 16), Speed(replace(TIME, median=0.25), TIME, 48, 16)],
)


def test_the_lines_say_each_number_and_where_nothing_follows() -> None:
    lines = judgement_lines(FOUND, 80)
    header, *rows = [re.split(r" {2,}", line.strip()) for line in lines]
    cells = {label: told for label, *told in rows}
    assert header == ["parent", "child"]
    assert cells["more than the parent"] == ["+0.2500"]
    assert cells["95 % interval"] == ["± 0.0500"]
    assert cells["where a pair of tokens recurs"] == ["1.0000", "–"]
    assert cells["recall of 4 pairs, evenly"] == ["100.0 %", "50.0 %"]
    assert cells["recall of 8 pairs, evenly"] == ["90.0 %", "cannot judge"]
    assert cells["gap of 8 … 15 tokens"] == ["99.0 %", "35.0 %"]  # of the most pairs only
    assert not [label for label in cells if label.startswith("gap of 0")]
    assert cells["share of the parent's"] == ["25.0 %"]
    assert cells["ms to read 48 tokens"] == ["500.00 ± 10 %", "250.00 ± 10 %"]
    assert max(map(len, lines)) <= 80


def test_what_the_parent_fails_altogether_is_said_in_one_sentence() -> None:
    lines = judgement_lines(FOUND, 40)
    told = "cannot judge, as the parent itself is right in less than 95% there: pass keys (10.0 %)"
    assert " ".join(lines).endswith(told)
    failing = [
        *(verdict(share, 0, pairs=n, power=1.0) for n, share in ((4, 12), (8, 5), (16, 7))),
        *(verdict(share, 0, pairs=n, power=0.01) for n, share in ((4, 12), (16, 100))),
        *(verdict(5, 0, pairs=16, power=p, gaps=(0, 8)) for p in (1.0, 0.01)),
    ]
    passkey = [verdict(99, 50, depth=0.0), verdict(10, 10, depth=0.5)]
    lines = judgement_lines(replace(FOUND, recall=failing, passkey=passkey), 80)
    assert " ".join(lines).endswith(
        "there: recall of 4, 8, 16 pairs, evenly (5.0 % … 12.0 %); recall of 4 pairs, power 0.01 (12.0 %)"
    )
    rows = [line.split("  ")[0] for line in lines if "recall" in line or "pass key" in line][:3]
    assert rows == ["recall of 16 pairs, power 0.01", "pass key at depth 0", "pass key at depth 0.5"]
    assert sum("cannot judge" in line for line in lines) == 3  # the gap, a depth, and the sentence
    fine = replace(FOUND, passkey=[])
    assert not any(line.startswith("cannot judge") for line in judgement_lines(fine, 80))


def test_models_are_named_by_what_tells_them_apart() -> None:
    assert short_names(["a/b/x", "a/b/y"]) == ["x", "y"]
    assert short_names(["a/x", "b/x"]) == ["a/x", "b/x"]
    assert short_names(["x", "x"]) == ["x", "x"]
    assert short_names(["m" * 30]) == ["…" + "m" * 19]


def test_the_picture_leaves_out_children_where_the_parent_misses_the_gate() -> None:
    figure = judgement_figure(FOUND)
    panels = {axes.get_title().split("\n")[0]: axes for axes in figure.axes}
    pairs = panels["Recall by the number of pairs"]
    parent, child = [line for line in pairs.lines if len(line.get_xdata()) == 2 and line.get_marker() == "o"]
    assert list(parent.get_ydata()) == [1.0, 0.9]
    assert child.get_ydata()[0] == 0.5
    assert child.get_ydata()[1] != child.get_ydata()[1]
    assert "cannot judge at 1 of 2 points" in pairs.get_title()
    assert pairs.lines[-1].get_ydata() == [0.1, 0.1]
    assert "\ncannot judge: the parent misses the gate" in panels["Pass keys by depth"].get_title()
    sizes = panels["Size, as a share of the parent's"]
    assert [bar.get_height() for bar in sizes.patches] == [1.0, 0.9, 1.0, 0.25]
    times = panels["Time on this machine, as a share of the parent's"]
    assert [bar.get_height() for bar in times.patches] == [1.0, 0.5, 1.0, 1.0]
    few = judgement_figure(replace(FOUND, recall=[], passkey=[], speeds=None))
    assert [axes.get_title() for axes in few.axes] == [
        "Loss, with 95 % intervals",
        "Size, as a share of the parent's",
    ]


def test_a_check_says_what_follows() -> None:
    good = ProbeCheck(1.0, 0.1, [(0, 0), (0, 1)], [0.9, 0.0], [Silenced(1, 0.2, [0.9, 1.0, 1.0])])
    lines = check_lines(good)
    assert lines[2].split() == ["1", "20.0", "%", "100.0", "%", "(90.0", "%", "…", "100.0", "%)"]
    assert "asks for what retrieval heads do" in lines[-1]
    assert "is not shown" in check_lines(replace(good, steps=[Silenced(1, 0.2, [0.3, 0.4, 0.3])]))[-1]
    assert "says nothing" in check_lines(replace(good, full=0.5))[-1]
