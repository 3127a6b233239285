"""The interval around a mean over seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from trc2.errors import UserError
from trc2.stats.moments import Moments, moments
from trc2.stats.student import t_quantile


@dataclass(frozen=True)
class Interval:
    """A mean with the range that `level` of such ranges would have the truth in; NaN bounds where there is none."""

    mean: float
    low: float
    high: float
    n: int
    level: float = 0.95

    @property
    def is_known(self) -> bool:
        """Whether there are bounds at all: not for one run, nor when a value is not a number."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    def __str__(self) -> str:
        return f"{number(self.mean, self)} ({bounds(self)})"


def mean_interval(values: Iterable[float], level: float = 0.95) -> Interval:
    """The mean over seeds and how well it is known: mean ± t_{n−1} · sd / √n, Student's t.

    With three seeds t is 4.30, not the 1.96 of a normal distribution: an interval with 1.96 would hold the truth in
    81 % of cases instead of 95 %. One value has no interval: its bounds are NaN. NaN or infinity among the values makes
    everything NaN. Equal values give a point, which says that they are equal and no more.
    """
    return interval_of(moments(values), level)


def interval_of(known: Moments, level: float = 0.95) -> Interval:
    """The same from mean, sd and n."""
    if not 0 < level < 1:
        raise UserError(f"level={level} is no confidence level: choose a number between 0 and 1, such as 0.95.")
    if known.n == 1:
        return Interval(known.mean, math.nan, math.nan, 1, level)
    half = t_quantile((1 + level) / 2, known.n - 1) * known.standard_error
    return Interval(known.mean, known.mean - half, known.mean + half, known.n, level)


def bounds(interval: Interval) -> str:
    """What to write behind a mean: the bounds and n, or why there are none."""
    if interval.is_known:
        low, high = number(interval.low, interval), number(interval.high, interval)
        return f"{100 * interval.level:g} % CI {low} to {high}, n = {interval.n}"
    return f"n = {interval.n}: no interval"


def number(value: float, interval: Interval) -> str:
    """A number with as many digits as its interval supports: two of the interval's half width."""
    half = (interval.high - interval.low) / 2
    if not math.isfinite(value):
        text = str(value)
    elif math.isfinite(half) and half > 0 and 1e-6 < half < 1e6 and abs(value) < 1e9:
        text = f"{value:.{max(0, 1 - math.floor(math.log10(half)))}f}"
    else:
        text = f"{value:.3g}"
    return text.replace("-", "−")
