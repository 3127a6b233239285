"""Mean and spread of a few numbers, in which a broken number is not lost."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from trc2.errors import UserError


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
