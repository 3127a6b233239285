"""Any number of tasks and runs, and any name, can be drawn."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from tests.report.common import forgets, write_run
from trc2.metrics.forgetting import Stretch
from trc2.report.finished import read_run
from trc2.report.old_figures import (
    at_least,
    changes,
    draw_comparison,
    draw_hippocampus,
    draw_summary,
    label,
    look,
    names,
    plot,
    tidy,
)


def test_looks_are_distinct() -> None:
    looks = [tuple(look(index).values()) for index in range(100)]
    assert len(set(looks)) == 100
    # neighbours differ in more than one way
    assert all(a[0] != b[0] and a[2] != b[2] for a, b in itertools.pairwise(looks))


@pytest.mark.parametrize("count", [1, 3, 9])
def test_any_number_of_tasks_is_drawn(tmp_path: Path, count: int) -> None:
    run = read_run(write_run(tmp_path / "run", count))
    draw_summary(run, tmp_path / "summary.png")
    draw_hippocampus(run, tmp_path / "hippocampus.png")
    draw_comparison([run, run], tmp_path / "comparison.png")
    height, width, _ = imread(tmp_path / "comparison.png").shape
    assert max(height, width) < 2**15
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == [
        "comparison.png",
        "hippocampus.png",
        "summary.png",
    ]


def test_a_hundred_tasks_fit_into_one_picture(tmp_path: Path) -> None:
    draw_summary(read_run(write_run(tmp_path / "run", 100)), tmp_path / "summary.png")
    assert imread(tmp_path / "summary.png").size > 0


def test_nine_and_more_runs_are_drawn(tmp_path: Path) -> None:
    runs = [read_run(write_run(tmp_path / f"run{number}", 2)) for number in range(9)]
    draw_comparison(runs * 4, tmp_path / "comparison.png")
    assert imread(tmp_path / "comparison.png").size > 0


@pytest.mark.parametrize(
    "name", [r"$\frac$", "$x$ $", "_hidden", "日本\N{CJK UNIFIED IDEOGRAPH-9F98}", "a\nb", "x" * 200]
)
def test_any_name_is_drawn(tmp_path: Path, name: str) -> None:
    run = read_run(write_run(tmp_path / name))
    draw_comparison([run, run], tmp_path / "comparison.png")
    assert label(name).strip()
    assert len(label(name)) < 50


@pytest.mark.parametrize("odd", [math.nan, math.inf, 0.0, -1.0])
def test_values_that_are_no_perplexities_leave_a_gap(tmp_path: Path, odd: float) -> None:
    whole = read_run(write_run(tmp_path / "whole", 3, lambda step, task: odd))
    late = read_run(write_run(tmp_path / "late", 3, lambda step, task: odd if step > 10 else forgets(step, task)))
    for run in (whole, late):
        draw_summary(run, run.folder / "summary.png")
    draw_comparison([whole, late], tmp_path / "comparison.png")


def test_names_above_a_panel_do_not_overlap(tmp_path: Path) -> None:
    for count, expected in ((3, ["task0", "task1", "task2"]), (7, [str(n) for n in range(1, 8)])):
        run = read_run(write_run(tmp_path / str(count), count))
        axes = Figure().subplots()
        tidy(axes, run.stretches, names(run.tasks), run.stretches[-1].end, "")
        assert [text.get_text() for text in axes.texts] == expected


def test_tasks_that_are_trained_at_once_share_a_band() -> None:
    axes = Figure().subplots()
    tidy(axes, (Stretch("a", 0, 20), Stretch("b", 0, 20)), names(["a", "b"]), 20, "")
    assert [text.get_text() for text in axes.texts] == ["2 tasks at once"]


def test_the_line_of_a_long_run_has_few_markers(tmp_path: Path) -> None:
    axes = Figure().subplots()
    plot(axes, [(step, 1.0) for step in range(1000)], **look(0))
    assert 1000 / axes.lines[0].get_markevery() <= 50


def test_forgetting_has_its_sign_and_begins_at_zero(tmp_path: Path) -> None:
    better = read_run(write_run(tmp_path / "better", 2, lambda step, task: math.exp(5 - 0.1 * step)))
    assert dict(changes(better, better.stretches[0])) == pytest.approx({10: 0.0, 15: -0.5, 20: -1.0})
    worse = read_run(write_run(tmp_path / "worse", 2, lambda step, task: math.exp(3 + 0.01 * step)))
    assert changes(worse, worse.stretches[0])[-1] == pytest.approx((20, 0.1))
    for run in (better, worse):
        draw_summary(run, run.folder / "summary.png")


def test_next_to_nothing_does_not_fill_an_axis() -> None:
    axes = Figure().subplots()
    axes.plot([0, 1], [0.0, 0.001])
    at_least(axes, 0.1)
    low, high = axes.get_ylim()
    assert low < 0 < 0.1 <= high


def test_the_markers_of_the_first_and_last_step_are_inside(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", 3))
    axes = Figure().subplots()
    tidy(axes, run.stretches, names(run.tasks), 30, "")
    low, high = axes.get_xlim()
    assert low <= -0.02 * 30
    assert high >= 1.02 * 30
    assert all(tick == int(tick) for tick in axes.get_xticks())
