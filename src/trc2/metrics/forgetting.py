"""Forgetting, transfer and their areas, as functions of one table: score[evaluation step, task].

Worked example. Tasks A (steps 0–10) and B (10–20), log-perplexities measured every 10 steps:

    step      0     10    20
    A       5.0    3.0   3.5      A was 3.0 when it ended: at 20 it has forgotten 0.5
    B       5.2    4.8   2.0      B was 5.2 untrained and 4.8 before its training: forward transfer 0.4

F_A(20) = 0.5, BWT(20) = −0.5, FWT = (0 + 0.4) / 2 = 0.2, and AUFC_A(20) = ½ · 0.5 = 0.25, the mean height of the
forgetting curve from the first boundary on.

A score that is NaN makes every number that depends on it NaN: a broken model must not seem to forget nothing.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from trc2.config.metric import MetricConfig


@dataclass(frozen=True)
class Metric:
    """The direction of a score, and the space in which differences are taken."""

    name: str
    direction: Literal["min", "max"]
    is_log: bool = False
    min_gain: float | None = None  # divide gaps by the task's gain where it is at least this

    def transform(self, value: float) -> float:
        """The value in the space of differences. The logarithm of 0 is −∞, that of a negative number NaN."""
        if not self.is_log:
            return value
        if value > 0:
            return math.log(value)
        return -math.inf if value == 0 else math.nan

    def gap(self, better: float, worse: float) -> float:
        """How much worse the second is, in transformed space."""
        return worse - better if self.direction == "min" else better - worse


PERPLEXITY = Metric("perplexity", "min", is_log=True)
BLEU = Metric("bleu", "max", min_gain=0.1)
TOKEN_ACCURACY = Metric("token_accuracy", "max", min_gain=0.001)
METRICS = {metric.name: metric for metric in (PERPLEXITY, BLEU, TOKEN_ACCURACY)}


def metrics_of(plugged: Iterable[MetricConfig]) -> dict[str, Metric]:
    """The metrics whose forgetting a run measures: ours, and those of its plug-ins."""
    return METRICS | {
        m.name: Metric(m.name, "max" if m.higher_is_better else "min", is_log=m.is_log, min_gain=m.min_gain)
        for m in plugged
    }


@dataclass(frozen=True)
class TaskSpan:
    """The steps of a task's training, from `start` to `end`."""

    task: str
    start: int
    end: int


@dataclass(frozen=True)
class ScoreTable:
    """Scores by step and task, and when each task was trained. Tasks may be missing, except at boundaries."""

    metric: Metric
    spans: tuple[TaskSpan, ...]
    scores: Mapping[int, Mapping[str, float]]

    @cached_property
    def steps(self) -> list[int]:
        return sorted(self.scores)

    @cached_property
    def integrals(self) -> dict[TaskSpan, tuple[int, int, float, float]]:
        """The state of `integral` for each task: steps seen, the last measured step, its height, and the sum."""
        return {}

    def add(self, step: int, row: Mapping[str, float]) -> None:
        """Add an evaluation that is later than all others."""
        assert isinstance(self.scores, dict)
        self.steps.append(step)
        self.scores[step] = row

    def value(self, step: int, task: str) -> float:
        """u_k(t)"""
        return self.metric.transform(self.scores[step][task])

    def has(self, step: int, task: str) -> bool:
        return task in self.scores.get(step, {})

    def past(self, step: int) -> list[TaskSpan]:
        """Tasks that ended before the step. At its own boundary a task still counts as current."""
        return [span for span in self.spans if span.end < step]

    def post(self, span: TaskSpan) -> float:
        """u_k^post, the reference for later forgetting. NaN if it was not measured or is not finite."""
        value = self.value(span.end, span.task) if self.has(span.end, span.task) else math.nan
        return value if math.isfinite(value) else math.nan

    def truncated_at(self, step: int) -> ScoreTable:
        if not self.steps or self.steps[-1] <= step:
            return self
        return ScoreTable(self.metric, self.spans, {s: row for s, row in self.scores.items() if s <= step})


def gain(table: ScoreTable, span: TaskSpan) -> float:
    """The divisor of a task's gaps: its gain over the untrained model if the metric asks for it, else 1."""
    gained = _gained(table, span)
    if gained is not None and not math.isfinite(gained):
        return math.nan
    return gained if gained is not None and is_divided(table, span) else 1.0


