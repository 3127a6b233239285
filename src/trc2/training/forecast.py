"""The time a run still takes, from the work that is left and the time that the work so far took."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from trc2.config import EvalConfig, RunConfig
from trc2.runs.records import Record
from trc2.runs.schedule import TaskSchedule
from trc2.stream.batches import TaskData
from trc2.training.data import StreamData

SCORING_SPEED = 3.0  # of scoring a token relative to training on it


def tokens_to_score(config: RunConfig, schedule: TaskSchedule, data: StreamData) -> NDArray[np.int64]:
    """For every step, the tokens scored from its end to the end of the run. At 0 also those before training."""
    evaluation, control, total = config.eval, config.control, schedule.total_steps
    is_steered = control.mode == "closed_loop" and config.model.replay
    after = np.zeros(total + 1, dtype=np.int64)
    ends = {span.end: span.task for span in schedule.spans}
    for step in {0, *ends, *range(0, total, evaluation.every_steps), *range(0, total, control.period)}:
        if step == 0 or step in ends:
            after[step] += scored(data.tasks.values(), "validation", evaluation)
        elif step % evaluation.every_steps == 0:
            after[step] += scored((data.tasks[name] for name in schedule.seen(step)), "validation", evaluation)
        controlled = [ends[step]] if step in ends else []
        if step % control.period == 0 and is_steered:
            controlled += schedule.past(step)
        after[step] += sum(data.tasks[name].num_control * data.tasks[name].length for name in controlled)
    after[total] += scored(data.tasks.values(), "test", evaluation) if evaluation.test else 0
    return after[::-1].cumsum()[::-1]


def scored(tasks: Iterable[TaskData], split: str, settings: EvalConfig) -> int:
    """The tokens of one evaluation of these tasks."""
    counts = [(max(0, data.task.splits[split].tokens - 1), settings.batch_size * data.length) for data in tasks]
    if settings.max_batches is None:
        return sum(available for available, _ in counts)
    return sum(min(available, settings.max_batches * batch) for available, batch in counts)


class Forecast:
    """Receives the steps of a run, each with its time, and estimates the seconds that are left.

    The first step of a process is ignored: it allocates memory and compiles parts of the model.
    """

    def __init__(self, config: RunConfig, schedule: TaskSchedule, data: StreamData) -> None:
        trained = np.arange(schedule.total_steps, -1, -1) * config.train.tokens_per_step
        self.work_left = trained + tokens_to_score(config, schedule, data) / SCORING_SPEED
        self.first: tuple[int, float] | None = None
        self.left: float | None = None  # seconds to the end of the run. None before the second step

    def see(self, record: Record, now: float) -> None:
        if record.kind not in ("train", "nonfinite"):
            return
        if self.first is None:
            self.first = record.step, now
        elif record.step > self.first[0]:
            step, begun = self.first
            work_left = self.work_left[record.step]
            self.left = float((now - begun) / (self.work_left[step] - work_left) * work_left)
