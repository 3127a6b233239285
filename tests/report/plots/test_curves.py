"""What a line over several seeds is, and the band around it."""

from __future__ import annotations

import math

import pytest

from trc2.report.plots.curves import Spread, average

CURVES = [[(0, 100.0), (50, 10.0), (75, 3.0)], [(0, 400.0), (50, 1000.0)]]


def test_a_mean_on_a_logarithmic_axis_is_that_of_the_logarithms() -> None:
    found = average(CURVES, is_log=True)
    assert [(step, round(middle, 9)) for step, middle, _, _ in found] == [(0, 200), (50, 100)]
    assert [middle for _, middle, _, _ in average(CURVES)] == [250, 505]


def test_the_band_of_scores_is_a_standard_error_and_that_of_areas_a_standard_deviation() -> None:
    curves = [[(0, 1.0)], [(0, 2.0)], [(0, 6.0)]]
    deviation = math.sqrt((4 + 1 + 9) / 2)
    for spread, half in ((Spread.error, deviation / math.sqrt(3)), (Spread.deviation, deviation)):
        assert average(curves, spread) == [(0, 3.0, pytest.approx(3 - half), pytest.approx(3 + half))]


def test_a_band_on_a_logarithmic_axis_reaches_as_far_up_as_down() -> None:
    (first, _) = average(CURVES, is_log=True)
    # of two values the standard error is half their distance: 100 and 400 themselves
    assert first == (0, pytest.approx(200), pytest.approx(100), pytest.approx(400))


def test_a_broken_value_breaks_mean_and_band() -> None:
    for broken in (math.nan, math.inf, 0.0, -1.0):
        ((_, *numbers),) = average([[(0, broken)], [(0, 8.0)]], is_log=True)
        assert all(map(math.isnan, numbers))


def test_one_seed_has_a_line_and_no_band() -> None:
    ((_, middle, low, high),) = average([[(0, 8.0)]])
    assert middle == 8
    assert math.isnan(low)
    assert math.isnan(high)
