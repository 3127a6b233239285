from __future__ import annotations

import math

import numpy as np
import pytest

from trc2.metrics.paired import paired_rise

CASES = 400


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_by_hand() -> None:
    before, after = np.array([10.0, 20.0]), np.array([11.0, 23.0])
    found = paired_rise(before, after, np.array([10, 10]), rng())
    assert found.value == pytest.approx(math.expm1(4 / 20))
    reach = 12.7062 * math.sqrt(2 / 1 * (1 + 1)) / 20  # Student's, of two: a bootstrap would reach from 0.1 to 0.3
    assert found.low == pytest.approx(math.expm1(0.2 - reach), rel=1e-5)
    assert found.high == pytest.approx(math.expm1(0.2 + reach), rel=1e-5)


def test_documents_that_are_hard_for_both_widen_nothing() -> None:
    hardness = np.linspace(10.0, 500.0, 50)
    tokens = np.full(50, 100)
    found = paired_rise(hardness, hardness + 5.0, tokens, rng())
    assert found.low == pytest.approx(found.value) == pytest.approx(found.high)


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    source = np.random.default_rng(1)
    covered = 0
    for _ in range(60):
        rises = source.normal(0.05, 0.1, 40)
        found = paired_rise(np.zeros(40), rises * 100, np.full(40, 100), rng())
        covered += found.low <= math.expm1(0.05) <= found.high
    assert 52 <= covered <= 60


def test_one_document_or_no_number_is_never_sure() -> None:
    one = paired_rise(np.array([1.0]), np.array([1.0]), np.array([5]), rng())
    assert (one.value, one.low, one.high) == (0.0, -math.inf, math.inf)
    broken = paired_rise(np.array([1.0, 1.0]), np.array([1.0, math.nan]), np.array([5, 5]), rng())
    assert math.isnan(broken.high)


@pytest.mark.parametrize("documents", [2, 3, 5, 20])
def test_few_documents_are_not_surer_than_they_may_be(documents: int) -> None:
    """The upper bound lies below a true rise of 5 % in one case in forty, however few documents there are."""
    draws = np.random.default_rng(3)
    below = 0
    for _ in range(CASES):
        rises = np.log(1.05) + 0.02 * draws.normal(size=documents)
        below += paired_rise(np.zeros(documents), rises * 100, np.full(documents, 100), rng()).high < 0.05
    assert below <= 0.025 * CASES + 3 * math.sqrt(0.025 * CASES)
