"""Names in figures: beside their points, legible, and not on the lines that belong to the points."""

from __future__ import annotations

from itertools import pairwise

import pytest

from trc2.system.plot_style import Figure, label_points, style

PLACES = {"a": (0.1, 0.5), "b": (0.11, 0.5), "c": (0.12, 0.49), "d": (0.9, 0.2)}
POINTS = [(x, y, name, "#000000") for name, (x, y) in PLACES.items()]


@pytest.mark.parametrize("height", [2.0, 4.0])
def test_names_stand_above_their_whiskers_and_not_on_each_other(height: float) -> None:
    with style():
        figure = Figure("points", "Points", height=height)
        (axes,) = figure.panels
        axes.set_xlim(0.0, 1.0)
        axes.set_ylim(0.0, 1.0)
        axes.errorbar([x for x, *_ in POINTS], [y for _, y, *_ in POINTS], xerr=0.05, yerr=0.05)
        label_points(axes, POINTS)
        figure.lay_out()
        figure.drawing.canvas.draw()
    boxes = {text.get_text(): axes.transAxes.inverted().transform(text.get_window_extent()) for text in axes.texts}
    assert boxes.keys() == PLACES.keys()
    for name in "ad":
        x, y = PLACES[name]
        (left, bottom), (right, _) = boxes[name]
        assert bottom > y - 0.01, "on the horizontal whisker"
        assert right < x or left > x, "on the vertical whisker"
    crowded = sorted((boxes[name][0][1], boxes[name][1][1]) for name in "abc")
    assert all(top <= next_bottom + 0.01 for (_, top), (next_bottom, _) in pairwise(crowded))
