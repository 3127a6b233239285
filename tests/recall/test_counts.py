"""Kneser–Ney counts against a slow version with dictionaries."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trc2.recall.counts import DISCOUNT, ORDER, Counts

VOCABULARY = 4
START = -1
Gram = tuple[int, ...]


def slow_levels(documents: list[list[int]], order: int, *, count_starts: bool) -> dict[int, Counter[Gram]]:
    """Counts of n-grams by their length: occurrences of the longest, different left neighbours of the others."""
    levels = {order: Counter(gram for document in documents for gram in grams(document, order))}
    for n in range(order - 1, 0, -1):
        longer = set(levels[n + 1])
        if count_starts:
            longer = {gram for document in documents for gram in grams(document, n + 1)}
            longer |= {(START, *document[:n]) for document in documents if len(document) >= n}
        levels[n] = Counter(gram[1:] for gram in longer)
    return levels


def grams(document: list[int], n: int) -> list[Gram]:
    return [tuple(document[i : i + n]) for i in range(len(document) - n + 1)]


def about(levels: dict[int, Counter[Gram]], context: Gram) -> tuple[int, int]:
    seen = [count for gram, count in levels[len(context) + 1].items() if gram[:-1] == context]
    return sum(seen), len(seen)


def slow_probability(levels: dict[int, Counter[Gram]], context: Gram, token: int) -> float:
    """The recursion of the docstring."""
    probability = 1 / VOCABULARY
    for n in range(len(context) + 1):
        own = context[len(context) - n :]
        total, followers = about(levels, own)
        if total:
            seen = max(0.0, levels[n + 1][(*own, token)] - DISCOUNT)
            probability = (seen + DISCOUNT * followers * probability) / total
    return probability


def slow_match(levels: dict[int, Counter[Gram]], context: Gram) -> tuple[int, int, int]:
    own = [context[len(context) - n :] for n in range(len(context), 0, -1)]
    return next(((len(c), *about(levels, c)) for c in own if about(levels, c)[0]), (0, 0, 0))


def contexts_of(row: list[int], order: int) -> list[Gram]:
    """The tokens before and at each position, as many as the order needs."""
    return [tuple(row[max(0, i - order + 2) : i + 1]) if order > 1 else () for i in range(len(row))]


documents_of = st.lists(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=9), min_size=1, max_size=5)
row_of = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=9)


def counts_of(documents: list[list[int]], order: int = ORDER, *, count_starts: bool = True) -> Counts:
    return Counts.of([np.asarray(d) for d in documents], VOCABULARY, order, count_starts=count_starts)


@settings(max_examples=60, deadline=None)
@given(documents_of, row_of, st.integers(1, ORDER), st.booleans())
def test_probabilities_and_matches_equal_the_slow_version(
    documents: list[list[int]], row: list[int], order: int, count_starts: bool
) -> None:
    counts = counts_of(documents, order, count_starts=count_starts)
    levels = slow_levels(documents, order, count_starts=count_starts)
    nodes = counts.follow(np.asarray([row]))[0]
    dense, match = np.exp(counts.log_distribution(nodes)), counts.match(nodes)
    for i, context in enumerate(contexts_of(row, order)):
        expected = [slow_probability(levels, context, token) for token in range(VOCABULARY)]
        assert dense[i] == pytest.approx(expected, rel=1e-12)
        one = counts.probabilities(np.repeat(nodes[i : i + 1], VOCABULARY, 0), np.arange(VOCABULARY))
        assert one == pytest.approx(expected, rel=1e-12)
        assert sum(expected) == pytest.approx(1.0, abs=1e-12)
        assert (match.length[i], match.total[i], match.followers[i]) == slow_match(levels, context)


@settings(max_examples=30, deadline=None)
@given(documents_of, st.randoms(use_true_random=False))
def test_the_order_of_documents_does_not_matter(documents: list[list[int]], rng: object) -> None:
    other = list(documents)
    rng.shuffle(other)  # type: ignore[attr-defined]
    for one, two in zip(counts_of(documents).levels, counts_of(other).levels, strict=True):
        for field in dataclasses.fields(one):
            assert np.array_equal(getattr(one, field.name), getattr(two, field.name))


@settings(max_examples=30, deadline=None)
@given(documents_of, row_of, st.integers(0, 9))
def test_a_row_read_in_two_pieces_has_the_same_contexts(documents: list[list[int]], row: list[int], cut: int) -> None:
    counts, whole = counts_of(documents), np.asarray([row])
    cut = min(cut, len(row) - 1)
    first = counts.follow(whole[:, :cut])
    rest = counts.follow(whole[:, cut:], earlier=first[:, -1] if cut else None)
    assert np.array_equal(np.concatenate((first, rest), axis=1), counts.follow(whole))


def test_contexts_do_not_reach_over_padding_or_over_the_end_of_a_document() -> None:
    counts = counts_of([[0, 1, 2, 3], [3, 0]])
    padded = counts.follow(np.asarray([[0, 0, 1, 2]]), valid=np.asarray([[False, False, True, True]]))
    assert np.array_equal(padded[0, 2:], counts.follow(np.asarray([[1, 2]]))[0])
    assert counts.match(padded[0]).length.tolist() == [0, 0, 1, 2]
    assert counts.match(counts.follow(np.asarray([[2, 3, 3]]))[0]).length.tolist() == [1, 1, 1]  # 3 → 3 is not stored


def test_large_vocabularies_stay_exact() -> None:
    vocabulary = 260_000
    rng = np.random.default_rng(0)
    document = rng.integers(0, vocabulary, 500)
    counts = Counts.of([document], vocabulary)
    nodes = counts.follow(document[None])[0, :-1]
    match = counts.match(nodes)
    assert match.length[3:].tolist() == [4] * (len(document) - 4)
    assert np.all(match.followers[3:] == 1)
    assert np.all(counts.probabilities(nodes, document[1:])[3:] > 0.25)


def test_without_documents_every_token_is_equally_likely() -> None:
    counts = Counts.of([], VOCABULARY)
    nodes = counts.follow(np.asarray([[0, 1]]))[0]
    assert np.exp(counts.log_distribution(nodes)) == pytest.approx(1 / VOCABULARY)
    assert counts.match(nodes).length.tolist() == [0, 0]
