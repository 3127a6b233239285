"""Two models on the same documents: how much worse one is, and how sure that is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ROUNDS = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A number between two bounds, in which it lies with the confidence of `paired_rise`."""

    value: float
    low: float
    high: float


def paired_rise(
    before: NDArray[np.float64], after: NDArray[np.float64], tokens: NDArray[np.int64], chance: np.random.Generator
) -> Interval:
    """By which fraction the perplexity rose, with a 95 % interval from a bootstrap over documents.

    `before` and `after` are Σ −log p of each document under the two models. Documents are drawn anew with replacement,
    both models' sums of a document together, so what makes a document hard for both cancels out. NaN stays NaN; with
    one document there is no interval, and the bounds are infinite.
    """
    mean = _paired_mean(after - before, tokens, chance)
    low, high = (float(np.expm1(bound)) if np.isfinite(bound) else bound for bound in (mean.low, mean.high))
    return Interval(float(np.expm1(mean.value)), low, high)


def paired_fall(before: NDArray[np.float64], after: NDArray[np.float64], chance: np.random.Generator) -> Interval:
    """By how much the mean of a score per document fell, in the score's own unit; the interval is `paired_rise`'s."""
    return _paired_mean(before - after, np.ones(len(before), dtype=np.int64), chance)


def _paired_mean(difference: NDArray[np.float64], weights: NDArray[np.int64], chance: np.random.Generator) -> Interval:
    value = float(difference.sum() / max(1, weights.sum()))
    if len(weights) < 2 or not np.isfinite(difference).all():
        nowhere = float("inf") if np.isfinite(value) else float("nan")
        return Interval(value, -nowhere, nowhere)
    drawn = np.empty(ROUNDS)
    for number in range(ROUNDS):
        chosen = chance.integers(len(weights), size=len(weights))
        drawn[number] = difference[chosen].sum() / weights[chosen].sum()
    low, high = np.quantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(value, float(low), float(high))
