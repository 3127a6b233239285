"""Kneser–Ney counts against a slow version with dictionaries."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from studies.counts import probabilities
from trc2.recall.counts import DISCOUNT, Counts

VOCABULARY = 5


def slow(rows: np.ndarray, order: int, context: tuple[int, ...], token: int) -> float:
    """The recursion of the docstring, with sets of n-grams instead of sorted arrays."""
    grams = Counter(tuple(int(t) for t in row[i : i + order]) for row in rows for i in range(len(row) - order + 1))
    levels = {order: grams}
    for shorter in range(order - 1, 0, -1):
        levels[shorter] = Counter(gram[1:] for gram in levels[shorter + 1])
    probability = 1 / VOCABULARY
    for n in range(1, len(context) + 2):
        own = context[len(context) - n + 1 :]
        total = sum(count for gram, count in levels[n].items() if gram[:-1] == own)
        if total:
            followers = sum(1 for gram in levels[n] if gram[:-1] == own)
            seen = max(0.0, levels[n][(*own, token)] - DISCOUNT)
            probability = (seen + DISCOUNT * followers * probability) / total
    return probability


rows_of_tokens = st.lists(st.lists(st.integers(0, VOCABULARY - 1), min_size=6, max_size=6), min_size=1, max_size=5).map(
    lambda rows: np.asarray(rows, dtype=np.int64)
)


@settings(max_examples=40, deadline=None)
@given(rows_of_tokens, rows_of_tokens, st.integers(1, 3))
def test_probabilities_equal_the_slow_version(trained: np.ndarray, scored: np.ndarray, order: int) -> None:
    found = probabilities(Counts.of(list(trained), VOCABULARY, order, count_starts=False), scored)
    for row, values in zip(scored, found, strict=True):
        for place in range(1, len(row)):
            context = tuple(int(t) for t in row[max(0, place - order + 1) : place])
            assert values[place - 1] == pytest.approx(slow(trained, order, context, int(row[place])), rel=1e-12)
