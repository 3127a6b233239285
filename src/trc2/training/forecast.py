"""The time a run still takes, from what its steps and evaluations have taken so far."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import pairwise

from trc2.config import RunConfig
from trc2.runs.records import Record
from trc2.runs.schedule import TaskSchedule
from trc2.stream.batches import TaskData
from trc2.training.data import StreamData

RECENT = 50  # steps whose mean is believed: a run slows down as its memory fills, and as others use the machine
SCORING_SPEED = 3.0  # scoring a token beside training on it, until it has been measured: backward costs two forwards


@dataclass(frozen=True)
class Work:
    """What is scored between two steps: tokens, and how many tasks as text too."""

    tokens: float = 0.0
    texts: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(self.tokens + other.tokens, self.texts + other.texts)

    def times(self, count: int) -> Work:
        return Work(self.tokens * count, self.texts * count)


class Agenda:
    """All scoring of a run, laid out over its steps."""

    def __init__(self, config: RunConfig, plan: TaskSchedule, stream_data: StreamData) -> None:
        self.config, self.plan, self.stream_data = config, plan, stream_data
        self.bounds = sorted({0, *(span.end for span in plan.spans)})

    def after(self, step: int) -> Work:
        """What is still to be scored once the work at this step is done; counted, not listed: runs can be long."""
        work = Work()
        for begin, end in pairwise(self.bounds):
            if step < end:
                first, last = max(begin, step), end - 1  # between two boundaries every evaluation is like the first
                every, control = self.config.eval.every_steps, self.config.control.period
                work += self._regular(end).times(last // every - first // every)
                work += self._steering(begin + 1).times(last // control - first // control)
                work += self.at(end)
        return work

    def at(self, step: int) -> Work:
        """What is scored when this step is done."""
        work = self.evaluation(step) + self.control(step)
        if step == self.plan.total_steps and self.config.eval.test:
            work += self._scored("test", list(self.stream_data.tasks), with_text=True)
        return work

    def evaluation(self, step: int) -> Work:
        if step in self.bounds:
            return self._scored("validation", list(self.stream_data.tasks), with_text=True)
        return self._regular(step) if step % self.config.eval.every_steps == 0 else Work()

    def control(self, step: int) -> Work:
        """The reference of a task that ended, and what the replay controller looks at."""
        ended = [span.task for span in self.plan.spans if span.end == step]
        work = self._controlled(ended[-1:])
        return work + self._steering(step) if step % self.config.control.period == 0 else work

    def _regular(self, step: int) -> Work:
        return self._scored("validation", self.plan.seen(step), with_text=self.config.eval.text_metrics_at == "always")

    def _steering(self, step: int) -> Work:
        steers = self.config.control.mode == "closed_loop" and self.config.model.replay
        return self._controlled(self.plan.past(step)) if steers else Work()

    def _controlled(self, names: list[str]) -> Work:
        return Work(
            float(sum(self.stream_data.tasks[name].num_control * self.stream_data.tasks[name].length for name in names))
        )

    def _scored(self, split: str, names: list[str], *, with_text: bool) -> Work:
        settings = self.config.eval
        tokens = sum(
            _tokens(self.stream_data.tasks[name], split, settings.batch_size, settings.max_batches) for name in names
        )
        return Work(tokens, len(names) if with_text and settings.text_sequences else 0)


def _tokens(data: TaskData, split: str, batch_size: int, max_batches: int | None) -> float:
    available = max(0, data.task.splits[split].tokens - 1)
    return available if max_batches is None else min(available, max_batches * batch_size * data.length)


class Forecast:
    """Hears the records of a run with the time of each, and says how many seconds are left.

    The first step of a process, in which memory is claimed and parts are compiled, tells nothing about the others; nor
    does the first evaluation once there has been a second.
    """

    def __init__(self, agenda: Agenda, start: int, now: float) -> None:
        self.agenda, self.step, self.seen_at = agenda, start, now
        self.tokens_per_step = agenda.config.train.tokens_per_step
        self.steps: deque[float] = deque(maxlen=RECENT)
        self.between: deque[float] = deque(maxlen=RECENT)
        self.has_begun = False
        self.plain: list[tuple[float, Work]] = []
        self.with_text: tuple[float, Work] | None = None

    def see(self, record: Record, now: float) -> None:
        gap, self.seen_at = now - self.seen_at, now
        self.step = max(self.step, record.step)
        if record.kind in ("train", "nonfinite"):
            speed = record.metrics.get("train/tokens_per_second", 0.0)
            seconds = self.tokens_per_step / speed if speed > 0 else gap
            if self.has_begun:
                self.steps.append(seconds)
                self.between.append(max(0.0, gap - seconds))
            self.has_begun = True
        elif record.kind == "eval":
            self._note(gap, self.agenda.evaluation(record.step))

    def _note(self, seconds: float, work: Work) -> None:
        if work.texts:
            self.with_text = (seconds, work)
        elif work.tokens:
            self.plain = [*self.plain[-5:], (seconds, work)]
            if len(self.plain) == 2:
                del self.plain[0]

    def left(self) -> float | None:
        """Seconds to the end; None before the second step."""
        if not self.steps:
            return None
        a_step = sum(self.steps) / len(self.steps)
        between = sum(self.between) / len(self.between)
        work = self.agenda.after(self.step)
        return (self.agenda.plan.total_steps - self.step) * (a_step + between) + self._scoring(work, a_step)

    def _scoring(self, work: Work, a_step: float) -> float:
        per_token = a_step / self.tokens_per_step / SCORING_SPEED
        if self.plain:
            per_token = sum(s for s, _ in self.plain) / sum(done.tokens for _, done in self.plain)
        per_text = 0.0
        if self.with_text is not None:
            seconds, done = self.with_text
            per_text = max(0.0, seconds - per_token * done.tokens) / done.texts
        return per_token * work.tokens + per_text * work.texts
