"""The time a run still takes, from the time that its steps and evaluations took so far."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import pairwise
from statistics import fmean, median
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from trc2.config import RunConfig
from trc2.runs.records import Record
from trc2.runs.schedule import TaskSchedule
from trc2.training.data import StreamData

RECENT = 50  # steps in the mean: a run becomes slower as its memory fills, or as other programs use the machine
SCORING_SPEED = 3.0  # of scoring a token relative to training on it, until it is measured

Work: TypeAlias = NDArray[np.float64]
"""Tokens to score, and the number of tasks whose text metrics are computed."""


class Agenda:
    """Counts what a run scores: in evaluations, for the replay controller, and on the test splits."""

    def __init__(self, config: RunConfig, schedule: TaskSchedule, stream_data: StreamData) -> None:
        self.config, self.schedule, self.tasks = config, schedule, stream_data.tasks

    def after(self, step: int) -> Work:
        """The work after this step; after -1 it includes the evaluation before training.

        Evaluations between two boundaries are alike, so they are counted and not listed.
        """
        evaluation, control, schedule = self.config.eval, self.config.control, self.schedule
        work = self.scored(self.tasks) if step < 0 else np.zeros(2)
        for begin, end in pairwise(sorted({0, *(span.end for span in schedule.spans)})):
            if step >= end:
                continue
            first, last = max(begin, step), end - 1
            regular = self.scored(schedule.seen(end), with_text=evaluation.text_metrics_at == "always")
            work += regular * (last // evaluation.every_steps - first // evaluation.every_steps)
            work += self._steering(begin + 1) * (last // control.period - first // control.period)
            ended = [span.task for span in schedule.spans if span.end == end]
            work += self.scored(self.tasks) + self._controlled(ended[-1:])
            work += self._steering(end) * (end % control.period == 0)
        if evaluation.test and step < schedule.total_steps:
            work += self.scored(self.tasks, "test")
        return work

    def scored(self, names: Iterable[str], split: str = "validation", *, with_text: bool = True) -> Work:
        """One evaluation of these tasks."""
        settings, tokens, tasks = self.config.eval, 0, list(names)
        for data in (self.tasks[name] for name in tasks):
            available = max(0, data.task.splits[split].tokens - 1)
            limit = (
                available if settings.max_batches is None else settings.max_batches * settings.batch_size * data.length
            )
            tokens += min(available, limit)
        return np.array([tokens, len(tasks) if with_text and settings.text_sequences else 0], dtype=np.float64)

    def _steering(self, step: int) -> Work:
        is_on = self.config.control.mode == "closed_loop" and self.config.model.replay
        return self._controlled(self.schedule.past(step) if is_on else [])

    def _controlled(self, names: list[str]) -> Work:
        return np.array([sum(self.tasks[name].num_control * self.tasks[name].length for name in names), 0.0])


class Forecast:
    """Receives the records of a run, each with its time, and estimates the seconds that are left.

    The first step of a process is ignored: it allocates memory and compiles parts of the model.
    """

    def __init__(self, agenda: Agenda, start: int, now: float) -> None:
        self.agenda, self.step, self.seen_at, self.has_begun = agenda, start, now, False
        self.step_seconds: deque[float] = deque(maxlen=RECENT)
        self.seconds_per_token: deque[float] = deque(maxlen=5)  # of the last evaluations without text metrics
        self.text_evaluation: tuple[float, Work] | None = None  # seconds and work of the last one with text metrics

    def see(self, record: Record, now: float) -> None:
        seconds, self.seen_at = now - self.seen_at, now
        self.step = max(self.step, record.step)
        if record.kind in ("train", "nonfinite"):
            if self.has_begun:
                self.step_seconds.append(seconds)
            self.has_begun = True
        elif record.kind == "eval":
            names = perplexities(record)
            work = self.agenda.scored(names, with_text=any(f"eval/{name}/bleu" in record.metrics for name in names))
            if work[1]:
                self.text_evaluation = seconds, work
            elif work[0]:
                self.seconds_per_token.append(seconds / work[0])

    def left(self) -> float | None:
        """Seconds to the end of the run; None before the second step."""
        if not self.step_seconds:
            return None
        a_step = fmean(self.step_seconds)
        per_token = a_step / self.agenda.config.train.tokens_per_step / SCORING_SPEED
        if self.seconds_per_token:
            per_token = median(self.seconds_per_token)
        per_text = 0.0
        if self.text_evaluation is not None:
            seconds, (tokens, texts) = self.text_evaluation
            per_text = max(0.0, seconds - per_token * tokens) / texts
        tokens, texts = self.agenda.after(self.step)
        return (self.agenda.schedule.total_steps - self.step) * a_step + per_token * tokens + per_text * texts


def perplexities(record: Record) -> dict[str, float]:
    """The perplexities of an evaluation, by task."""
    names = [name for name in record.metrics if name.startswith("eval/") and name.endswith("/perplexity")]
    return {name.split("/")[1]: record.metrics[name] for name in names}
