"""The rules by which claims are decided, on hand-made numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from studies.paper.ledger import Claim, Compared, Comparison, Effect, Row, Ruling, against, compare, decide_claim

ONE = {0: 1.00, 1: 1.02, 2: 0.99}
CLEAR, UNCLEAR, SMALL = (0.50, 0.51, 0.49), (0.02, -0.03, 0.01), (0.001, -0.001, 0.0005)


def lower_by(amounts: Sequence[float], **more: Any) -> Comparison:
    """The first side is lower than the second by so much, seed by seed."""
    known = {"is_one_of": True, **more}
    return Comparison("loss", "first", "second", {seed: ONE[seed] - amounts[seed] for seed in ONE}, ONE, **known)


def claim(*comparisons: Comparison, missing: Sequence[str] = (), is_absence: bool = False) -> Claim:
    test = Compared(comparisons, missing)
    row = Row("key", "statement", "where", "paper", "how", lambda _: test, is_absence=is_absence)
    return decide_claim(row, None)  # type: ignore[arg-type]


def test_a_clear_difference_decides_in_both_directions() -> None:
    assert claim(lower_by(CLEAR)).ruling is Ruling.holds
    assert claim(lower_by(CLEAR, better="higher")).ruling is Ruling.fails
    assert claim(lower_by(UNCLEAR)).ruling is Ruling.undecided


def test_equivalence_needs_a_margin_of_relevance() -> None:
    assert claim(lower_by(SMALL)).ruling is Ruling.undecided
    assert claim(lower_by(SMALL, margin=0.05)).ruling is Ruling.same
    assert claim(lower_by((0.2, -0.2, 0.1), margin=0.05)).ruling is Ruling.undecided
    small_but_certain = (0.010, 0.0101, 0.0099)
    assert claim(lower_by(small_but_certain, margin=0.05)).ruling is Ruling.same


def test_all_comparisons_must_be_decided_and_one_reverse_refutes() -> None:
    assert claim(lower_by(CLEAR), lower_by((0.4, 0.41, 0.42))).ruling is Ruling.holds
    assert claim(lower_by(CLEAR), lower_by(UNCLEAR)).ruling is Ruling.undecided
    assert claim(lower_by(CLEAR), lower_by((-0.5, -0.51, -0.49))).ruling is Ruling.fails
    assert claim(lower_by(CLEAR), lower_by(SMALL, margin=0.05)).ruling is Ruling.fails


def test_an_equivalence_among_many_refutes_only_after_correction() -> None:
    near = lower_by((0.004, -0.004, 0.001), margin=0.012)  # p = 0.03 in one comparison
    assert claim(near).ruling is Ruling.same
    assert claim(near, *[lower_by(CLEAR, margin=0.012)] * 5).ruling is Ruling.undecided


def test_holm_counts_all_comparisons_of_a_claim() -> None:
    weak = (0.05, 0.06, 0.09)
    assert claim(lower_by(weak)).ruling is Ruling.holds
    assert claim(lower_by(weak), lower_by(weak)).ruling is Ruling.undecided


def test_one_seed_and_numbers_that_are_not_finite_decide_nothing() -> None:
    alone = Comparison("loss", "first", "second", {0: 0.1}, {0: 0.9})
    assert claim(alone).verdict == "undecided (n = 1)"
    assert claim(lower_by((0.5, math.nan, 0.5))).ruling is Ruling.undecided


def test_missing_runs_prevent_holding_but_not_failing() -> None:
    assert claim(lower_by(CLEAR), missing=["runs of Mamba"]).ruling is Ruling.undecided
    assert claim(lower_by((-0.5, -0.51, -0.49)), missing=["runs of Mamba"]).ruling is Ruling.fails
    nothing = claim(missing=["runs of Mamba"])
    assert nothing.ruling is Ruling.untestable
    assert "runs of Mamba" in nothing.reason
    assert claim(replace(lower_by(CLEAR), b={7: 1.0})).ruling is Ruling.untestable


def test_a_comparison_that_does_not_count_is_named_and_decides_nothing() -> None:
    other = lower_by((-0.5, -0.51, -0.49), counts=False, remark="second did not learn c4")
    assert claim(lower_by(CLEAR), other).ruling is Ruling.holds  # one of several rivals
    assert claim(other).ruling is Ruling.untestable
    assert "second did not learn c4" in claim(other).reason
    named = replace(other, is_one_of=False)
    assert claim(lower_by(CLEAR), named).ruling is Ruling.undecided  # the claim names it
    assert claim(lower_by(CLEAR), replace(other, about="another measure")).ruling is Ruling.undecided


def test_a_value_that_all_seeds_share_decides_against_a_bound_only() -> None:
    full = dict.fromkeys(range(3), 1.0)
    assert claim(against("share", full, 0.05, "lower")).ruling is Ruling.fails
    assert claim(against("share", full, 0.05, "higher")).ruling is Ruling.holds
    assert claim(against("share", full, 1.0, "higher")).ruling is Ruling.undecided
    assert claim(against("share", {0: 1.0}, 0.05, "higher")).ruling is Ruling.undecided
    sides = Comparison("share", "TRC²", "MoE", full, dict.fromkeys(range(3), 0.5))
    assert claim(sides).ruling is Ruling.undecided


def test_a_claim_of_no_effect_is_supported_by_equivalence_only() -> None:
    assert claim(lower_by(SMALL, margin=0.05), is_absence=True).ruling is Ruling.holds
    assert claim(lower_by(UNCLEAR), is_absence=True).ruling is Ruling.undecided
    assert claim(lower_by(CLEAR), is_absence=True).ruling is Ruling.fails


def test_the_papers_effect_size_is_tested_beside_zero() -> None:
    """Ratios 1.00, 0.98, 1.02 do not exclude no effect, but they exclude the paper's ×0.79."""
    ours = Comparison("AUFC", "full", "ablation", {0: 0.172, 1: 0.1715, 2: 0.1734}, {0: 0.172, 1: 0.175, 2: 0.17})
    (found,) = compare([replace(ours, effect=Effect(0.44 / 0.56))])
    assert found.outcome.value == "undecided"
    assert found.exclusion == "yes, ours is smaller"
    (same,) = compare([replace(ours, effect=Effect(1.0))])
    assert same.exclusion == "no"
    (larger,) = compare([lower_by(CLEAR, effect=Effect(-0.1, is_ratio=False))])
    assert larger.exclusion == "yes, ours is larger"
    assert larger.p_effect == pytest.approx(0.0002, abs=0.0001)
    (alone,) = compare([Comparison("loss", "a", "b", {0: 0.1}, {0: 0.9}, effect=Effect(0.5))])
    assert alone.exclusion == "–"


def test_the_headline_is_the_comparison_on_which_the_verdict_depends() -> None:
    open_claim = claim(lower_by(CLEAR), lower_by(UNCLEAR))
    assert open_claim.headline is open_claim.findings[1]
    nats, points = lower_by((0.01, 0.011, 0.009), unit="nats"), lower_by((-2.0, -2.1, -1.9), unit="BLEU")
    assert claim(nats, points).headline is not None
    refuted = claim(nats, points)
    assert refuted.headline is refuted.findings[1]
