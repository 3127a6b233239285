"""What the docstrings promise, counted over simulated experiments. Beside each, a broken version that is caught.

A rate is compared with its promise ± 4 standard errors of a binomial count. Seeds are fixed: what passes, passes.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import special

from trc2.stats import intervals, paired
from trc2.stats.equivalence import Verdict, decide, margin_from_aa, tost, without_largest
from trc2.stats.intervals import mean_interval, normal_quantile
from trc2.stats.paired import PairedDifference, compare_all, paired_difference

Z = 1.959964
Draws = np.ndarray


def draws(seed: int, *shape: int) -> Draws:
    return np.random.default_rng(seed).standard_normal(shape)


def slack(promise: float, trials: int) -> float:
    return 4 * math.sqrt(promise * (1 - promise) / trials)


def difference(values: Draws) -> PairedDifference:
    return paired_difference(dict(enumerate(values.tolist())), dict.fromkeys(range(len(values)), 0.0))


def rate(values: Draws, happens: Callable[[Draws], bool]) -> float:
    return sum(map(happens, values)) / len(values)


# Intervals


def covers(values: Draws) -> bool:
    interval = mean_interval((5 + 3 * values).tolist())
    return interval.low <= 5 <= interval.high


@pytest.mark.parametrize("n", [2, 3, 5])
def test_the_95_percent_interval_holds_the_truth_in_95_percent_of_cases(n: int) -> None:
    assert rate(draws(n, 2000, n), covers) == pytest.approx(0.95, abs=slack(0.95, 2000))


@pytest.mark.parametrize("n", [3, 5])
def test_the_normal_quantile_in_place_of_students_is_noticed(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervals, "t_quantile", lambda probability, df: normal_quantile(probability))
    found = rate(draws(n, 2000, n), covers)
    assert found < 0.95 - 2 * slack(0.95, 2000)
    if n == 3:
        assert found == pytest.approx(0.81, abs=0.03)  # as mean_interval's docstring says


# The paired test


def is_significant(values: Draws) -> bool:
    return difference(values).p < 0.05


@pytest.mark.parametrize("n", [2, 3, 5])
def test_without_a_difference_one_in_twenty_is_called_one(n: int) -> None:
    assert rate(draws(10 + n, 2000, n), is_significant) == pytest.approx(0.05, abs=slack(0.05, 2000))


def test_the_normal_tail_in_place_of_students_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paired, "t_above", lambda t, df: math.erfc(t / math.sqrt(2)) / 2)
    assert rate(draws(13, 2000, 3), is_significant) > 0.05 + 2 * slack(0.05, 2000)


def power(effect: float, n: int) -> float:
    """P(|T| > t) for a noncentral T: a mean over quantiles of χ², as scipy's own gives NaN for few pairs."""
    spreads = np.sqrt(special.chdtri(n - 1, (np.arange(4096) + 0.5) / 4096) / (n - 1))
    critical, centre = special.stdtrit(n - 1, 0.975), abs(effect) * math.sqrt(n)
    return float(sum(special.ndtr(sign * centre - critical * spreads).mean() for sign in (1, -1)))


@pytest.mark.parametrize("n", [3, 5])
def test_power_rises_with_the_effect_as_computed(n: int) -> None:
    found = [rate(effect + draws(20 + n, 1000, n), is_significant) for effect in (0.0, 1.0, 2.0, 4.0)]
    assert found == sorted(found)
    for effect, seen in zip((0.0, 1.0, 2.0, 4.0), found, strict=True):
        expected = power(effect, n)
        assert seen == pytest.approx(expected, abs=slack(expected, 1000) + 0.001)


def test_a_seed_that_both_sides_share_cancels() -> None:
    """Seeds ten times as noisy as what is compared: pairs find a difference that unpaired means would drown."""
    noise, seeds = draws(31, 2, 500, 3), 10 * draws(32, 500, 3)
    a, b = seeds + noise[0] + 8.0, seeds + noise[1]
    partners = [paired_difference(dict(enumerate(x)), dict(enumerate(y))).p < 0.05 for x, y in zip(a, b, strict=True)]
    strangers = [difference(x - y).p < 0.05 for x, y in zip(a, b[:, ::-1], strict=True)]
    assert np.mean(partners) > 0.9
    assert np.mean(strangers) < 0.3


