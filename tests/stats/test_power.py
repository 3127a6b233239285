from __future__ import annotations

import pytest

from trc2.errors import UserError
from trc2.stats.power import detectable, power


def test_without_an_effect_power_is_alpha() -> None:
    for n in (2, 3, 10):
        assert power(0.0, n) == pytest.approx(0.05, abs=2e-4)
    assert power(0.0, 3, comparisons=10) == pytest.approx(0.005, abs=2e-4)


def test_the_numbers_of_the_statistics_page() -> None:
    """What 80 % of experiments find; alone as in R's power.t.test(n, power = 0.8, type = "paired")."""
    assert [round(detectable(n), 1) for n in (3, 5, 10, 20)] == [3.3, 1.7, 1.0, 0.7]
    assert [round(detectable(n, comparisons=10), 1) for n in (3, 5, 10, 20)] == [10.4, 3.2, 1.5, 0.9]


def test_more_pairs_and_larger_effects_are_found_more_often() -> None:
    assert power(1, 3) < power(2, 3) < power(2, 4) < power(-3, 4)
    assert power(1, 5, comparisons=10) < power(1, 5)
    assert power(detectable(4, chance=0.6), 4) == pytest.approx(0.6)


def test_one_pair_and_impossible_chances_are_refused() -> None:
    with pytest.raises(UserError, match="at least 2"):
        power(1.0, 1)
    with pytest.raises(UserError, match="out of reach"):
        detectable(3, chance=0.01)
