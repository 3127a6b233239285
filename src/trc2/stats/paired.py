"""Comparisons of two configurations on the same seeds and orders, pair by pair, and families of them."""

from __future__ import annotations

import math
import sys
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from trc2.errors import UserError, brief
from trc2.stats.intervals import Interval, Moments, interval_of, moments, t_above

Key = TypeVar("Key", bound=Hashable)  # (seed, order): runs with equal keys form a pair


@dataclass(frozen=True)
class PairedDifference:
    """The mean of a − b over pairs, its interval and its p-value. `p_holm` is p until a family corrects it."""

    spread: Moments  # of the differences
    interval: Interval
    p: float
    p_holm: float

    @property
    def mean(self) -> float:
        return self.spread.mean

    @property
    def n(self) -> int:
        return self.spread.n


def paired_difference(a: Mapping[Key, float], b: Mapping[Key, float]) -> PairedDifference:
    """How much a is above b on equal seeds and orders: d = a − b, t = mean(d) · √n / sd(d), p = 2 P(T_{n−1} > |t|).

    The effect of a seed on both sides cancels. Runs without a partner are left out. One pair has neither interval nor
    p-value (NaN). A value that is not finite makes everything NaN.

    If all differences are 0 up to rounding, p is 1. If all are the same other number, p and bounds are NaN: rounded
    scores often agree by accident. Pairs count as independent, so several orders of one seed must be averaged first.
    """
    shared = [key for key in a if key in b]
    if not shared:
        raise UserError(
            f"{len(a)} and {len(b)} runs form no pairs: pairs need equal (seed, order), "
            f"but there are {_list_keys(a)} and {_list_keys(b)}, so run both with the same seeds."
        )
    differences = [float(a[key] - b[key]) for key in shared]
    spread = moments(differences)
    is_same = False
    if spread.n > 1 and not math.isnan(spread.mean):
        rounding = 8 * sys.float_info.epsilon * max(abs(value) for key in shared for value in (a[key], b[key]))
        is_same = max(map(abs, differences)) <= rounding
        if max(differences) - min(differences) <= rounding:
            spread = replace(spread, sd=0.0 if is_same else math.nan)
    p = 1.0 if is_same else math.nan
    if not is_same and not math.isnan(spread.sd):
        p = 2 * t_above(abs(spread.mean) / spread.standard_error, spread.n - 1)
    return PairedDifference(spread, interval_of(spread), p, p)


def _list_keys(runs: Mapping[Key, float]) -> str:
    return brief(", ".join(map(str, runs)) or "none", limit=60)


def holm(pvalues: Mapping[str, float]) -> dict[str, float]:
    """p-values that may all be read at once: with m sorted ones, p̃_(i) = max_{j ≤ i} min(1, (m − j + 1) p_(j)).

    The probability that any true "no difference" falls below 0.05 is then at most 5 %, however the tests depend on
    each other. NaN stays NaN and is not counted.
    """
    for name, p in pvalues.items():
        if p < 0 or p > 1:
            raise UserError(f"The p-value of '{name}' is {p}: a probability between 0 and 1 is needed, check the test.")
    tested = sorted((name for name in pvalues if not math.isnan(pvalues[name])), key=lambda name: pvalues[name])
    adjusted = dict.fromkeys(pvalues, math.nan)
    largest = 0.0
    for left, name in zip(range(len(tested), 0, -1), tested, strict=True):
        largest = max(largest, min(1.0, left * pvalues[name]))
        adjusted[name] = largest
    return adjusted


def compare_all(
    reference: Mapping[Key, float], others: Mapping[str, Mapping[Key, float]]
) -> dict[str, PairedDifference]:
    """The reference minus each of the others, with p-values corrected for their number (Holm).

    All comparisons of one table or sentence belong into one call. Intervals are not corrected: an interval may
    exclude 0 although p_holm is above 0.05, and then p_holm decides.
    """
    differences = {}
    for name, other in others.items():
        try:
            differences[name] = paired_difference(reference, other)
        except UserError as error:
            raise UserError(f"'{name}' cannot be compared: {error}") from None
    corrected = holm({name: difference.p for name, difference in differences.items()})
    return {name: replace(difference, p_holm=corrected[name]) for name, difference in differences.items()}
