from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trc2.errors import UserError
from trc2.stats.paired import compare_all, holm, paired_difference

# Student's own data of 1908: hours of sleep gained by ten patients with two drugs. R prints the numbers below.
FIRST = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
SECOND = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]

Runs = dict[tuple[int, int], float]
PVALUES = st.dictionaries(st.text("abcdefgh", min_size=1, max_size=2), st.floats(0, 1), max_size=8)


def runs(values: list[float], order: int = 0) -> Runs:
    return {(seed, order): value for seed, value in enumerate(values)}


def test_the_sleep_data_of_student() -> None:
    found = paired_difference(runs(FIRST), runs(SECOND))
    assert found.n == 10
    assert found.mean == pytest.approx(-1.58)
    assert (found.interval.low, found.interval.high) == pytest.approx((-2.4598858, -0.7001142), abs=1e-7)
    assert found.p == pytest.approx(0.00283289, abs=1e-8)
    assert found.p_holm == found.p


def test_two_and_three_pairs_have_closed_forms() -> None:
    two = paired_difference(runs([1.0, 3.0]), runs([0.0, 0.0]))  # d = 1, 3: t = 2, Cauchy
    assert two.p == pytest.approx(1 - 2 * math.atan(2) / math.pi)
    three = paired_difference(runs([1.0, 2.0, 3.0]), runs([0.0, 0.0, 0.0]))  # t = 2√3
    assert three.p == pytest.approx(1 - 2 * math.sqrt(3) / math.sqrt(14))


def test_only_equal_seeds_and_orders_are_pairs() -> None:
    a = {(0, 0): 1.0, (1, 0): 2.0, (2, 0): 9.0, (0, 1): 5.0}
    b = {(1, 0): 1.5, (0, 0): 0.8, (0, 2): 7.0}
    found = paired_difference(a, b)
    assert found.n == 2
    assert found.mean == pytest.approx(0.35)


def test_no_pair_is_refused_and_the_comparison_named() -> None:
    with pytest.raises(UserError, match=r"1 and 1 runs form no pairs.*\(0, 0\) and \(1, 0\)"):
        paired_difference({(0, 0): 1.0}, {(1, 0): 1.0})
    with pytest.raises(UserError, match="'mamba' cannot be compared"):
        compare_all({(0, 0): 1.0}, {"mamba": {}})


def test_one_pair_has_a_difference_but_neither_interval_nor_p() -> None:
    found = paired_difference({"seed 1": 2.0}, {"seed 1": 0.5})
    assert found.mean == 1.5
    assert math.isnan(found.p)
    assert not found.interval.is_known


@pytest.mark.parametrize("broken", [math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_broken_run_breaks_the_comparison(broken: float, place: int) -> None:
    values = [1.0, 1.0, 1.0]
    values[place] = broken
    for a, b in ((values, [1.0] * 3), ([1.0] * 3, values), (values, values)):
        found = paired_difference(runs(a), runs(b))
        assert found.n == 3
        assert all(map(math.isnan, (found.mean, found.interval.low, found.p)))


def test_equal_differences_are_no_certainty() -> None:
    same = paired_difference(runs([0.1, 0.2, 0.3]), runs([0.1, 0.2, 0.3]))
    assert (same.mean, same.p, same.interval.low, same.interval.high) == (0, 1, 0, 0)
    shifted = paired_difference(runs([0.3, 0.5, 0.7]), runs([0.2, 0.4, 0.6]))  # 0.1 up to the last bits
    assert shifted.mean == pytest.approx(0.1)
    assert math.isnan(shifted.p)
    assert not shifted.interval.is_known


@given(st.lists(st.tuples(st.integers(-500, 500), st.integers(-500, 500)), min_size=2, max_size=6), st.integers(-9, 9))
@settings(deadline=None)
def test_swapping_turns_the_sign_and_shifting_both_changes_nothing(pairs: list[tuple[int, int]], shift: int) -> None:
    a, b = (runs([float(pair[side]) for pair in pairs]) for side in (0, 1))
    found, back = paired_difference(a, b), paired_difference(b, a)
    assert back.mean == -found.mean
    assert back.p == pytest.approx(found.p, nan_ok=True)
    assert back.interval.low == pytest.approx(-found.interval.high, nan_ok=True)
    moved = paired_difference({k: v + shift for k, v in a.items()}, {k: v + shift for k, v in reversed(b.items())})
    assert moved.p == pytest.approx(found.p, nan_ok=True)


@given(st.lists(st.floats(-1, 1), min_size=3, max_size=6))
@settings(deadline=None)
def test_p_is_below_five_percent_exactly_where_the_interval_excludes_zero(values: list[float]) -> None:
    found = paired_difference(runs(values), runs([0.0] * len(values)))
    if not math.isnan(found.p) and abs(found.p - 0.05) > 1e-9:
        assert (found.p < 0.05) == (found.interval.low > 0 or found.interval.high < 0)


def test_holm_as_r_prints_it() -> None:
    """p.adjust(c(0.01, 0.04, 0.03, 0.005), "holm") and p.adjust(c(0.01, 0.02, 0.03, 0.04), "holm")"""
    found = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005})
    assert found == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06, "d": 0.02})
    assert list(holm(dict(zip("abcd", (0.01, 0.02, 0.03, 0.04), strict=True))).values()) == pytest.approx(
        [0.04, 0.06, 0.06, 0.06]
    )
    assert holm({"a": 0.7, "b": 0.6}) == {"a": 1.0, "b": 1.0}
    assert holm({}) == {}


def test_nan_stays_nan_and_does_not_count() -> None:
    found = holm({"a": 0.01, "broken": math.nan, "b": 0.02})
    assert math.isnan(found.pop("broken"))
    assert found == pytest.approx({"a": 0.02, "b": 0.02})


@pytest.mark.parametrize("p", [-0.1, 1.5, math.inf])
def test_what_is_no_probability_is_refused(p: float) -> None:
    with pytest.raises(UserError, match="The p-value of 'a' is"):
        holm({"a": p})


@given(PVALUES.filter(bool), st.floats(0, 1))
def test_holm_rejects_what_its_procedure_rejects(pvalues: dict[str, float], alpha: float) -> None:
    """Step down from the smallest: reject while p_(i) ≤ alpha / (m − i + 1). Here as m − i + 1 times p."""
    rejected = set()
    for i, name in enumerate(sorted(pvalues, key=pvalues.__getitem__)):
        if (len(pvalues) - i) * pvalues[name] > alpha:
            break
        rejected.add(name)
    expected = rejected if alpha < 1 else set(pvalues)
    assert {name for name, p in holm(pvalues).items() if p <= alpha} == expected


def test_compare_all_subtracts_each_and_corrects_together() -> None:
    others = {"b": runs(SECOND), "c": runs([v + 0.1 * i for i, v in enumerate(SECOND)]), "one": {(0, 0): 1.0}}
    found = compare_all(runs(FIRST), others)
    assert found["b"].mean == pytest.approx(-1.58)
    assert {name: d.p_holm for name, d in found.items()} == pytest.approx(
        holm({name: d.p for name, d in found.items()}), nan_ok=True
    )
    assert found["b"].p_holm > found["b"].p or found["c"].p_holm > found["c"].p
    assert math.isnan(found["one"].p_holm)