def test_orders_of_one_seed_are_not_independent_pairs() -> None:
    """A seed moves the difference under all its orders alike: as 15 pairs too sure, as 3 averages right."""
    values = draws(41, 1000, 3, 1) + 0.3 * draws(42, 1000, 3, 5)
    as_pairs = rate(values.reshape(1000, 15), is_significant)

    def by_seed(block: Draws) -> bool:
        return is_significant(block.mean(axis=1))

    assert rate(values, by_seed) == pytest.approx(0.05, abs=slack(0.05, 1000))
    assert as_pairs > 0.3


# Families


def test_of_ten_comparisons_without_a_difference_none_is_called_one_in_95_percent_of_families() -> None:
    trials = 1000
    values = draws(51, trials, 11, 4).tolist()
    corrected = raw = 0
    for reference, *others in values:
        family = compare_all(dict(enumerate(reference)), {str(i): dict(enumerate(x)) for i, x in enumerate(others)})
        corrected += any(found.p_holm < 0.05 for found in family.values())
        raw += any(found.p < 0.05 for found in family.values())
    assert 0 < corrected / trials <= 0.05 + slack(0.05, trials)
    assert raw / trials > 0.2  # without Holm the same families break the promise


# Equivalence


@pytest.mark.parametrize("n", [3, 5])
@pytest.mark.parametrize("sd", [0.05, 0.5])
def test_at_the_edge_of_the_margin_five_percent_are_called_equivalent(n: int, sd: float) -> None:
    edge = 1 + sd * draws(60 + n, 2000, n)
    found = rate(edge, lambda values: tost(difference(values), 1.0) < 0.05)
    assert found <= 0.05 + slack(0.05, 2000)
    if sd == 0.05:  # far from the other edge the test is exact, not only safe
        assert found == pytest.approx(0.05, abs=slack(0.05, 2000))


def test_calling_equivalent_what_is_not_significant_is_noticed() -> None:
    edge = 1 + draws(63, 2000, 3)
    assert rate(edge, lambda values: not is_significant(values)) > 0.5
    assert rate(edge, lambda values: tost(difference(values), 1.0) < 0.05) <= 0.05 + slack(0.05, 2000)


@pytest.mark.parametrize("pairs", [1, 3, 5, 10])
def test_the_margin_is_below_what_aa_pairs_stay_within(pairs: int) -> None:
    """δ is z σ = 1.96 here. The bound is exact."""
    values = draws(70 + pairs, 2000, pairs)
    below = rate(values, lambda aa: margin_from_aa(aa) <= Z)
    assert below == pytest.approx(0.95, abs=slack(0.95, 2000))


@pytest.mark.parametrize("aa_pairs", [1, 3])
def test_a_setting_that_is_delta_away_is_called_equivalent_in_at_most_ten_percent(aa_pairs: int) -> None:
    trials = 600
    aa = draws(80 + aa_pairs, trials, aa_pairs)
    for sd in (0.01, 0.3, 1.0):
        compared = Z + sd * draws(90, trials, 3)
        verdicts = [
            decide(difference(values), margin_from_aa(pairs), direction="min")
            for values, pairs in zip(compared, aa, strict=True)
        ]
        found = verdicts.count(Verdict.equivalent) / trials
        assert found <= 0.10
        assert found <= 0.05 + slack(0.05, trials)  # what the docstring saw in simulations


@pytest.mark.parametrize(
    ("aa_pairs", "n", "share"),
    [(3, 3, 0.07), (3, 5, 0.15), (3, 10, 0.34), (6, 3, 0.13), (6, 5, 0.29), (6, 10, 0.64)],
)
def test_settings_that_do_not_differ_are_called_different_in_at_most_five_percent(
    aa_pairs: int, n: int, share: float
) -> None:
    """And equivalent as often as docs/statistics.md says: with few pairs mostly undecided, and rightly."""
    trials = 1500
    aa, same = draws(101, trials, aa_pairs), draws(102, trials, n)
    margins = [margin_from_aa(without_largest(d.tolist())) for d in aa]
    verdicts = [decide(difference(v), margin, direction="min") for v, margin in zip(same, margins, strict=True)]
    different = (verdicts.count(Verdict.better) + verdicts.count(Verdict.worse)) / trials
    assert 0 < different <= 0.05 + slack(0.05, trials)
    assert verdicts.count(Verdict.equivalent) / trials == pytest.approx(share, abs=slack(share, trials))
