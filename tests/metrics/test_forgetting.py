"""Forgetting metrics: the worked example, and random tables against a brute-force version."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trc2.metrics.forgetting import (
    BLEU,
    PERPLEXITY,
    TOKEN_ACCURACY,
    Metric,
    ScoreTable,
    TaskSpan,
    aufc,
    aufc_task,
    backward_transfer,
    forgetting,
    forward_transfer,
    rise,
    summarise,
)

A, B = TaskSpan("a", 0, 10), TaskSpan("b", 10, 20)


def exp_rows(rows: dict[int, dict[str, float]]) -> dict[int, dict[str, float]]:
    return {step: {task: math.exp(value) for task, value in row.items()} for step, row in rows.items()}


EXAMPLE = ScoreTable(
    PERPLEXITY, (A, B), exp_rows({0: {"a": 5.0, "b": 5.2}, 10: {"a": 3.0, "b": 4.8}, 20: {"a": 3.5, "b": 2.0}})
)


def test_the_worked_example_of_the_docstring() -> None:
    assert forgetting(EXAMPLE, A, 20) == pytest.approx(0.5)
    assert backward_transfer(EXAMPLE, 20) == pytest.approx(-0.5)
    assert forward_transfer(EXAMPLE) == pytest.approx(0.2)
    assert aufc(EXAMPLE, 20) == {"a": pytest.approx(0.25)}


def test_a_task_is_current_at_its_own_boundary_and_past_after_it() -> None:
    assert [span.task for span in EXAMPLE.past(10)] == []
    assert [span.task for span in EXAMPLE.past(20)] == ["a"]
    assert backward_transfer(EXAMPLE, 10) is None
    assert "cl/perplexity/aufc" not in summarise(EXAMPLE, 10)


def test_improvement_is_not_negative_forgetting() -> None:
    table = ScoreTable(PERPLEXITY, (A, B), exp_rows({0: {"a": 5.0}, 10: {"a": 3.0}, 20: {"a": 2.0}}))
    assert forgetting(table, A, 20) == 0.0
    assert backward_transfer(table, 20) == pytest.approx(1.0)


def test_the_papers_area_divides_by_the_time_since_the_first_boundary() -> None:
    c = TaskSpan("c", 20, 30)
    rows = {0: {}, 10: {"a": 1.0}, 20: {"a": 2.0, "b": 1.0}, 30: {"a": 2.0, "b": 3.0, "c": 1.0}}
    table = ScoreTable(PERPLEXITY, (A, B, c), exp_rows(rows))
    # a: (0+1)/2·10 + 1·10 = 15 over 20 steps; b: (0+2)/2·10 = 10, over 20 for the paper and over 10 for us
    assert aufc(table, 30) == {"a": pytest.approx(0.75), "b": pytest.approx(0.5)}
    assert aufc_task(table, 30) == {"a": pytest.approx(0.75), "b": pytest.approx(1.0)}


def test_gains_normalise_gaps_of_maximised_metrics_when_they_are_large_enough() -> None:
    def table(metric: Metric, before: float, post: float, later: float) -> ScoreTable:
        return ScoreTable(metric, (A, B), {0: {"a": before}, 10: {"a": post}, 20: {"a": later}})

    assert forgetting(table(BLEU, 1.0, 5.0, 3.0), A, 20) == pytest.approx(0.5)
    assert forgetting(table(BLEU, 4.95, 5.0, 3.0), A, 20) == pytest.approx(2.0)  # gained less than 0.1: the raw gap
    assert forgetting(table(BLEU, 60.0, 5.0, 3.0), A, 20) == pytest.approx(2.0)  # got worse by training: the raw gap
    assert forgetting(table(TOKEN_ACCURACY, 0.0, 0.5, 0.4), A, 20) == pytest.approx(0.2)


def brute_area(times: list[int], values: list[float], begin: int, end: int, origin: int) -> float:
    """The same area by summing a linear interpolation over every half step."""
    total = 0.0
    for half in range(2 * begin, 2 * end):
        for point in (half / 2, (half + 1) / 2):
            right = next(i for i, t in enumerate(times) if t >= point)
            left = right if times[right] == point else right - 1
            span = max(1, times[right] - times[left])
            total += (values[left] + (values[right] - values[left]) * (point - times[left]) / span) / 4
    return total / (end - origin)


@settings(deadline=None, max_examples=60)
@given(
    first=st.integers(1, 5),
    gaps=st.lists(st.integers(1, 4), min_size=2, max_size=6),
    values=st.lists(st.floats(0.5, 9.0), min_size=8, max_size=8),
)
def test_areas_equal_a_brute_force_integral(first: int, gaps: list[int], values: list[float]) -> None:
    times = [first]
    for gap in gaps:
        times.append(times[-1] + gap)
    end_b = times[-1]
    a, b = TaskSpan("a", 0, first), TaskSpan("b", first, end_b)
    scores = {0: {"a": values[-1]}} | {t: {"a": v} for t, v in zip(times, values, strict=False)}
    table = ScoreTable(Metric("x", "min"), (a, b), scores)
    curve = [max(0.0, v - values[0]) for v in values[: len(times)]]
    expected = brute_area(times, curve, first, end_b, first)
    assert aufc(table, end_b)["a"] == pytest.approx(expected, abs=1e-9)
    assert aufc_task(table, end_b)["a"] == pytest.approx(expected, abs=1e-9)
    flipped = ScoreTable(
        Metric("x", "max"), (a, b), {s: {t: -v for t, v in row.items()} for s, row in table.scores.items()}
    )
    assert aufc(flipped, end_b)["a"] == pytest.approx(expected, abs=1e-9)
    assert backward_transfer(table, end_b) == pytest.approx(values[0] - values[len(times) - 1])


def test_summaries_name_every_metric_by_path() -> None:
    names = set(summarise(EXAMPLE, 20))
    assert names == {
        "cl/perplexity/forgetting", "cl/perplexity/forgetting/a", "cl/perplexity/aufc", "cl/perplexity/aufc/a",
        "cl/perplexity/aufc_task", "cl/perplexity/aufc_task/a", "cl/perplexity/bwt", "cl/perplexity/fwt",
    }  # fmt: skip


def test_a_rise_is_never_negative_and_stays_no_number() -> None:
    assert [rise(gap) for gap in (-math.inf, -1.0, 0.0, 2.0, math.inf)] == [0.0, 0.0, 0.0, 2.0, math.inf]
    assert math.isnan(rise(math.nan))


def test_logarithms_of_impossible_perplexities_are_no_mistake_of_ours() -> None:
    assert PERPLEXITY.transform(0.0) == -math.inf
    assert PERPLEXITY.transform(math.inf) == math.inf
    assert math.isnan(PERPLEXITY.transform(-1.0))
    assert math.isnan(PERPLEXITY.transform(math.nan))


C = TaskSpan("c", 20, 30)
STEPS, TASKS = tuple(range(0, 31, 5)), ("a", "b", "c")


def spoilt(metric: Metric, step: int, task: str, value: float) -> dict[str, float]:
    """A summary at step 30, by short names, of a table with one odd cell."""
    scores = {s: dict.fromkeys(TASKS, 2.0 + 0.1 * s) for s in STEPS}
    scores[step][task] = value
    summary = summarise(ScoreTable(metric, (A, B, C), scores), 30)
    return {name.removeprefix(f"cl/{metric.name}/"): number for name, number in summary.items()}


@given(
    metric=st.sampled_from([PERPLEXITY, BLEU, TOKEN_ACCURACY]),
    step=st.sampled_from(STEPS),
    span=st.sampled_from([A, B]),
)
def test_no_number_in_a_cell_is_no_number_in_whatever_rests_on_it(metric: Metric, step: int, span: TaskSpan) -> None:
    task = span.task
    is_reference = step == span.end or (step == 0 and metric.min_gain is not None)
    affected = set()
    if is_reference or step == 30:
        affected |= {"forgetting", f"forgetting/{task}"}
    if is_reference or step > span.end:
        affected |= {"aufc", f"aufc/{task}", "aufc_task", f"aufc_task/{task}"}
    if step in (span.end, 30):
        affected |= {"bwt"}
    if step in (0, span.start):
        affected |= {"fwt"}
    found = spoilt(metric, step, task, math.nan)
    assert {name for name, value in found.items() if math.isnan(value)} == affected


@given(step=st.sampled_from(STEPS), task=st.sampled_from(TASKS), value=st.sampled_from([math.inf, 0.0, -1.0]))
def test_no_score_breaks_the_summary(step: int, task: str, value: float) -> None:
    found = spoilt(PERPLEXITY, step, task, value)
    if value == math.inf and step == 30 and task != "c":
        assert found["forgetting"] == found["aufc"] == math.inf


def test_a_task_that_ended_in_no_number_was_not_kept_well_later() -> None:
    found = spoilt(PERPLEXITY, 10, "a", math.inf)
    assert math.isnan(found["forgetting"])
    assert math.isnan(found["bwt"])


def test_a_table_that_grows_gives_the_same_numbers_and_looks_at_every_score_once() -> None:
    rows = {step: {"a": 3.0 + step % 7, "b": 2.0 + step % 5} for step in range(0, 4001, 2)}
    grown = ScoreTable(PERPLEXITY, (A, B), {})
    for step, row in rows.items():
        grown.add(step, row)
        found = summarise(grown, step)
        if step in (12, 40, 4000):
            assert found == summarise(ScoreTable(PERPLEXITY, (A, B), {s: rows[s] for s in rows if s <= step}), step)
    seen = list[int]()
    grown.add(4002, {"a": 9.0, "b": 9.0})
    counted = CountingScores(grown.scores, seen)
    object.__setattr__(grown, "scores", counted)
    summarise(grown, 4002)
    assert len(set(seen)) <= 6  # the first, the boundaries, the new one: not the two thousand between
    assert aufc(grown, 40) == aufc(ScoreTable(PERPLEXITY, (A, B), {s: rows[s] for s in rows if s <= 40}), 40)


class CountingScores(dict[int, Any]):
    """A table's scores, with the steps that were looked up."""

    def __init__(self, scores: Mapping[int, Any], seen: list[int]) -> None:
        super().__init__(scores)
        self.seen = seen

    def __getitem__(self, step: int) -> Any:
        self.seen.append(step)
        return super().__getitem__(step)