def is_divided(table: ScoreTable, span: TaskSpan) -> bool:
    """Whether a task's gaps are divided by its gain: it gained enough over the untrained model."""
    gained, least = _gained(table, span), table.metric.min_gain
    return gained is not None and least is not None and gained >= least


def _gained(table: ScoreTable, span: TaskSpan) -> float | None:
    """How much better than the untrained model a task was when it ended. None if the metric does not ask for it."""
    first = table.steps[0]
    if table.metric.min_gain is None or not table.has(first, span.task):
        return None
    return table.metric.gap(better=table.post(span), worse=table.value(first, span.task))


def rise(gap: float) -> float:
    """max(0, gap), but NaN for NaN: Python's max(0, NaN) is 0."""
    return gap if math.isnan(gap) else max(0.0, gap)


def forgetting(table: ScoreTable, span: TaskSpan, step: int) -> float:
    """F_k(t) = max(0, gap from the post-task score), divided by the gain. 0 until the task is past."""
    if step <= span.end:
        return 0.0
    gap = table.metric.gap(better=table.post(span), worse=table.value(step, span.task))
    return rise(gap) / gain(table, span)


def backward_transfer(table: ScoreTable, step: int) -> float | None:
    """BWT(t): mean signed change of past tasks since their end. Negative is forgetting. None without a past."""
    past = [span for span in table.past(step) if table.has(step, span.task)]
    if not past:
        return None
    gaps = [table.metric.gap(better=table.post(s), worse=table.value(step, s.task)) for s in past]
    return -sum(gaps) / len(gaps)


def forward_transfer(table: ScoreTable) -> float | None:
    """FWT: mean over tasks of how much better than untrained each was just before its own training."""
    first = table.steps[0] if table.steps else None
    gains = [
        table.metric.gap(better=table.value(s.start, s.task), worse=table.value(first, s.task))
        for s in table.spans
        if first is not None and table.has(first, s.task) and table.has(s.start, s.task)
    ]
    return sum(gains) / len(gains) if gains else None


def area(table: ScoreTable, span: TaskSpan, step: int, origin: int) -> float:
    """(1 / (t − t₀)) ∫ F_k over [t₀, t] by trapezoids over the steps at which the task was measured."""
    if step <= origin:
        return 0.0
    if math.isnan(table.post(span)):
        return math.nan
    return integral(table, span, step) / (step - origin)


def integral(table: ScoreTable, span: TaskSpan, step: int) -> float:
    """∫ F_k from the task's end to t. It continues from an earlier call and reads only the evaluations since then."""
    start = (bisect_left(table.steps, span.end), span.end, 0.0, 0.0)
    seen, last, height, total = table.integrals.get(span, start)
    if last > step:
        seen, last, height, total = start
    while seen < len(table.steps) and table.steps[seen] <= step:
        now = table.steps[seen]
        if table.has(now, span.task):
            before, height = height, forgetting(table, span, now)
            total += (now - last) * (before + height) / 2
            last = now
        seen += 1
    table.integrals[span] = (seen, last, height, total)
    return total


def aufc(table: ScoreTable, step: int) -> dict[str, float]:
    """The paper's area: one t₀ for all tasks, the first task boundary of the stream. Past tasks only."""
    origin = min(span.end for span in table.spans)
    return {s.task: area(table, s, step, origin) for s in table.past(step) if table.has(step, s.task)}


def aufc_task(table: ScoreTable, step: int) -> dict[str, float]:
    """Our area: each task from its own boundary, so that early and late tasks weigh the same."""
    return {s.task: area(table, s, step, s.end) for s in table.past(step) if table.has(step, s.task)}


def mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def summarise(table: ScoreTable, step: int) -> dict[str, float]:
    """All continual-learning numbers at one step, by metric path: `cl/perplexity/aufc`, `…/aufc/wikitext`."""
    root = f"cl/{table.metric.name}"
    past = [span for span in table.past(step) if table.has(step, span.task)]
    result: dict[str, float] = {}
    per_task = {
        "forgetting": {s.task: forgetting(table, s, step) for s in past},
        "aufc": aufc(table, step),
        "aufc_task": aufc_task(table, step),
    }
    for name, values in per_task.items():
        average = mean(list(values.values()))
        if average is not None:
            result[f"{root}/{name}"] = average
            result |= {f"{root}/{name}/{task}": value for task, value in values.items()}
    for name, value in (("bwt", backward_transfer(table, step)), ("fwt", forward_transfer(table.truncated_at(step)))):
        if value is not None:
            result[f"{root}/{name}"] = value
    return result
