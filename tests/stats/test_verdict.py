from __future__ import annotations

import math
from typing import Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from trc2.stats.equivalence import Verdict, decide, tost
from trc2.stats.paired import compare_all, paired_difference

Runs = dict[tuple[int, int], float]


def runs(*values: float) -> Runs:
    return {(seed, 0): value for seed, value in enumerate(values)}


ZERO = runs(0.0, 0.0, 0.0)
CLEAR, SMALL, NOISY = runs(-1.0, -1.1, -0.9), runs(0.01, -0.01, 0.005), runs(-1.0, 0.5, 2.0)


def judged(a: Runs, b: Runs, margin: float, direction: Literal["min", "max"] = "min") -> Verdict:
    return decide(paired_difference(a, b), margin, direction=direction)


def test_each_verdict_has_its_case() -> None:
    assert judged(CLEAR, ZERO, 0.2) is Verdict.better
    assert judged(CLEAR, ZERO, 0.2, direction="max") is Verdict.worse
    assert judged(ZERO, CLEAR, 0.2) is Verdict.worse
    assert judged(SMALL, ZERO, 0.2) is Verdict.equivalent
    assert judged(NOISY, ZERO, 0.2) is Verdict.undecided


def test_without_a_margin_nothing_is_equivalent() -> None:
    assert decide(paired_difference(SMALL, ZERO), None, direction="min") is Verdict.undecided
    assert judged(SMALL, ZERO, math.nan) is Verdict.undecided


def test_a_certain_difference_within_the_margin_is_equivalent() -> None:
    assert decide(paired_difference(CLEAR, ZERO), 5.0, direction="min") is Verdict.equivalent


def test_one_pair_and_broken_runs_decide_nothing() -> None:
    for a in (runs(5.0), runs(1.0, math.nan, 1.0), runs(0.3, 0.3, 0.3)):
        assert judged(a, ZERO, 100.0) is Verdict.undecided


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
