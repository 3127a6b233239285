"""When "no difference" may be said: a margin that repetition sets, and a test that must be passed.

A/A runs are two runs of one setting that differ only in what should not matter: in reports their replay draws. Their
differences are what this experiment does when nothing was changed. By symmetry they have mean 0, so n of them give n
degrees of freedom:

    d ~ N(0, σ²),   Σd² / σ² ~ χ²_n,   δ = z_{0.975} σ: 95 % of A/A differences are within ±δ.

δ is not known, only bounded, and which bound is the careful one depends on the claim:

    claim                        careful is   bound
    "equivalent, within ±δ"      narrow       margin_from_aa:  z √(Σd² / χ²_{n; 0.95}) ≤ δ   with confidence 95 %
    "more than repeating does"   wide         noise_floor:     z √(Σd² / χ²_{n; 0.05}) ≥ δ   with confidence 95 %

Using the wide bound as a margin would make equivalence easier with less data: it is 2.9 times the estimate of δ with
three pairs and 16 times with one pair. With the narrow bound, fewer A/A pairs make "equivalent" harder to earn.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Literal

from trc2.errors import UserError
from trc2.stats.intervals import chi2_quantile, normal_quantile, t_above
from trc2.stats.paired import PairedDifference


def margin_from_aa(differences: Iterable[float], coverage: float = 0.95, confidence: float = 0.95) -> float:
    """The difference below which two settings may be called equivalent: z √(Σd² / χ²_{n; confidence}).

    Promised, for normal differences from disjoint pairs (no run is in two of them): with `confidence` the margin is at
    most δ, what `coverage` of A/A differences stay within. So a setting truly δ or more away passes `tost` in at most
    (1 − confidence) + 0.05 = 10 % of cases, however few or noisy its pairs; in simulations it was 5 %. One pair is
    enough: with the defaults the margin is then that one |d|; 3, 5, 10 pairs give 1.2, 1.3, 1.4 times √(Σd² / n).

    The sign of a difference means nothing here. NaN or infinity gives NaN, a margin nothing passes. Differences that
    are all 0 are refused: they are what the same seed gives, and measure nothing.
    """
    return _bound(differences, coverage, confidence)


def without_largest(differences: Sequence[float]) -> list[float]:
    """A/A differences for a margin: of three or more, all but the largest.

    One pair that went astray, such as a run that was slow to begin, would alone widen what counts as equal: squares
    add up. Leaving it out can only narrow the margin, so the promise of `margin_from_aa` stands. `noise_floor` is to
    be wide, and takes them all.
    """
    known = list(differences)
    if len(known) < 3 or not all(map(math.isfinite, known)):
        return known
    known.remove(max(known, key=abs))
    return known


def noise_floor(differences: Iterable[float], coverage: float = 0.95, confidence: float = 0.95) -> float:
    """The difference that repetition alone does not explain, of one pair: z √(Σd² / χ²_{n; 1 − confidence}).

    Promised: with `confidence` it is at least δ, and one more A/A pair is beyond it in at most 1 − coverage of cases.
    It is for single runs, where there is no interval. It is never a margin: `margin_from_aa` is.
    """
    return _bound(differences, coverage, 1 - confidence)


def _bound(differences: Iterable[float], coverage: float, probability: float) -> float:
    known = [float(difference) for difference in differences]
    if not 0 < coverage < 1 or not 0 < probability < 1:
        raise UserError(f"coverage={coverage} and confidence must lie between 0 and 1: choose 0.95 for both.")
    if not known:
        raise UserError(
            "There are 0 A/A differences: at least 1 is needed, train one setting twice with other replay draws."
        )
    if not any(known):
        raise UserError(
            f"All {len(known)} A/A differences are 0, as the same draws give them: train one setting with others."
        )
    if not all(map(math.isfinite, known)):
        return math.nan
    return (
        normal_quantile((1 + coverage) / 2)
        * math.hypot(*sorted(known))
        / math.sqrt(chi2_quantile(probability, len(known)))
    )


def tost(difference: PairedDifference, margin: float) -> float:
    """The p-value of "the true difference is at least ±margin": p = max(P(T > (m + d) / se), P(T > (m − d) / se)).

    Two one-sided tests; p < 0.05 exactly when the 90 % interval of the difference lies within ±margin. Not found to
    differ is not enough: few or noisy pairs give a wide interval and fail. Where every pair is equal p is 0; without a
    spread or a margin (one pair, NaN) it is NaN. A margin of 0 is passed by nothing.
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
    """The four things that can be said; absence of evidence is `undecided`, never `equivalent`."""

    better = "better"
    worse = "worse"
    equivalent = "equivalent"
    undecided = "undecided"


def decide(difference: PairedDifference, margin: float | None, *, direction: Literal["min", "max"]) -> Verdict:
    """The first side of a difference against the second, when lower ("min") or higher ("max") is better.

    1. `equivalent` only if `tost` within the margin has p < 0.05; without a margin (None) nothing is.
    2. `better` or `worse` only if the Holm-corrected p is below 0.05.
    3. Everything else is `undecided`.

    A difference that is certain and certainly within the margin is `equivalent`: it is there and does not matter.
    Each `equivalent` has its own error of 5 %; only 2. is corrected for the number of comparisons.
    """
    if margin is not None and tost(difference, margin) < ALPHA:
        return Verdict.equivalent
    if difference.p_holm < ALPHA:
        is_lower = difference.mean < 0
        return Verdict.better if is_lower == (direction == "min") else Verdict.worse
    return Verdict.undecided
