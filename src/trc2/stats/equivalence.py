"""Equivalence of two configurations: a margin from A/A repeats, a test against it, and the four verdicts.

A/A repeats are two runs of one configuration that differ only in something irrelevant, in reports the replay draws.
By symmetry their differences have mean 0, so n of them give n degrees of freedom:

    d ~ N(0, σ²),   Σd² / σ² ~ χ²_n,   δ = z_{0.975} σ: 95 % of A/A differences are within ±δ.

δ is unknown, so the margin is its lower bound: z √(Σd² / χ²_{n; 0.95}) ≤ δ with confidence 95 %. Using the upper bound
would make equivalence easier with less data.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Literal

from scipy import special

from trc2.errors import UserError
from trc2.stats.intervals import normal_quantile, t_above
from trc2.stats.paired import PairedDifference


def margin_from_aa(differences: Iterable[float]) -> float:
    """The difference below which two configurations may be called equivalent: z √(Σd² / χ²_{n; 0.95}).

    For normal differences from disjoint pairs the margin is at most δ in 95 % of cases. So a configuration that is
    truly δ or more away passes `tost` in at most 5 % + 5 % of cases (5 % in simulations).
    The margin of one pair is its |d|; 3, 5, 10 pairs give 1.2, 1.3, 1.4 times √(Σd² / n).

    NaN or infinity gives NaN, a margin that no difference passes. Differences that are all 0 come from equal seeds and
    are refused.
    """
    numbers = [float(difference) for difference in differences]
    if not numbers:
        raise UserError(
            "There are 0 A/A differences: at least 1 is needed, train one setting twice with other replay draws."
        )
    if not any(numbers):
        raise UserError(
            f"All {len(numbers)} A/A differences are 0, as the same draws give them: train one setting with others."
        )
    if not all(map(math.isfinite, numbers)):
        return math.nan
    chi2_quantile = float(special.chdtri(len(numbers), 1 - 0.95))
    return normal_quantile((1 + 0.95) / 2) * math.hypot(*sorted(numbers)) / math.sqrt(chi2_quantile)


def without_largest(differences: Sequence[float]) -> list[float]:
    """A/A differences for a margin: of three or more, all but the largest.

    One run that started slowly would alone widen the margin. Leaving its pair out can only narrow the margin, so
    `margin_from_aa` keeps its promise.
    """
    kept = list(differences)
    if len(kept) >= 3 and all(map(math.isfinite, kept)):
        kept.remove(max(kept, key=abs))
    return kept


def tost(difference: PairedDifference, margin: float) -> float:
    """The p-value of "the true difference is at least ±margin": p = max(P(T > (m + d) / se), P(T > (m − d) / se)).

    Two one-sided tests: p < 0.05 exactly if the 90 % interval of the difference lies within ±margin. If all pairs are
    equal, p is 0. Without a spread or a margin (one pair, NaN), p is NaN.
    """
    if margin < 0:
        raise UserError(f"margin={margin} is negative: choose the largest difference that does not matter.")
    spread = difference.spread
    if math.isnan(spread.sd) or math.isnan(margin):
        return math.nan
    nearest = margin - abs(spread.mean)
    if spread.sd == 0:
        return 0.0 if nearest > 0 else 1.0
    return t_above(nearest / spread.standard_error, spread.n - 1)


ALPHA = 0.05  # of every test here


class Verdict(str, Enum):
    """The four results of a comparison. Absence of evidence is `undecided`, never `equivalent`."""

    better = "better"
    worse = "worse"
    equivalent = "equivalent"
    undecided = "undecided"


def decide(difference: PairedDifference, margin: float | None, *, direction: Literal["min", "max"]) -> Verdict:
    """The verdict on the first side of a difference, if lower ("min") or higher ("max") is better.

    1. `equivalent` if `tost` within the margin has p < 0.05, even if the difference is certain.
    2. `better` or `worse` if the Holm-corrected p is below 0.05.
    3. `undecided` in all other cases.

    Only 2. is corrected for the number of comparisons: each `equivalent` has its own error of 5 %.
    """
    if margin is not None and tost(difference, margin) < ALPHA:
        return Verdict.equivalent
    if difference.p_holm < ALPHA:
        is_lower = difference.mean < 0
        return Verdict.better if is_lower == (direction == "min") else Verdict.worse
    return Verdict.undecided
