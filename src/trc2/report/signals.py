"""What happens inside a run, as curves, and which of them are worth a panel."""

from __future__ import annotations

import math
from collections.abc import Sequence

from trc2.report.finished import FinishedRun

Signal = tuple[str, str]
"""Metric path and words."""

WRITES: tuple[Signal, ...] = (
    ("hippocampus/surprise_mean", "mean surprise"),
    ("hippocampus/surprise_max", "largest surprise"),
    ("hippocampus/threshold", "write threshold τ"),
    ("hippocampus/keep_fraction", "written ÷ candidates"),
    ("hippocampus/raw_fraction", "above τ before its update ÷ candidates"),
    ("hippocampus/writes", "writes per step"),
)
LOSSES: tuple[Signal, ...] = (
    ("train/loss_td", "critic, temporal difference"),
    ("train/loss_predictor", "predictor"),
    ("train/loss_replay", "replay"),
    ("train/loss_router", "router"),
    ("train/loss_load_balance", "load balance"),
)
STRENGTHS: tuple[Signal, ...] = (
    ("replay/coefficient", "weight of replay λ_rep"),
    ("replay/share", "replayed share of a step's tokens"),
)
POINTS = 300  # of a line; more are not seen
SAME = 0.01  # two curves that differ by less, to scale, show one thing
FLAT = 0.02  # a curve that varies by less after its beginning is a number


def train_curve(run: FinishedRun, path: str) -> list[tuple[int, float]]:
    """A metric of the training records, thinned."""
    steps, values = run.series("train", path)
    every = max(1, len(steps) // POINTS)
    return list(zip(steps[::every], values[::every], strict=True))


def worth_showing(runs: Sequence[FinishedRun], signals: Sequence[Signal]) -> tuple[list[Signal], str]:
    """Signals without those that say nothing new, and sentences that say it instead."""
    there = [signal for signal in signals if any(varies(train_curve(run, signal[0])) for run in runs)]
    kept: list[Signal] = []
    equal: dict[str, list[str]] = {}
    said = ""
    for path, words in there:
        twin = next((other for other in kept if is_same(runs, path, other[0])), None)
        number = resting_at(runs, path)
        if twin is not None:
            equal.setdefault(twin[1], []).append(words)
        elif number is not None:
            said += f" After the beginning, {words} stays at {number:.3g}."
        else:
            kept.append((path, words))
    for words, others in equal.items():
        said += f" Within 1 % the same curve as {words}, to scale: {'; '.join(others)}."
    logged = [signal for signal in signals if any(train_curve(run, signal[0]) for run in runs)]
    return (kept, said) if kept else ((there or logged)[:1], "")


def varies(curve: Sequence[tuple[int, float]]) -> bool:
    """Whether there is anything but zeros."""
    return any(value != 0 for _, value in curve)


def is_same(runs: Sequence[FinishedRun], one: str, other: str) -> bool:
    """Whether one curve is the other times one number in all runs, but for a hundredth of its height on average."""
    first: list[float] = []
    second: list[float] = []
    for run in runs:
        (steps, values), (others, more) = run.series("train", one), run.series("train", other)
        if steps != others:
            return False
        first += values
        second += more
    if not first or not sum(second) or not all(map(math.isfinite, first + second)):
        return False
    ratio = sum(first) / sum(second)
    distance = sum(abs(a - ratio * b) for a, b in zip(first, second, strict=True)) / len(first)
    return distance <= SAME * max(map(abs, first))


def resting_at(runs: Sequence[FinishedRun], path: str) -> float | None:
    """The number that a metric stays at in all runs after a tenth of the steps, if it does."""
    values: list[float] = []
    for run in runs:
        curve = train_curve(run, path)
        values += [value for _, value in curve[len(curve) // 10 :]]
    if not values or not all(map(math.isfinite, values)):
        return None
    middle = sorted(values)[len(values) // 2]
    far = sum(abs(value - middle) > FLAT * abs(middle) for value in values)
    return middle if far <= 0.02 * len(values) else None
