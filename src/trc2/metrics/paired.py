"""Two models on the same documents: how much worse one is, and how sure that is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trc2.stats.intervals import t_quantile

ROUNDS = 2000
AT_ONCE = 4_000_000  # documents drawn, which bounds what a round of rounds takes
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A number between two bounds, in which it lies with the confidence of `paired_rise`."""

    value: float
    low: float
    high: float


def paired_rise(
    before: NDArray[np.float64], after: NDArray[np.float64], tokens: NDArray[np.int64], rng: np.random.Generator
) -> Interval:
    """By which fraction the perplexity rose, with a 95 % interval over documents, a bootstrap's or a wider Student's.

    `before` and `after` are Σ −log p of each document under the two models. Documents are drawn anew with replacement,
    both models' sums of a document together, so what makes a document hard for both cancels out. NaN stays NaN; with
    one document there is no interval, and the bounds are infinite.
    """
    mean = _paired_mean(after - before, tokens, rng)
    low, high = (float(np.expm1(bound)) if np.isfinite(bound) else bound for bound in (mean.low, mean.high))
    return Interval(float(np.expm1(mean.value)), low, high)


def paired_fall(before: NDArray[np.float64], after: NDArray[np.float64], rng: np.random.Generator) -> Interval:
    """By how much the mean of a score per document fell, in the score's own unit; the interval is `paired_rise`'s."""
    return _paired_mean(before - after, np.ones(len(before), dtype=np.int64), rng)


def _paired_mean(difference: NDArray[np.float64], weights: NDArray[np.int64], rng: np.random.Generator) -> Interval:
    value = float(difference.sum() / max(1, weights.sum()))
    if len(weights) < 2 or not np.isfinite(difference).all():
        nowhere = float("inf") if np.isfinite(value) else float("nan")
        return Interval(value, -nowhere, nowhere)
    drawn = []
    for rounds in np.array_split(np.arange(ROUNDS), 1 + ROUNDS * len(weights) // AT_ONCE):
        chosen = rng.integers(len(weights), size=(len(rounds), len(weights)))
        drawn.append(difference[chosen].sum(axis=1) / weights[chosen].sum(axis=1))
    low, high = np.quantile(np.concatenate(drawn), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    reach = _student_reach(difference, weights, value)
    return Interval(value, min(float(low), value - reach), max(float(high), value + reach))


def _student_reach(difference: NDArray[np.float64], weights: NDArray[np.int64], value: float) -> float:
    """Half of Student's interval of the ratio Σ difference / Σ weights.

    A bootstrap of few documents is too sure of itself: of three its 95 % are 75 %. Of many the two agree.
    """
    documents = len(weights)
    left = difference - value * weights
    error = np.sqrt(documents / (documents - 1) * (left**2).sum()) / max(1, weights.sum())
    return float(error * t_quantile((1 + CONFIDENCE) / 2, documents - 1))
