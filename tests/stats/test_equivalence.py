from __future__ import annotations

import math
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trc2.errors import UserError
from trc2.stats.equivalence import Verdict, decide, margin_from_aa, tost, without_largest
from trc2.stats.intervals import interval_of
from trc2.stats.paired import PairedDifference, compare_all, paired_difference

DIFFERENCES = st.lists(st.floats(-10, 10).filter(lambda x: abs(x) > 1e-6), min_size=1, max_size=8)


def difference(*values: float) -> PairedDifference:
    return paired_difference(dict(enumerate(values)), dict.fromkeys(range(len(values)), 0.0))


def test_the_margin_of_one_pair_is_its_difference() -> None:
    assert margin_from_aa([-0.3]) == pytest.approx(0.3)  # z_{0.975}² is χ²_{1; 0.95}


def test_two_pairs_have_a_closed_form() -> None:
    """χ²_2 is exponential: its quantile is −2 ln(1 − p)."""
    assert margin_from_aa([3.0, 4.0]) == pytest.approx(1.959964 * 5 / math.sqrt(-2 * math.log(0.05)), rel=1e-6)


def test_the_factors_of_the_docstring() -> None:
    for n, margin in ((3, 1.21), (5, 1.32), (10, 1.45)):
        assert margin_from_aa([1.0] * n) == pytest.approx(margin, abs=0.005)


@given(DIFFERENCES, st.floats(0.01, 100))
@settings(deadline=None)
def test_the_margin_knows_no_sign_and_stretches_with_the_values(d: list[float], k: float) -> None:
    margin = margin_from_aa(d)
    assert margin_from_aa([-x for x in d]) == margin_from_aa(sorted(d)) == margin
    assert margin_from_aa([k * x for x in d]) == pytest.approx(k * margin)
    assert margin > 0


def test_aa_differences_that_measure_nothing_are_refused() -> None:
    with pytest.raises(UserError, match="0 A/A differences"):
        margin_from_aa([])
    with pytest.raises(UserError, match="All 3 A/A differences are 0"):
        margin_from_aa([0.0, 0.0, -0.0])
    assert math.isnan(margin_from_aa([0.1, math.nan]))
    assert math.isnan(margin_from_aa([0.1, math.inf]))


def test_tost_of_three_pairs_by_hand() -> None:
    """Mean 2, sd 1: (5 − 2) · √3 is the nearer side; with two degrees of freedom P(T > t) = ½ (1 − t / √(2 + t²))."""
    t = 3 * math.sqrt(3)
    assert tost(difference(1, 2, 3), 5.0) == pytest.approx(0.5 * (1 - t / math.sqrt(2 + t * t)))
    assert tost(difference(-1, -2, -3), 5.0) == tost(difference(1, 2, 3), 5.0)
    assert tost(difference(1, 2, 3), 2.0) == 0.5  # on the edge
    assert tost(difference(1, 2, 3), 0.5) > 0.5


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=6), st.floats(0, 3))
@settings(deadline=None)
def test_tost_passes_exactly_where_the_ninety_percent_interval_is_within(values: list[float], margin: float) -> None:
    found = difference(*values)
    p, inner = tost(found, margin), interval_of(found.spread, 0.9)
    if found.spread.sd > 0 and abs(p - 0.05) > 1e-9:
        assert (p < 0.05) == (-margin < inner.low and inner.high < margin)


def test_what_is_unknown_is_never_equivalent() -> None:
    assert math.isnan(tost(difference(0.0), 1.0))  # one pair
    assert math.isnan(tost(difference(0.1, 0.1, 0.1), 1.0))  # no spread
    assert math.isnan(tost(difference(0.1, math.nan), 1.0))
    assert math.isnan(tost(difference(0.1, 0.2), math.nan))
    assert tost(difference(0.0, 0.0), 0.1) == 0
    assert tost(difference(0.0, 0.0), 0.0) == 1
    with pytest.raises(UserError, match="negative"):
        tost(difference(0.0, 0.0), -1.0)


def test_one_pair_that_went_astray_does_not_widen_the_margin() -> None:
    usual = [-0.025, 0.025, -0.037, -0.022, -0.041]
    assert without_largest([*usual, 0.358]) == usual
    assert without_largest([*usual, -0.358]) == usual
    assert margin_from_aa(without_largest([*usual, 0.358])) == margin_from_aa(usual)
    assert without_largest([0.1, -0.2]) == [0.1, -0.2]  # of two, neither is known to be the odd one
    assert len(without_largest([0.1, math.nan, 0.2])) == 3  # a broken one is for the margin to refuse


@given(st.lists(st.floats(-10, 10).filter(lambda x: abs(x) > 1e-6), min_size=1, max_size=12))
def test_leaving_the_largest_out_only_narrows_the_margin(differences: list[float]) -> None:
    assert margin_from_aa(without_largest(differences)) <= margin_from_aa(differences) * (1 + 1e-12)


CLEAR, SMALL, NOISY = (-1.0, -1.1, -0.9), (0.01, -0.01, 0.005), (-1.0, 0.5, 2.0)


@pytest.mark.parametrize(
    ("values", "margin", "direction", "verdict"),
    [
        (CLEAR, 0.2, "min", Verdict.better),
        (CLEAR, 0.2, "max", Verdict.worse),
        ([-value for value in CLEAR], 0.2, "min", Verdict.worse),
        (SMALL, 0.2, "min", Verdict.equivalent),
        (NOISY, 0.2, "min", Verdict.undecided),
        (SMALL, None, "min", Verdict.undecided),  # without a margin nothing is equivalent
        (SMALL, math.nan, "min", Verdict.undecided),
        (CLEAR, 5.0, "min", Verdict.equivalent),  # a certain difference within the margin
        ([5.0], 100.0, "min", Verdict.undecided),  # one pair, a broken run, no spread
        ([1.0, math.nan, 1.0], 100.0, "min", Verdict.undecided),
        ([0.3, 0.3, 0.3], 100.0, "min", Verdict.undecided),
    ],
)
def test_each_verdict_has_its_case(
    values: list[float], margin: float | None, direction: Literal["min", "max"], verdict: Verdict
) -> None:
    assert decide(difference(*values), margin, direction=direction) is verdict


def test_the_corrected_p_decides_not_the_raw_one() -> None:
    base, zero = dict(enumerate((-1.0, -1.3, -0.7))), dict.fromkeys(range(3), 0.0)
    noise = {f"noise {i}": dict(enumerate((-2.0, 0.0, i / 9))) for i in range(9)}
    alone, among = compare_all(base, {"zero": zero})["zero"], compare_all(base, {"zero": zero, **noise})["zero"]
    assert alone.p == among.p < 0.05 < among.p_holm
    assert decide(alone, None, direction="min") is Verdict.better
    assert decide(among, None, direction="min") is Verdict.undecided


@given(st.lists(st.floats(-1, 1), min_size=3, max_size=3), st.floats(0, 2), st.sampled_from(["min", "max"]))
@settings(deadline=None)
def test_each_verdict_needs_its_test(values: list[float], margin: float, direction: Literal["min", "max"]) -> None:
    found = difference(*values)
    verdict = decide(found, margin, direction=direction)
    if verdict is Verdict.equivalent:
        assert tost(found, margin) < 0.05
    elif verdict is not Verdict.undecided:
        assert found.p_holm < 0.05
        assert (verdict is Verdict.better) == ((found.mean < 0) == (direction == "min"))
