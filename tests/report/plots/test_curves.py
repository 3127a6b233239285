"""What a line over several seeds is."""

from __future__ import annotations

import math

from trc2.report.plots.curves import average


def test_a_mean_on_a_logarithmic_axis_is_that_of_the_logarithms() -> None:
    curves = [[(0, 100.0), (50, 10.0), (75, 3.0)], [(0, 400.0), (50, 1000.0)]]
    found = average(curves, is_log=True)
    assert [(step, round(middle, 9), low, high) for step, middle, low, high in found] == [
        (0, 200, 100, 400),
        (50, 100, 10, 1000),
    ]
    assert [middle for _, middle, _, _ in average(curves)] == [250, 505]


def test_a_broken_value_breaks_the_mean_and_not_the_band() -> None:
    for broken in (math.nan, math.inf, 0.0, -1.0):
        ((_, middle, low, high),) = average([[(0, broken)], [(0, 8.0)]], is_log=True)
        assert math.isnan(middle)
        assert high == 8
        assert low in (8, broken)
