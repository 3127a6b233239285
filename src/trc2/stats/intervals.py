"""Means over repeated runs: mean and spread, the interval around a mean, and which runs may be averaged."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from scipy import special

from trc2.errors import UserError, brief

T = TypeVar("T")
Seed = TypeVar("Seed", bound=Hashable)
Order = TypeVar("Order", bound=Hashable)


@dataclass(frozen=True)
class Moments:
    """Mean, standard deviation and count; the deviation of one number is NaN, which is to say unknown."""

    mean: float
    sd: float
    n: int

    @property
    def standard_error(self) -> float:
        """sd / √n: how far the mean of n runs is from the mean of all."""
        return self.sd / math.sqrt(self.n)


def moments(values: Iterable[float]) -> Moments:
    """Summarise repeated runs: mean = Σx / n, sd² = Σ(x − mean)² / (n − 1).

    NaN or infinity among the values makes mean and sd NaN: a run that broke must not vanish from an average.
    The order of the values changes nothing, not even the last bit.
    """
    known = [float(value) for value in values]
    n = len(known)
    if n == 0:
        raise UserError("There are 0 values to average: at least 1 run is needed, check which runs were selected.")
    try:
        mean = math.fsum(known) / n if all(map(math.isfinite, known)) else math.nan
    except OverflowError:  # finite each, but not their sum
        mean = math.nan
    if math.isnan(mean) or n == 1:
        return Moments(mean, math.nan, n)
    # hypot is √Σx² that neither overflows nor underflows; it rounds by order, hence the sort.
    return Moments(mean, math.hypot(*sorted(value - mean for value in known)) / math.sqrt(n - 1), n)


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


def require_equal(values: Mapping[str, T], what: str = "length") -> T:
    """The one value all runs share; names the odd run otherwise, since a truncated run would bend an average.

    The odd one is whoever differs from the value most runs have; of two runs it is the second.
    """
    if not values:
        raise UserError(f"There are 0 runs whose {what} could be compared: select at least 1.")
    counts = [sum(1 for other in values.values() if other == value) for value in values.values()]
    usual, common = list(values.items())[counts.index(max(counts))]
    odd = {name: value for name, value in values.items() if value != common}
    if odd:
        told = ", ".join(f"{brief(repr(value), 60)} in '{name}'" for name, value in list(odd.items())[:3])
        more = f" and {len(odd) - 3} more" if len(odd) > 3 else ""
        raise UserError(
            f"The {what} is {told}{more}, but {brief(repr(common), 60)} in '{usual}': only equal runs are averaged; "
            f"finish {'it' if len(odd) == 1 else 'them'} or leave {'it' if len(odd) == 1 else 'them'} out."
        )
    return common


def average_orders(runs: Mapping[tuple[Seed, Order], float]) -> dict[Seed, float]:
    """One number per seed, the mean over its task orders, so that seeds are what is counted.

    Five orders of one seed share its initial weights: as five independent pairs they would make a test too sure.
    Every seed must have the same orders.
    """
    orders: dict[Seed, set[Order]] = {}
    for seed, order in runs:
        orders.setdefault(seed, set()).add(order)
    require_equal({f"seed {seed}": sorted(map(str, known)) for seed, known in orders.items()}, "list of orders")
    return {seed: moments(runs[seed, order] for order in known).mean for seed, known in orders.items()}


# ---------------------------------------------------------------------------------------------------- distributions


def t_quantile(probability: float, df: int) -> float:
    """The value that a Student t variable of `df` degrees of freedom stays below with this probability."""
    return float(special.stdtrit(df, probability))


def t_above(t: float, df: int) -> float:
    """P(T > t). Taken from the lower tail of −t, so that small probabilities keep their digits."""
    return float(special.stdtr(df, -t))


def chi2_quantile(probability: float, df: int) -> float:
    """The value that a sum of `df` squared standard normals stays below with this probability."""
    return float(special.chdtri(df, 1 - probability))


def normal_quantile(probability: float) -> float:
    """The value that a standard normal variable stays below with this probability."""
    return float(special.ndtri(probability))
