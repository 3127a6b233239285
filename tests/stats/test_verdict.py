from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trc2.stats.equivalence import tost
from trc2.stats.paired import compare_all, paired_difference
from trc2.stats.verdict import Verdict, decide, equivalent, sentence

Runs = dict[tuple[int, int], float]


def runs(*values: float) -> Runs:
    return {(seed, 0): value for seed, value in enumerate(values)}


ZERO = runs(0.0, 0.0, 0.0)
CLEAR, SMALL, NOISY = runs(-1.0, -1.1, -0.9), runs(0.01, -0.01, 0.005), runs(-1.0, 0.5, 2.0)


def test_each_verdict_has_its_case() -> None:
    assert equivalent(CLEAR, ZERO, 0.2) is Verdict.better
    assert equivalent(CLEAR, ZERO, 0.2, direction="max") is Verdict.worse
    assert equivalent(ZERO, CLEAR, 0.2) is Verdict.worse
    assert equivalent(SMALL, ZERO, 0.2) is Verdict.equivalent
    assert equivalent(NOISY, ZERO, 0.2) is Verdict.undecided


def test_without_a_margin_nothing_is_equivalent() -> None:
    assert decide(paired_difference(SMALL, ZERO), None, direction="min") is Verdict.undecided
    assert equivalent(SMALL, ZERO, math.nan) is Verdict.undecided


def test_a_certain_difference_within_the_margin_is_equivalent() -> None:
    assert decide(paired_difference(CLEAR, ZERO), 5.0, direction="min") is Verdict.equivalent


def test_one_pair_and_broken_runs_decide_nothing() -> None:
    for a in (runs(5.0), runs(1.0, math.nan, 1.0), runs(0.3, 0.3, 0.3)):
        assert equivalent(a, ZERO, 100.0) is Verdict.undecided


def test_the_corrected_p_decides_not_the_raw_one() -> None:
    base = runs(-1.0, -1.3, -0.7)
    alone = compare_all(base, {"zero": ZERO})["zero"]
    among = compare_all(base, {"zero": ZERO, **{f"noise {i}": runs(-2.0, 0.0, i / 9) for i in range(9)}})["zero"]
    assert alone.p == among.p < 0.05 < among.p_holm
    assert decide(alone, None, direction="min") is Verdict.better
    assert decide(among, None, direction="min") is Verdict.undecided


@given(st.lists(st.floats(-1, 1), min_size=3, max_size=3), st.floats(0, 2), st.sampled_from(["min", "max"]))
@settings(deadline=None)
def test_no_word_is_given_without_its_test(values: list[float], margin: float, direction: str) -> None:
    found = paired_difference(runs(*values), ZERO)
    verdict = decide(found, margin, direction=direction)  # type: ignore[arg-type]
    if verdict is Verdict.equivalent:
        assert tost(found, margin) < 0.05
    elif verdict is not Verdict.undecided:
        assert found.p_holm < 0.05
        assert (verdict is Verdict.better) == ((found.mean < 0) == (direction == "min"))


def say(a: Runs, b: Runs, margin: float | None) -> str:
    return sentence("TRC²", "Mamba", paired_difference(a, b), margin, direction="min")


@pytest.mark.parametrize(
    ("a", "b", "margin", "expected"),
    [
        (
            CLEAR,
            ZERO,
            None,
            "TRC² is better: 1.00 lower than Mamba (95 % CI −1.25 to −0.75, n = 3, Holm p = 0.003).",
        ),
        (
            ZERO,
            CLEAR,
            0.2,
            "TRC² is worse: 1.00 higher than Mamba (95 % CI 0.75 to 1.25, n = 3, Holm p = 0.003).",
        ),
        (
            SMALL,
            ZERO,
            0.2,
            "equivalent within ±0.2: TRC² is 0.002 higher than Mamba "
            "(95 % CI −0.024 to 0.028, n = 3, Holm p = 0.808, equivalence p < 0.001).",
        ),
        (
            NOISY,
            ZERO,
            0.2,
            "not decided: TRC² is 0.5 higher than Mamba "
            "(95 % CI −3.2 to 4.2, n = 3, Holm p = 0.622, equivalence p = 0.619).",
        ),
        (
            runs(0.5),
            ZERO,
            0.2,
            "not decided: TRC² is 0.5 higher than Mamba (n = 1: no interval, 2 without a partner left out).",
        ),
        (
            runs(0.5, 0.5),
            runs(0.25, 0.25),
            None,
            "not decided: TRC² is 0.25 higher than Mamba (all n = 2 differences are equal: no spread to test against).",
        ),
        (runs(math.nan, 1.0), ZERO, None, "not decided: a score of TRC² or Mamba is not a number (n = 2)."),
        (
            ZERO,
            ZERO,
            None,
            "not decided: TRC² is the same as Mamba (95 % CI 0 to 0, n = 3, Holm p = 1).",
        ),
    ],
)
def test_the_sentence_says_the_numbers_it_rests_on(a: Runs, b: Runs, margin: float | None, expected: str) -> None:
    assert say(a, b, margin) == expected


def test_a_p_value_near_five_percent_is_not_rounded_across() -> None:
    t_of_three = {}  # with n = 3, p = 1 − t / √(2 + t²)
    for p in (0.0498, 0.0502):
        t = math.sqrt(2) * (1 - p) / math.sqrt(1 - (1 - p) ** 2)
        mean = t / math.sqrt(3)
        t_of_three[p] = say(runs(mean - 1, mean, mean + 1), ZERO, None)
    assert "TRC² is worse" in t_of_three[0.0498]
    assert "Holm p = 0.049)" in t_of_three[0.0498]
    assert "not decided" in t_of_three[0.0502]
    assert "Holm p = 0.051)" in t_of_three[0.0502]
