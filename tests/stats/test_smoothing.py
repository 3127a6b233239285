from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trc2.errors import UserError
from trc2.stats.smoothing import gaussian_smooth

STEPS = [0, 10, 15, 100, 1000]
VALUES = st.lists(st.floats(-100, 100), min_size=1, max_size=30)


def values(series: list[tuple[float, float]]) -> list[float]:
    return [value for _, value in series]


def plain(given_values: list[float], sigma: float) -> list[float]:
    """The equation as loops."""
    out = []
    for i in range(len(given_values)):
        weights = [
            math.exp(-((i - j) ** 2) / (2 * sigma**2)) * (abs(i - j) <= 4 * sigma) for j in range(len(given_values))
        ]
        out.append(sum(w * v for w, v in zip(weights, given_values, strict=True)) / sum(weights))
    return out


@given(VALUES, st.floats(0.1, 50))
@settings(deadline=None)
def test_it_is_the_equation(given_values: list[float], sigma: float) -> None:
    found = values(gaussian_smooth(list(enumerate(given_values)), sigma))
    assert found == pytest.approx(plain(given_values, sigma), abs=1e-9)


def test_three_points_by_hand() -> None:
    w = math.exp(-0.5)
    found = gaussian_smooth([(0, 0.0), (10, 1.0), (500, 0.0)], 1.0)
    assert [step for step, _ in found] == [0, 10, 500]
    assert values(found) == pytest.approx([w / (1 + w + math.exp(-2)), 1 / (1 + 2 * w), w / (1 + w + math.exp(-2))])


@given(VALUES, st.floats(0, 50))
@settings(deadline=None)
def test_it_stays_within_the_values_and_turns_with_the_series(given_values: list[float], sigma: float) -> None:
    found = values(gaussian_smooth(list(enumerate(given_values)), sigma))
    assert all(min(given_values) - 1e-9 <= value <= max(given_values) + 1e-9 for value in found)
    back = values(gaussian_smooth(list(enumerate(reversed(given_values))), sigma))
    assert back[::-1] == pytest.approx(found, abs=1e-9)


def test_the_edges_do_not_sink() -> None:
    assert values(gaussian_smooth([(step, 7.0) for step in STEPS], 2.0)) == pytest.approx([7.0] * 5)


def test_sigma_zero_and_no_points_change_nothing() -> None:
    series = [(step, float(step)) for step in STEPS]
    assert gaussian_smooth(series, 0.0) == series
    assert gaussian_smooth([], 3.0) == []


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_what_is_not_a_number_spoils_its_reach_and_no_more(broken: float) -> None:
    found = values(gaussian_smooth([(i, broken if i == 20 else 1.0) for i in range(40)], 1.0))
    assert [i for i, value in enumerate(found) if math.isnan(value)] == list(range(16, 25))


def test_steps_that_do_not_ascend_and_negative_widths_are_refused() -> None:
    with pytest.raises(UserError, match="Step 5 comes after step 5"):
        gaussian_smooth([(5, 1.0), (5, 2.0)], 1.0)
    for sigma in (-1.0, math.nan, math.inf):
        with pytest.raises(UserError, match="no width"):
            gaussian_smooth([(5, 1.0)], sigma)
