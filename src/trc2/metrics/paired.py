"""Two models compared on the same documents: how much worse one is, with an interval."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trc2.stats.intervals import t_quantile

ROUNDS = 2000
AT_ONCE = 4_000_000  # documents drawn at once, which bounds the memory
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A number with its 95 % interval."""

    value: float
    low: float
    high: float


def paired_rise(
    before: NDArray[np.float64], after: NDArray[np.float64], tokens: NDArray[np.int64], rng: np.random.Generator
) -> Interval:
    """The fraction by which the perplexity rose, with a 95 % interval over documents: bootstrap or Student, the wider.

    `before` and `after` are Σ −log p of each document under the two models. The bootstrap draws documents in pairs, so
    that difficulty for both models cancels. NaN stays NaN. The bounds of a single document are infinite.
    """
    mean = document_mean(after - before, tokens, rng)
    low, high = (float(np.expm1(bound)) if np.isfinite(bound) else bound for bound in (mean.low, mean.high))
    return Interval(float(np.expm1(mean.value)), low, high)


def paired_fall(before: NDArray[np.float64], after: NDArray[np.float64], rng: np.random.Generator) -> Interval:
    """By how much the mean of a score per document fell, with the same interval."""
    return document_mean(before - after, np.ones(len(before), dtype=np.int64), rng)


def document_mean(difference: NDArray[np.float64], weights: NDArray[np.int64], rng: np.random.Generator) -> Interval:
    """Σ difference / Σ weights over documents, with the same interval."""
    value = float(difference.sum() / max(1, weights.sum()))
    if len(weights) < 2 or not np.isfinite(difference).all():
        bound = float("inf") if np.isfinite(value) else float("nan")
        return Interval(value, -bound, bound)
    means = []
    for rounds in np.array_split(np.arange(ROUNDS), 1 + ROUNDS * len(weights) // AT_ONCE):
        chosen = rng.integers(len(weights), size=(len(rounds), len(weights)))
        means.append(difference[chosen].sum(axis=1) / weights[chosen].sum(axis=1))
    low, high = np.quantile(np.concatenate(means), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    reach = _student_reach(difference, weights, value)
    return Interval(value, min(float(low), value - reach), max(float(high), value + reach))


def _student_reach(difference: NDArray[np.float64], weights: NDArray[np.int64], value: float) -> float:
    """Half of Student's interval of Σ difference / Σ weights. The bootstrap interval of few documents is too narrow."""
    documents = len(weights)
    residuals = difference - value * weights
    error = np.sqrt(documents / (documents - 1) * (residuals**2).sum()) / max(1, weights.sum())
    return float(error * t_quantile((1 + CONFIDENCE) / 2, documents - 1))
