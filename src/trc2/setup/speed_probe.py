"""How fast this machine trains and scores a recipe, measured in a few seconds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from trc2.config import RunConfig
from trc2.costs.benchmarks import prepared_model, scoring_pass, training_step
from trc2.costs.timing import time_once
from trc2.system.machine import keep_freed_memory
from trc2.system.precision import choose_device

WARMUP, LEAST = 2, 3
HAMPERED = 0.25
EVALUATION_SHARE = 0.3  # of a continued run's time: evaluations, and the acceptance check at its end


@dataclass(frozen=True)
class Speed:
    """Seconds of one optimizer step and of scoring one batch of the evaluation, with memory and stores full."""

    step: float
    scoring: float
    waiting: float = 0.0
    """The share of this time in which the process could not go on, because it had no core."""

    def tokens_per_second(self, run: RunConfig) -> float:
        return run.train.tokens_per_step / self.step

    def remark(self) -> str | None:
        """A sentence where another moment may well give another speed."""
        if self.waiting < HAMPERED:
            return None
        return f"The machine is busy: for {self.waiting:.0%} of the measurement this process got no core."


def measure_speed(run: RunConfig, seconds: float) -> Speed:
    """Train and score random text as the trainer would, for about so many seconds. The text does not matter."""
    keep_freed_memory()
    net = prepared_model(run.model).to(choose_device(run.output.device))
    begun, worked = time.perf_counter(), time.thread_time()
    one = _seconds_of(training_step(net, run), 0.7 * seconds)
    scoring = _seconds_of(scoring_pass(net, run.eval.batch_size, run.train.sequence_length), 0.3 * seconds)
    return Speed(one * run.train.micro_batches, scoring, waiting_share(begun, worked))


def steps_within(run: RunConfig, seconds: float, num_tasks: int) -> int:
    """Steps of each of `num_tasks` new tasks that a continued run can train in so many seconds on this machine."""
    speed = measure_speed(run, min(5.0, 0.05 * seconds))
    return max(1, int(seconds * (1 - EVALUATION_SHARE) / (speed.step * num_tasks)))


def waiting_share(begun: float, worked: float) -> float:
    """Since these readings of `perf_counter` and `thread_time`, the share of the time in which this thread stood still.

    It computes from beginning to end, and where torch has several threads it spins while it waits for them: on a
    machine of its own the share is about 0. A process that waits for a GPU also has 0.
    """
    if torch.cuda.is_available():
        return 0.0
    return max(0.0, 1.0 - (time.thread_time() - worked) / max(1e-9, time.perf_counter() - begun))


def _seconds_of(run: Callable[[], object], seconds: float) -> float:
    """The mean of the steadier half: a machine that others use is slow for moments, which a run meets too."""
    begun, times = time.monotonic(), list[float]()
    while len(times) < WARMUP + LEAST or time.monotonic() - begun < seconds:
        times.append(time_once(run))
    return statistics.fmean(sorted(times[WARMUP:])[: max(LEAST, 3 * len(times[WARMUP:]) // 4)])
