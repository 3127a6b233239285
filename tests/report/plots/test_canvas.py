"""One arm looks the same everywhere, and labels keep apart."""

from __future__ import annotations

import itertools
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tests.report.invented import invent_run
from trc2.report.evidence import Evidence
from trc2.report.plots.canvas import _place, looks, settle, spread, style
from trc2.report.plots.curves import perplexity_curves
from trc2.report.plots.frontier import speed_and_retention, unbeaten
from trc2.report.plots.rankings import forest_of_scores
from trc2.report.scope import Scope


def test_an_arm_has_its_familys_colour_and_marker_and_is_filled_with_replay(tmp_path: Path) -> None:
    for name, strategy in (("trc2", "none"), ("transformer", "none"), ("transformer", "replay_controlled")):
        invent_run(tmp_path / f"{name}_{strategy}", f"lab_{name}", [f"strategy={strategy}"])
    invent_run(tmp_path / "joint", "lab_joint")
    found = looks(Scope(Evidence.of([tmp_path])))
    assert (found["TRC²"].colour, found["TRC²"].marker, found["TRC²"].is_filled) == ("#0072b2", "o", True)
    assert (found["Transformer"].colour, found["Transformer"].marker) == ("#d55e00", "s")
    assert not found["Transformer"].is_filled
    assert found["Transformer + controlled replay"].is_filled
    assert found["Transformer, joint"].line == ":"
    assert len({look.number for look in found.values()}) == len(found)


def test_twenty_arms_with_one_seed_each_can_be_told_apart(tmp_path: Path) -> None:
    for number in range(20):
        rate = f"train.learning_rate={0.001 + 0.0001 * number:.4f}"
        invent_run(tmp_path / str(number), "lab_transformer", [rate], forgets=0.02 * number)
    scope = Scope(Evidence.of([tmp_path]))
    with style():
        for draw in (speed_and_retention, perplexity_curves, forest_of_scores):
            figure = draw(scope).figure
            if figure.legends:
                names = [text.get_text() for text in figure.legends[0].get_texts()]
                assert len(set(names)) == 20


def test_labels_are_moved_apart_and_stay_inside() -> None:
    placed = spread([1.0, 1.0, 1.1, 9.0], 1.0, 0.0, 10.0)
    assert placed == sorted(placed)
    assert all(b - a >= 0.999 for a, b in itertools.pairwise(placed))
    crowded = spread([5.0] * 30, 1.0, 0.0, 10.0)
    assert (crowded[0], crowded[-1]) == (0.0, 10.0)
    assert spread([], 1.0, 0.0, 1.0) == []


def test_the_name_beside_a_point_at_the_edge_stays_on_the_picture() -> None:
    figure = Figure(figsize=(4, 2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    ends = [("rightmost of all arms", "#000000", 1.0, 0.0), ("top", "#000000", 0.0, 1.0), ("a", "#000000", 0.9, 1.0)]
    axes.plot([x for *_, x, _ in ends], [y for *_, y in ends], "o")
    axes.margins(0.01)
    settle(figure)
    _place(axes, ends)
    renderer = figure.canvas.get_renderer()
    for text in (text for text in axes.texts if text.get_text()):
        box = text.get_window_extent(renderer)
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1, text
        assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1, text


def test_the_frontier_holds_what_nothing_beats() -> None:
    points = [(1.0, 5.0), (2.0, 3.0), (3.0, 4.0), (4.0, 1.0), (1.0, 6.0)]
    assert unbeaten(points, "lower", "lower") == [(1.0, 5.0), (2.0, 3.0), (4.0, 1.0)]
    assert unbeaten(points, "higher", "lower") == [(4.0, 1.0)]
