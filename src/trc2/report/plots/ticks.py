"""Axes that can be read: at least three round ticks, whole steps, powers of ten only where they fit."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any


def linear_ticks(axis: Any, *, whole: bool = False) -> None:
    """Three to six round ticks; whole numbers for steps and counts."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=5, min_n_ticks=3, integer=whole, steps=[1, 2, 2.5, 5, 10]))


def log_ticks(axes: Any, which: str = "y") -> None:
    """A logarithmic axis with at least three round ticks, however short it is."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    (axes.set_yscale if which == "y" else axes.set_xscale)("log")
    low, high = axes.get_ylim() if which == "y" else axes.get_xlim()
    axis = axes.yaxis if which == "y" else axes.xaxis
    ticks = round_ticks(low, high)
    if len(ticks) >= 2:
        axis.set_major_locator(FixedLocator(ticks))
        axis.set_major_formatter(FuncFormatter(lambda value, _: thousands(value)))
        axis.set_minor_locator(NullLocator())


def round_ticks(low: float, high: float) -> list[float]:
    """Round numbers between two, from the coarsest series that has at least three there; at most about seven."""
    if not (0 < low < high < math.inf):
        return []
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    every = max(1, (last - first) // 6)
    series: list[list[float]] = [
        [10.0**power for power in range(first, last + 1, every)],
        [m * 10.0**power for power in range(first, last + 1) for m in (1, 3)],
        [m * 10.0**power for power in range(first, last + 1) for m in (1, 2, 5)],
    ]
    for step in (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001):
        size = step * 10.0 ** (last - 1)
        begin, count = math.ceil(low / size), math.floor((high - low) / size) + 2
        if count < 40:
            series.append([(begin + place) * size for place in range(count)])
    for ticks in series:
        inside = [tick for tick in ticks if low <= tick <= high]
        if len(inside) >= 3:
            return inside
    return inside


def thousands(value: float) -> str:
    """1500 → 1.5k"""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{unit}".replace("-", "−")
    return f"{value:.4g}".replace("-", "−")


def tick_words(axis: Any) -> None:
    from matplotlib.ticker import FuncFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: thousands(value)))


def should_be_log(values: Iterable[float]) -> bool:
    """Whether numbers are positive and span more than a factor of five."""
    known = [value for value in values if math.isfinite(value)]
    return bool(known) and min(known) > 0 and max(known) / min(known) > 5


def quiet_axis(axes: Any, values: list[float]) -> None:
    """An axis on which a small change looks small: it spans at least a quarter of the largest value."""
    known = [value for value in values if math.isfinite(value)]
    if known:
        low, high = min(known), max(known)
        least = 0.25 * max(abs(low), abs(high)) or 1.0
        if high - low < least:
            middle = (high + low) / 2
            low, high = middle - least / 2, middle + least / 2
        if 0 <= low < 0.5 * high:
            low = 0.0
        axes.set_ylim(low - 0.03 * (high - low), high + 0.05 * (high - low))
    linear_ticks(axes.yaxis)
