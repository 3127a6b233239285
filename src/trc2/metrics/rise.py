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
    difference = after - before
    value = float(np.expm1(difference.sum() / max(1, tokens.sum())))
    if len(tokens) < 2 or not np.isfinite(difference).all():
        nowhere = float("inf") if np.isfinite(value) else float("nan")
        return Interval(value, -nowhere, nowhere)
    drawn = np.empty(ROUNDS)
    for number in range(ROUNDS):
        chosen = chance.integers(len(tokens), size=len(tokens))
        drawn[number] = difference[chosen].sum() / tokens[chosen].sum()
    low, high = np.quantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(value, float(np.expm1(low)), float(np.expm1(high)))
