"""Two settings compared on the same seeds and orders, one pair at a time, and many such comparisons at once."""

from __future__ import annotations

import math
import sys
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from trc2.errors import UserError, brief
from trc2.stats.intervals import Interval, Moments, interval_of, moments, t_above

Key = TypeVar("Key", bound=Hashable)  # what makes two runs partners: (seed, order)


@dataclass(frozen=True)
class PairedDifference:
    """The mean of a − b over pairs, its interval and its p-value; `p_holm` is p until a family corrects it."""

    spread: Moments  # of the differences
    interval: Interval
    p: float
    p_holm: float
    unpaired: int  # runs that had no partner and were left out

    @property
    def mean(self) -> float:
        return self.spread.mean

    @property
    def n(self) -> int:
        return self.spread.n


def paired_difference(a: Mapping[Key, float], b: Mapping[Key, float], level: float = 0.95) -> PairedDifference:
    """How much a is above b on equal seeds and orders: d = a − b, t = mean(d) · √n / sd(d), p = 2 P(T_{n−1} > |t|).

    What a seed does to both sides cancels, so fewer runs decide more. Runs without a partner are counted, not used.
    One pair has neither interval nor p-value (NaN). A value that is not a number makes everything NaN.

    Differences that are equal to the last bits have no spread to test against. Where all are 0, p is 1; where all are
    the same other number, p and bounds are NaN instead of a certainty that two rounded scores would fake.
    Pairs count as independent: of several orders per seed take `average_orders` first.
    """
    shared = [key for key in a if key in b]
    if not shared:
        raise UserError(
            f"None of {len(a)} and {len(b)} runs are partners: pairs need equal (seed, order), "
            f"but there are {_some(a)} and {_some(b)}; run both with the same seeds."
        )
    differences = [float(a[key] - b[key]) for key in shared]
    known = moments(differences)
    is_same = False
    if known.n > 1 and not math.isnan(known.mean):
        rounding = 8 * sys.float_info.epsilon * max(abs(value) for key in shared for value in (a[key], b[key]))
        is_same = max(map(abs, differences)) <= rounding
        if max(differences) - min(differences) <= rounding:
            known = Moments(known.mean, 0.0 if is_same else math.nan, known.n)
    p = 1.0 if is_same else _two_sided(known)
    unpaired = len(a) + len(b) - 2 * len(shared)
    return PairedDifference(known, interval_of(known, level), p, p, unpaired)


def _two_sided(known: Moments) -> float:
    if known.n == 1 or math.isnan(known.sd):
        return math.nan
    return 2 * t_above(abs(known.mean) / known.standard_error, known.n - 1)


def _some(runs: Mapping[Key, float]) -> str:
    return brief(", ".join(map(str, runs)) or "none", limit=60)


def holm(pvalues: Mapping[str, float]) -> dict[str, float]:
    """p-values that may all be read at once: with m sorted ones, p̃_(i) = max_{j ≤ i} min(1, (m − j + 1) p_(j)).

    The chance that any true "no difference" falls below 0.05 is then at most 5 %, however the tests depend on each
    other. Never weaker than Bonferroni's m · p. NaN stays NaN and is not counted: it can never be called a difference.
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
    reference: Mapping[Key, float], others: Mapping[str, Mapping[Key, float]], level: float = 0.95
) -> dict[str, PairedDifference]:
    """The reference minus each of the others, with p-values corrected for their number (Holm).

    All comparisons that a table or a sentence draws on belong into one call: a family cut into single calls is not
    corrected. Intervals are not: one that excludes 0 can stand beside a p_holm above 0.05, and then p_holm decides.
    """
    found = {}
    for name, other in others.items():
        try:
            found[name] = paired_difference(reference, other, level)
        except UserError as error:
            raise UserError(f"'{name}' cannot be compared: {error}") from None
    corrected = holm({name: difference.p for name, difference in found.items()})
    return {name: PairedDifference(d.spread, d.interval, d.p, corrected[name], d.unpaired) for name, d in found.items()}
