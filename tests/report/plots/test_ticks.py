"""Axes can be read: three round ticks or more, whole steps, small changes that look small."""

from __future__ import annotations

import math

import pytest
from matplotlib.figure import Figure

from trc2.report.plots.ticks import linear_ticks, log_ticks, quiet_axis, round_ticks, should_be_log, thousands


@pytest.mark.parametrize(
    ("low", "high"), [(1, 1e6), (300, 4000), (29.5, 40.5), (0.03, 0.0301), (99, 101), (1e-5, 0.9), (7.9, 8.3), (1, 1.5)]
)
def test_a_logarithmic_axis_has_at_least_three_round_ticks(low: float, high: float) -> None:
    ticks = round_ticks(low, high)
    assert 3 <= len(ticks) <= 12
    assert all(low <= tick <= high for tick in ticks)
    assert ticks == sorted(ticks)
    assert len({thousands(tick) for tick in ticks}) == len(ticks)


def test_there_are_no_ticks_where_there_is_no_axis() -> None:
    for low, high in ((0.0, 1.0), (-1.0, 1.0), (1.0, 1.0), (math.nan, 1.0), (1.0, math.inf)):
        assert round_ticks(low, high) == []


@pytest.mark.parametrize("end", [3, 35, 620, 22_000])
def test_steps_are_whole(end: int) -> None:
    axes = Figure().subplots()
    axes.plot([0, end], [1, 2])
    linear_ticks(axes.xaxis, whole=True)
    ticks = [tick for tick in axes.get_xticks() if 0 <= tick <= end]
    assert len(ticks) >= 3
    assert all(tick == int(tick) for tick in ticks)


def test_a_dip_of_two_percent_does_not_fill_an_axis() -> None:
    axes = Figure().subplots()
    quiet_axis(axes, [1.0, 0.98, 1.0])
    low, high = axes.get_ylim()
    assert high - low >= 0.25
    quiet_axis(axes, [0.1, 1.0])
    assert axes.get_ylim()[0] <= 0


def test_axes_of_odd_values_can_be_drawn() -> None:
    axes = Figure().subplots()
    quiet_axis(axes, [math.nan])
    quiet_axis(axes, [0.0, 0.0])
    log_ticks(axes)
    assert not should_be_log([])
    assert not should_be_log([0.0, 10.0])
    assert should_be_log([1.0, math.nan, 10.0])


def test_large_numbers_are_short() -> None:
    assert [thousands(value) for value in (950.0, 1500.0, 2.5e6, -3e9, 0.03)] == ["950", "1.5k", "2.5M", "−3G", "0.03"]
