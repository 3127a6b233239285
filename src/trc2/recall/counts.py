"""Counts of which token followed which in stored documents, as an exact interpolated Kneser–Ney model.

All n-grams of one length are a sorted array of numbers, `node of the first n−1 tokens · V + last token`, where a node
is the place of an n-gram in its own array. So every n-gram is exact in 64 bits, and the tokens that followed a context
are neighbours in the array.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

DISCOUNT = 0.75
ORDER = 5  # contexts of up to four tokens

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
FloatType = type[np.float32] | type[np.float64]


@dataclass(frozen=True)
class Level:
    """The n-grams of one length, and what followed their first n−1 tokens, the context.

    The n-grams of context c are `keys[starts[c] : starts[c + 1]]`. Counts, totals and followers end with a 0, which is
    what the node −1 of an n-gram that is not there finds.
    """

    keys: Ints
    counts: Ints
    starts: Ints
    totals: Ints
    followers: Ints

    def find(self, keys: Ints) -> Ints:
        """The nodes of these keys, −1 for those that are not there."""
        if not len(self.keys):
            return np.full(keys.shape, -1)
        place = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[place] == keys, place, -1)


@dataclass(frozen=True)
class Match:
    """The longest stored context at each position: its length, and how often and by how many tokens it was followed.

    Length 0 means that even the last token was never followed by another one in the store.
    """

    length: Ints
    total: Ints
    followers: Ints

    def at(self, rows: Ints) -> Match:
        return Match(self.length[rows], self.total[rows], self.followers[rows])


class Counts:
    """P_n(w | c) = max(0, N(cw) − D)/N(c) + D · followers(c)/N(c) · P_{n−1}(w | shorter c). P_0 is uniform.

    At the highest order N counts occurrences, below it the different tokens that come before (continuations).
    """

    def __init__(self, vocabulary: int, levels: Sequence[Level]) -> None:
        self.vocabulary, self.levels = vocabulary, tuple(levels)
        everything = np.arange(vocabulary)
        roots = np.zeros((vocabulary, 1), dtype=np.int64)
        self._unigram = self.probabilities(roots, everything)
        logs = np.log(self._unigram)
        self._log_unigram: dict[FloatType, NDArray[Any]] = {np.float32: logs.astype(np.float32), np.float64: logs}

    @property
    def order(self) -> int:
        return len(self.levels)

    @classmethod
    def of(
        cls, documents: Sequence[NDArray[Any]], vocabulary: int, order: int = ORDER, *, count_starts: bool = True
    ) -> Counts:
        """Count documents of token ids. The result does not depend on their order.

        The beginning of a document counts as one more token that can come before. Windows that are cut anywhere have no
        such beginning: with `count_starts=False` their first tokens are context of later ones only.
        """
        lengths = np.asarray([len(document) for document in documents], dtype=np.int64)
        tokens = np.concatenate([np.empty(0, np.int64), *documents]).astype(np.int64, copy=False)
        place = np.arange(len(tokens)) - np.repeat(lengths.cumsum() - lengths, lengths)
        shorter, num_contexts = np.zeros(len(tokens), dtype=np.int64), 1
        levels: list[Level] = []
        for n in range(1, order + 1):
            ends = np.flatnonzero(place >= n - 1)
            contexts = shorter[ends - 1] if n > 1 else shorter  # the root is the context of all single tokens
            keys, an_end, nodes = _unique(contexts * vocabulary + tokens[ends])
            if levels:
                # Dropping the first token of an n-gram leaves the shorter one that ends at the same token.
                is_counted = np.zeros(len(keys), dtype=bool)
                is_counted[nodes[place[ends] >= (0 if count_starts else order - 1)]] = True
                before = np.bincount(shorter[ends[an_end[is_counted]]], minlength=num_contexts)
                if count_starts:
                    before[shorter[place == n - 2]] += 1  # once per n-gram, however many documents begin with it
                levels[-1] = _with_counts(levels[-1], before, vocabulary)
            occurrences = np.bincount(nodes, minlength=len(keys))
            children = np.bincount(keys // vocabulary, minlength=num_contexts)
            starts = np.concatenate(([0], children.cumsum()))
            levels.append(_with_counts(Level(keys, keys, starts, keys, keys), occurrences, vocabulary))
            shorter, num_contexts = np.full(len(tokens), -1), len(keys)
            shorter[ends] = nodes
        return cls(vocabulary, levels)

    def follow(self, tokens: Ints, valid: NDArray[np.bool_] | None = None, earlier: Ints | None = None) -> Ints:
        """The nodes of the contexts of 0, 1, … tokens that end at every token: (B, T) → (B, T, order), −1 for unknown.

        `earlier` holds the nodes at the token before the first, for rows that are read piece by piece. A context never
        includes a token that is not `valid`.
        """
        rows, length = tokens.shape
        nodes = np.full((rows, length, self.order), -1)
        nodes[..., 0] = 0
        for n in range(1, self.order):
            contexts = np.full((rows, length), 0 if n == 1 else -1)
            contexts[:, 1:] = nodes[:, :-1, n - 1]
            if earlier is not None:
                contexts[:, 0] = earlier[:, n - 1]
            nodes[..., n] = self.levels[n - 1].find(contexts * self.vocabulary + tokens)
            if valid is not None:
                nodes[..., n][~valid] = -1
        return nodes

    def probabilities(self, nodes: Ints, targets: Ints) -> Floats:
        """P of every target after the contexts at its position: (P, order) and (P,) → (P,)."""
        probability = np.full(len(targets), 1.0 / self.vocabulary)
        for level, contexts in zip(self.levels, nodes.T, strict=False):
            total = level.totals[contexts]
            count = level.counts[level.find(contexts * self.vocabulary + targets)]
            kept = np.maximum(0.0, count - DISCOUNT) + DISCOUNT * level.followers[contexts] * probability
            probability = np.where(total > 0, kept / np.maximum(total, 1), probability)
        return probability

    def log_distribution(self, nodes: Ints, dtype: FloatType = np.float64) -> NDArray[Any]:
        """log P of all tokens: (P, order) → (P, V). Only tokens that followed a context are computed one by one."""
        rest = np.ones(len(nodes))  # the share that is left to shorter contexts
        additions = []
        for level, contexts in zip(self.levels[:0:-1], nodes.T[:0:-1], strict=True):
            rows = np.flatnonzero(level.totals[contexts])
            if not len(rows):
                continue
            contexts = contexts[rows]
            total = level.totals[contexts]
            first, number = level.starts[contexts], level.starts[contexts + 1] - level.starts[contexts]
            places = np.arange(number.sum()) + np.repeat(first - (number.cumsum() - number), number)
            value = np.maximum(0.0, level.counts[places] - DISCOUNT) * np.repeat(rest[rows] / total, number)
            additions.append((np.repeat(rows, number), level.keys[places] % self.vocabulary, value))
            rest[rows] *= DISCOUNT * level.followers[contexts] / total
        logs: NDArray[Any] = np.log(rest).astype(dtype)[:, None] + self._log_unigram[dtype]
        probability = np.empty(logs.shape)  # of tokens that followed a context. Others are never touched
        for row, token, _ in additions:
            probability[row, token] = rest[row] * self._unigram[token]
        for row, token, value in additions:  # within one level every token occurs once in a row
            probability[row, token] += value
        for row, token, _ in additions:
            logs[row, token] = np.log(probability[row, token])
        return logs

    def match(self, nodes: Ints) -> Match:
        """The longest context at each position that something followed: (P, order) → three arrays (P,)."""
        found = list(zip(self.levels[1:], nodes.T[1:], strict=True))
        totals, followers = (
            np.stack([np.zeros(len(nodes), np.int64), *(getattr(level, name)[contexts] for level, contexts in found)])
            for name in ("totals", "followers")
        )
        length = self.order - 1 - np.argmax(totals[::-1] > 0, axis=0)
        length[totals.max(axis=0) == 0] = 0
        rows = np.arange(len(nodes))
        return Match(length, totals[length, rows], followers[length, rows])


def _unique(keys: Ints) -> tuple[Ints, Ints, Ints]:
    """The sorted keys without repetition, a place where each one stands, and for every place the number of its key.

    Unlike `np.unique` it does not look for the first place, so it need not sort stably.
    """
    order = np.argsort(keys)
    in_order = keys[order]
    is_new = np.ones(len(keys), dtype=bool)
    is_new[1:] = in_order[1:] != in_order[:-1]
    numbers = np.empty(len(keys), dtype=np.int64)
    numbers[order] = np.cumsum(is_new) - 1
    return in_order[is_new], order[is_new], numbers


def _with_counts(level: Level, counts: Ints, vocabulary: int) -> Level:
    contexts, num_contexts = level.keys // vocabulary, len(level.starts) - 1
    totals = np.bincount(contexts, counts, minlength=num_contexts).astype(np.int64)
    followers = np.bincount(contexts[counts > 0], minlength=num_contexts)
    counts, totals, followers = (np.append(values, 0) for values in (counts, totals, followers))
    return replace(level, counts=counts, totals=totals, followers=followers)
