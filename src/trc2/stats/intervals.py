"""Means over repeated runs and the intervals around them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from trc2.errors import UserError


@dataclass(frozen=True)
class Moments:
    """Mean, standard deviation and count. The deviation of a single number is unknown, so it is NaN."""

    mean: float
    sd: float
    n: int

    @property
    def standard_error(self) -> float:
        return self.sd / math.sqrt(self.n)


def moments(values: Iterable[float]) -> Moments:
    """mean = Σx / n, sd² = Σ(x − mean)² / (n − 1), independent of the order of the values to the last bit.

    NaN or infinity among the values makes mean and sd NaN: a failed run must not vanish from an average.
    """
    numbers = [float(value) for value in values]
    n = len(numbers)
    if n == 0:
        raise UserError("There are 0 values to average: at least 1 run is needed, check which runs were selected.")
    try:
        mean = math.fsum(numbers) / n if all(map(math.isfinite, numbers)) else math.nan
    except OverflowError:  # each value is finite, but not their sum
        mean = math.nan
    if math.isnan(mean) or n == 1:
        return Moments(mean, math.nan, n)
    # hypot is √Σx² without overflow or underflow. Its rounding depends on the order, hence the sort.
    return Moments(mean, math.hypot(*sorted(number - mean for number in numbers)) / math.sqrt(n - 1), n)


@dataclass(frozen=True)
class Interval:
    """A mean with its confidence interval. The bounds are NaN if there is no interval."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def is_known(self) -> bool:
        """Whether there are bounds: not for one run, nor if a value is not finite."""
        return math.isfinite(self.low) and math.isfinite(self.high)


def mean_interval(values: Iterable[float]) -> Interval:
    """The mean over seeds with Student's 95 % interval: mean ± t_{n−1} · sd / √n.

    With three seeds t is 4.30. An interval with the 1.96 of a normal distribution would contain the true mean in 81 %
    of cases instead of 95 %. The bounds of a single value are NaN. NaN or infinity makes mean and bounds NaN.
    """
    return interval_of(moments(values))


def interval_of(spread: Moments, level: float = 0.95) -> Interval:
    """The same from mean, sd and n."""
    if spread.n == 1:
        return Interval(spread.mean, math.nan, math.nan, 1)
    half = t_quantile((1 + level) / 2, spread.n - 1) * spread.standard_error
    return Interval(spread.mean, spread.mean - half, spread.mean + half, spread.n)


def t_quantile(probability: float, df: int) -> float:
    """Quantile of Student's t distribution with `df` degrees of freedom."""
    from scipy import special  # a third of a second, which training does not need

    return float(special.stdtrit(df, probability))


def t_above(t: float, df: int) -> float:
    """P(T > t), computed from the lower tail of −t so that small probabilities keep their digits."""
    from scipy import special

    return float(special.stdtr(df, -t))


def normal_quantile(probability: float) -> float:
    """Quantile of the standard normal distribution."""
    from scipy import special

    return float(special.ndtri(probability))
