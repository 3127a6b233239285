"""What a number of seeds can find out, before they are run."""

from __future__ import annotations

import math

from trc2.errors import UserError
from trc2.stats.student import noncentral_t_above, t_quantile


def power(effect: float, n: int, comparisons: int = 1, alpha: float = 0.05) -> float:
    """The chance that n pairs show a true difference of `effect` standard deviations of a difference.

    P(|T| > t) for a noncentral T with n − 1 degrees of freedom and centre effect · √n; t belongs to
    alpha / comparisons, Holm's first step, so for one of several comparisons this is the least to expect.
    """
    if n < 2:
        raise UserError(f"n={n} pairs cannot be tested: at least 2 are needed.")
    critical = t_quantile(1 - alpha / comparisons / 2, n - 1)
    centre = abs(effect) * math.sqrt(n)
    return noncentral_t_above(critical, n - 1, centre) + noncentral_t_above(critical, n - 1, -centre)


def detectable(n: int, comparisons: int = 1, chance: float = 0.8, alpha: float = 0.05) -> float:
    """The smallest true difference, in standard deviations of a difference, that n pairs show with this chance."""
    if not alpha < chance < 1:
        raise UserError(f"chance={chance} is out of reach: choose a number between alpha={alpha} and 1.")
    low, high = 0.0, 1.0
    while power(high, n, comparisons, alpha) < chance:
        high *= 2
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if power(middle, n, comparisons, alpha) >= chance else (middle, high)
    return high
