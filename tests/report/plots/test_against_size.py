"""Bars of scores by width."""

from __future__ import annotations

from pathlib import Path

from tests.report.invented import invent_run
from trc2.report.evidence import Evidence
from trc2.report.plots.against_size import scores_by_width
from trc2.report.scope import Scope


def test_bars_stand_on_the_axis_and_no_whisker_flattens_them(tmp_path: Path) -> None:
    for seed in (0, 1):  # two seeds that differ much: an interval many times the bar, and below 0
        invent_run(tmp_path / f"wide{seed}", "lab_trc2", [f"train.seed={seed}"], noise=0.5)
    figure = scores_by_width(Scope(Evidence.of([tmp_path]))).figure
    linear = [axes for axes in figure.axes if axes.get_yscale() == "linear" and axes.patches]
    assert linear
    tops = [max(bar.get_height() for bar in axes.patches) for axes in linear]
    assert [axes.get_ylim()[0] for axes in linear] == [0.0] * len(linear)
    assert all(axes.get_ylim()[1] <= 2.001 * top for axes, top in zip(linear, tops, strict=True))
    whiskers = [path.get_extents() for axes in linear for lines in axes.collections for path in lines.get_paths()]
    assert min(box.y0 for box in whiskers) < 0  # the interval itself is not changed
