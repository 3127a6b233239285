"""Which task is trained when, and at which learning rate."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trc2.config import RunConfig, StreamConfig, TrainConfig
from trc2.metrics.forgetting import TaskSpan
from trc2.runs.equal_cost import budget_of


@dataclass(frozen=True)
class TaskSchedule:
    """The stream laid out over optimizer steps. `steps` is each task's own share of them."""

    spans: tuple[TaskSpan, ...]
    train: TrainConfig
    steps: tuple[int, ...]

    @classmethod
    def of(cls, stream: StreamConfig, train: TrainConfig, scale: float = 1.0) -> TaskSchedule:
        """Task after task. In a joint stream all of them at once, from the first step to the last.

        `scale` stretches every task, see `trc2.runs.equal_cost`.
        """
        steps = tuple(max(1, round(task.steps * scale)) for task in stream.trained)
        spans, start = [], 0
        for task, count in zip(stream.trained, steps, strict=True):
            spans.append(TaskSpan(task.name, start, start + count))
            start += count
        if stream.mode == "joint":
            spans = [TaskSpan(task.name, 0, start) for task in stream.trained]
        return cls(tuple(spans), train, steps)

    @classmethod
    def of_run(cls, config: RunConfig) -> TaskSchedule:
        """The schedule of a whole run, with its budget."""
        assert config.stream is not None
        return cls.of(config.stream, config.train, budget_of(config).scale)

    def ending_at(self, step: int) -> TaskSchedule:
        """The same schedule of a run that stopped after this step. Tasks that did not begin are left out."""
        spans = tuple(TaskSpan(s.task, s.start, min(s.end, step)) for s in self.spans if s.start < step)
        return TaskSchedule(spans, self.train, tuple(span.end - span.start for span in spans))

    @property
    def total_steps(self) -> int:
        return self.spans[-1].end

    def at(self, step: int) -> TaskSpan:
        """The task trained in the given step, counted from 0."""
        for span in self.spans:
            if step < span.end:
                return span
        raise IndexError(f"step {step} is past the end of the stream, {self.total_steps}")

    def is_boundary(self, step: int) -> bool:
        return any(step == span.end for span in self.spans)

    def seen(self, step: int) -> list[str]:
        """Tasks trained at least one step."""
        return [span.task for span in self.spans if span.start < step]

    def index(self, step: int) -> int:
        """How many tasks came before the one trained in the given step."""
        return self.spans.index(self.at(step))

    def past(self, step: int) -> list[str]:
        """Tasks that ended before the step. One that ends right now is still current."""
        return [span.task for span in self.spans if span.end < step]

    def anneal_start(self, span: TaskSpan) -> int | None:
        """The step before which a task's anneal begins. None without one."""
        if not self.train.branches:
            return None
        return span.end - max(1, round(self.train.anneal_share * (span.end - span.start)))

    @property
    def branch_points(self) -> set[int]:
        """Steps whose checkpoints are kept because the next task starts from them."""
        return {step for step in map(self.anneal_start, self.spans) if step}

    def step_before_anneal(self, step: int) -> int | None:
        """The step from which the task that begins at `step` starts, if the task before it was annealed."""
        ended = [span for span in self.spans if span.end == step]
        return self.anneal_start(ended[-1]) or None if ended else None

    def learning_rate(self, step: int) -> float:
        """Linear warm-up, then cosine to min_lr_ratio: over the whole stream, or over each task again.

        Without a horizon: warm-up once, then the peak (wsd), or a cosine to the constant rate (infinite), and before
        every boundary a line down to min_lr_ratio.
        """
        if self.train.branches:
            return self._held_rate(step)
        begin, end = 0, self.total_steps
        if self.train.schedule == "per_task":
            span = self.at(step)
            begin, end = span.start, span.end
        warmup = self.train.warmup_of(end - begin)
        done = step - begin
        if done < warmup:
            return self.train.learning_rate * (done + 1) / warmup
        progress = (done - warmup) / max(1, end - begin - warmup)
        return self.train.learning_rate * _cosine(progress, self.train.min_lr_ratio)

    def _held_rate(self, step: int) -> float:
        train, span = self.train, self.at(step)
        begin = self.anneal_start(span)
        assert begin is not None
        warmup = train.warmup_of(self.total_steps)
        held = train.learning_rate * min(1.0, (min(step, begin) + 1) / max(1, warmup))
        if train.schedule == "infinite":
            cooled = (min(step, begin) - warmup) / max(1, train.cooldown_steps)
            held *= _cosine(min(1.0, max(0.0, cooled)), train.constant_lr_ratio)
        if step < begin:
            return held
        left = (span.end - 1 - step) / max(1, span.end - begin)
        low = train.min_lr_ratio * train.learning_rate
        return min(held, low + (held - low) * left)


def _cosine(progress: float, low: float) -> float:
    """From 1 to `low` as progress goes from 0 to 1."""
    return low + (1.0 - low) * 0.5 * (1.0 + math.cos(math.pi * progress))
