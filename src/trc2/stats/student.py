"""The distributions behind every interval and test here, and the one place that knows scipy."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
from scipy import special


def t_quantile(probability: float, df: int) -> float:
    """The value that a Student t variable of `df` degrees of freedom stays below with this probability."""
    return float(special.stdtrit(df, probability))


def t_above(t: float, df: int) -> float:
    """P(T > t). Taken from the lower tail of −t, so that small probabilities keep their digits."""
    return float(special.stdtr(df, -t))


def noncentral_t_above(t: float, df: int, centre: float) -> float:
    """P(T > t) when the true mean is `centre` standard errors away from 0: the mean of Φ(centre − t s) over s² = χ²/df.

    As a mean over 4,096 quantiles of χ², right to about 10⁻⁴: scipy's own gives NaN for few degrees of freedom.
    """
    return float(special.ndtr(centre - t * _spreads(df)).mean())


@cache
def _spreads(df: int) -> npt.NDArray[np.float64]:
    """Equally likely values of sd / σ, as estimated with `df` degrees of freedom."""
    return np.sqrt(special.chdtri(df, (np.arange(4096) + 0.5) / 4096) / df)


def chi2_quantile(probability: float, df: int) -> float:
    """The value that a sum of `df` squared standard normals stays below with this probability."""
    return float(special.chdtri(df, 1 - probability))


def normal_quantile(probability: float) -> float:
    """The value that a standard normal variable stays below with this probability."""
    return float(special.ndtri(probability))
