from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trc2.errors import UserError
from trc2.stats.intervals import interval_of, mean_interval, moments

FINITE = st.floats(-1e6, 1e6)
SAMPLES = st.lists(FINITE, min_size=2, max_size=8)


def test_three_and_five_seeds_by_hand() -> None:
    three = mean_interval([1.0, 2.0, 3.0])  # sd 1, t with 2 degrees of freedom 4.302653
    assert (three.mean, three.n) == (2.0, 3)
    assert three.high - 2 == pytest.approx(4.302653 / math.sqrt(3), abs=1e-6)
    five = mean_interval([1.0, 2.0, 3.0, 4.0, 5.0])  # sd √2.5, t 2.776445
    assert (five.low, five.high) == pytest.approx((1.036757, 4.963243), abs=1e-6)
    ninety = interval_of(moments([1.0, 2.0, 3.0]), level=0.9)  # t 2.919986
    assert ninety.high - 2 == pytest.approx(2.919986 / math.sqrt(3), abs=1e-6)


def test_one_value_has_no_interval() -> None:
    one = mean_interval([0.25])
    assert one.mean == 0.25
    assert math.isnan(one.low)
    assert math.isnan(one.high)
    assert not one.is_known


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("n", [0, 1, 4])
def test_a_value_that_is_not_a_number_is_never_dropped(broken: float, n: int) -> None:
    interval = mean_interval([1.0] * n + [broken])
    assert interval.n == n + 1
    assert all(map(math.isnan, (interval.mean, interval.low, interval.high)))


def test_numbers_too_large_to_add_are_not_a_number() -> None:
    assert math.isnan(mean_interval([1.7e308, 1.7e308]).mean)
    assert math.isfinite(mean_interval([1e200, 3e200]).high)  # the squares of these would overflow


def test_no_values_are_refused() -> None:
    with pytest.raises(UserError, match="0 values"):
        mean_interval([])


@given(SAMPLES)
@settings(deadline=None)
def test_the_interval_contains_the_mean_and_grows_with_the_level(values: list[float]) -> None:
    narrow, wide = interval_of(moments(values), 0.9), mean_interval(values)
    assert wide.low <= narrow.low <= narrow.mean <= narrow.high <= wide.high


@given(SAMPLES, st.randoms(use_true_random=False))
@settings(deadline=None)
def test_the_order_of_the_values_changes_no_bit(values: list[float], rng: object) -> None:
    shuffled = list(values)
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    assert mean_interval(shuffled) == mean_interval(values)


@given(st.lists(st.integers(-1000, 1000), min_size=2, max_size=8))
def test_mean_and_spread_are_those_of_exact_arithmetic(values: list[int]) -> None:
    mean = Fraction(sum(values), len(values))
    variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    known = moments(values)
    assert known.mean == pytest.approx(float(mean))
    assert known.sd == pytest.approx(math.sqrt(variance))
    assert known.standard_error == pytest.approx(math.sqrt(variance / len(values)))
