"""Timing on a noisy machine: alternatives take turns in one process. We keep the minimum and the median."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Timing:
    """Seconds of every repeat."""

    seconds: tuple[float, ...]

    @property
    def minimum(self) -> float:
        return min(self.seconds)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def to_json(self) -> dict[str, float | list[float]]:
        return {"minimum": self.minimum, "median": self.median, "seconds": [round(s, 6) for s in self.seconds]}


Watch = Callable[[str], None]


def take_turns(
    alternatives: Mapping[str, Callable[[], object]], repeats: int, warmup: int = 1, watch: Watch = lambda _: None
) -> dict[str, Timing]:
    """Run every alternative once per round, so that a slow moment of the machine hits them alike.

    Every round has another order: after a large alternative the caches are cold and its memory was given back.
    """
    spent: dict[str, list[float]] = {name: [] for name in alternatives}
    rng = random.Random(0)
    for turn in range(-warmup, repeats):
        for name in rng.sample(list(alternatives), len(alternatives)):
            watch(f"{name}, round {max(turn, 0) + 1} of {repeats}")
            seconds = time_once(alternatives[name])
            if turn >= 0:
                spent[name].append(seconds)
    return {name: Timing(tuple(seconds)) for name, seconds in spent.items()}


def time_once(run: Callable[[], object]) -> float:
    _finish_device()
    begun = time.perf_counter()
    run()
    _finish_device()
    return time.perf_counter() - begun


def ratio(slow: Timing, fast: Timing) -> float:
    """How many times faster `fast` is: the median of the rounds' own ratios.

    A shared machine is slow for seconds at a time. Within a round both alternatives meet the same moment. Two minima
    or two medians may come from different moments.
    """
    return statistics.median(a / b for a, b in zip(slow.seconds, fast.seconds, strict=True))


def _finish_device() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
