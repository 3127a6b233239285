"""Overlap of evaluation text with train text, within and across tasks, by n-grams of tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trc2.stream.cache import CACHE_SCHEMA, Waiting, digest, remembered
from trc2.stream.packed import COUNTED, PreparedTask

NGRAM = 13  # tokens. Shorter ones occur by chance, longer ones miss edited copies
CHUNK = 1_000_000
MAX_EVAL_NGRAMS = 2_000_000
_PRIME = np.uint64(0x9E3779B97F4A7C15)


def ngram_hashes(tokens: NDArray[Any]) -> NDArray[np.uint64]:
    """A 64-bit hash of every run of NGRAM tokens."""
    if len(tokens) < NGRAM:
        return np.empty(0, dtype=np.uint64)
    return _hashed(np.lib.stride_tricks.sliding_window_view(tokens.astype(np.uint64) + np.uint64(1), NGRAM))


def overlap_matrix(
    tasks: dict[str, PreparedTask], seeds: dict[str, PreparedTask], cache: Path, waiting: Waiting
) -> dict[str, dict[str, float]]:
    """Share of each evaluation split's n-grams that occur in each train split: {"task/validation": {"task": share}}.

    `seeds` are replayed texts that do not belong to a task.
    """
    key = digest([CACHE_SCHEMA, _checksums(tasks), *([_checksums(seeds)] if seeds else [])])
    return remembered(
        cache / f"{key[:16]}.json", make=lambda: json.dumps(_measure(tasks, seeds)), read=json.loads, waiting=waiting
    )


def _checksums(tasks: dict[str, PreparedTask]) -> list[Any]:
    return [[name, {s: i.content for s, i in task.splits.items()}] for name, task in sorted(tasks.items())]


def _measure(tasks: dict[str, PreparedTask], seeds: dict[str, PreparedTask]) -> dict[str, dict[str, float]]:
    wanted = {
        f"{name}/{split}": np.unique(_counted_hashes(task, split))
        for name, task in tasks.items()
        for split in ("validation", "test")
        if task.splits[split].tokens >= NGRAM
    }
    matrix: dict[str, dict[str, float]] = {name: {} for name in wanted}
    for name, task in {**tasks, **seeds}.items():
        seen = _seen_in_train(task, wanted)
        for key in wanted:
            matrix[key][name] = float(seen[key].mean())
    return matrix


def _counted_hashes(task: PreparedTask, split: str) -> NDArray[np.uint64]:
    """The n-grams of a split, of conversations only those that end in a token on which the loss is taken.

    Conversations share the words of the template and of the system's message, which are not learned.
    """
    tokens = task.read_tokens(split, 0, MAX_EVAL_NGRAMS)
    is_counted = _ends_counted(task, split)
    hashes = ngram_hashes(tokens)
    return hashes if is_counted is None else hashes[is_counted[: len(hashes)]]


def _ends_counted(task: PreparedTask, split: str) -> NDArray[np.bool_] | None:
    """Whether each n-gram ends in a token on which the loss is taken. None if all do."""
    labels = task.labels(split)
    return None if labels is None else np.asarray(labels[NGRAM - 1 :]) & COUNTED > 0


def _seen_in_train(task: PreparedTask, wanted: dict[str, NDArray[np.uint64]]) -> dict[str, NDArray[np.bool_]]:
    """For each set of distinct hashes, which of them occur in a train split."""
    seen = {key: np.zeros(len(hashes), dtype=bool) for key, hashes in wanted.items()}
    for start in range(0, task.splits["train"].tokens, CHUNK):
        # Chunks overlap by one n-gram less a token, so that none is lost at the seam.
        hashes = np.unique(ngram_hashes(task.read_tokens("train", start, CHUNK + NGRAM - 1)))
        for key, eval_hashes in wanted.items():
            seen[key] |= np.isin(eval_hashes, hashes, assume_unique=True)
    return seen


# ----------------------------------------------------------------------------------------------------- by document


def shared_by_document(
    task: PreparedTask, split: str, others: list[PreparedTask], cache: Path, waiting: Waiting
) -> NDArray[np.float64]:
    """For every document of a split, the share of its n-grams that occur in the train text of `others`.

    A document shorter than an n-gram gets 1 if it is one of the others' documents, else 0.
    """
    trained = [other.splits["train"].sha256 for other in others]
    info = task.splits[split]
    key = digest(["documents", CACHE_SCHEMA, info.content, info.documents_sha256, sorted(trained)])
    shares = remembered(
        cache / f"{key[:16]}.json",
        make=lambda: json.dumps(_measure_documents(task, split, others).tolist()),
        read=json.loads,
        waiting=waiting,
    )
    return np.asarray(shares, dtype=np.float64)


def _measure_documents(task: PreparedTask, split: str, others: list[PreparedTask]) -> NDArray[np.float64]:
    tokens, starts = np.asarray(task.tokens(split)), np.asarray(task.document_starts(split))
    ends = np.append(starts[1:], len(tokens))
    hashes = ngram_hashes(tokens)
    positions = np.arange(len(hashes))
    owners = np.searchsorted(starts, positions, side="right") - 1
    inside = positions + NGRAM <= ends[owners]  # others reach into the next document
    is_counted = _ends_counted(task, split)
    if is_counted is not None:
        inside &= is_counted
    hashes, owners = hashes[inside], owners[inside]
    different, numbers = np.unique(hashes, return_inverse=True)
    is_seen = np.zeros(len(different), dtype=bool)
    short, short_hashes = _short_documents(task, split)
    is_copy = np.zeros(len(short_hashes), dtype=bool)
    for other in others:
        is_seen |= _seen_in_train(other, {"": different})[""]
        is_copy |= np.isin(short_hashes, _short_documents(other, "train")[1])
    count = len(starts)
    shares = np.bincount(owners, weights=is_seen[numbers], minlength=count) / np.maximum(
        1, np.bincount(owners, minlength=count)
    )
    shares[short] = is_copy
    return shares


def _short_documents(task: PreparedTask, split: str) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """The documents shorter than an n-gram, and a hash of each one's tokens, padded with 0, which no token has."""
    tokens, starts = task.tokens(split), np.asarray(task.document_starts(split))
    lengths = np.diff(np.append(starts, len(tokens)))
    short = np.flatnonzero(lengths < NGRAM)
    index = starts[short, None] + np.arange(NGRAM)
    wide = np.asarray(tokens[np.minimum(index, max(0, len(tokens) - 1))]).astype(np.uint64) + np.uint64(1)
    wide[np.arange(NGRAM) >= lengths[short, None]] = 0
    return short, _hashed(wide)


def _hashed(wide: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A hash of every row of NGRAM numbers."""
    hashes = np.zeros(len(wide), dtype=np.uint64)
    for offset in range(NGRAM):
        hashes = hashes * _PRIME + wide[:, offset]
        hashes ^= hashes >> np.uint64(29)
    return hashes
