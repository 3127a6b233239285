"""How fast this machine trains and scores a recipe, measured in a few seconds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from trc2.bench.subjects import prepared_model, scoring_pass, training_step
from trc2.bench.timing import time_once
from trc2.config import RunConfig
from trc2.train.allocator import keep_freed_memory
from trc2.train.precision import choose_device

WARMUP, LEAST = 2, 3


@dataclass(frozen=True)
class Speed:
    """Seconds of one optimizer step and of scoring one batch of the evaluation, with memory and stores full."""

    step: float
    scoring: float

    def tokens_per_second(self, run: RunConfig) -> float:
        return run.train.tokens_per_step / self.step


def measure_speed(run: RunConfig, seconds: float) -> Speed:
    """Train and score random text as the trainer would, for about so many seconds; the text does not matter."""
    keep_freed_memory()
    net = prepared_model(run.model).to(choose_device(run.output.device))
    one = _seconds_of(training_step(net, run), 0.7 * seconds)
    scoring = _seconds_of(scoring_pass(net, run.eval.batch_size, run.train.sequence_length), 0.3 * seconds)
    return Speed(one * run.train.micro_batches, scoring)


def _seconds_of(run: Callable[[], object], seconds: float) -> float:
    """The mean of the steadier half: a machine that others use is slow for moments, which a run meets too."""
    begun, found = time.monotonic(), list[float]()
    while len(found) < WARMUP + LEAST or time.monotonic() - begun < seconds:
        found.append(time_once(run))
    return statistics.fmean(sorted(found[WARMUP:])[: max(LEAST, 3 * len(found[WARMUP:]) // 4)])
