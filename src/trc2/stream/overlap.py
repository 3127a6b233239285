"""How much evaluation text a model could have seen: n-grams that also occur in train text, within and across tasks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trc2.stream.cache import CACHE_SCHEMA, Waiting, digest, remembered

if TYPE_CHECKING:
    from trc2.stream.prepare import PreparedTask

NGRAM = 13  # tokens; shorter ones occur by chance, longer ones miss edited copies
CHUNK = 1_000_000
MAX_EVAL_NGRAMS = 2_000_000
_PRIME = np.uint64(0x9E3779B97F4A7C15)


def ngram_hashes(tokens: NDArray[Any]) -> NDArray[np.uint64]:
    """A 64-bit hash of every run of NGRAM tokens."""
    if len(tokens) < NGRAM:
        return np.empty(0, dtype=np.uint64)
    wide = tokens.astype(np.uint64) + np.uint64(1)
    hashes = np.zeros(len(tokens) - NGRAM + 1, dtype=np.uint64)
    for offset in range(NGRAM):
        hashes = hashes * _PRIME + wide[offset : offset + len(hashes)]
        hashes ^= hashes >> np.uint64(29)
    return hashes


def overlap_matrix(tasks: dict[str, PreparedTask], cache: Path, waiting: Waiting) -> dict[str, dict[str, float]]:
    """Share of each evaluation split's n-grams found in each train split: {"task/validation": {"task": share}}."""
    checksums = [[name, {s: i.sha256 for s, i in task.splits.items()}] for name, task in sorted(tasks.items())]
    key = digest([CACHE_SCHEMA, checksums])
    return remembered(
        cache / f"{key[:16]}.json", make=lambda: json.dumps(_measure(tasks)), read=json.loads, waiting=waiting
    )


def _measure(tasks: dict[str, PreparedTask]) -> dict[str, dict[str, float]]:
    wanted = {
        f"{name}/{split}": np.unique(ngram_hashes(task.read_tokens(split, 0, MAX_EVAL_NGRAMS)))
        for name, task in tasks.items()
        for split in ("validation", "test")
        if task.splits[split].tokens >= NGRAM
    }
    matrix: dict[str, dict[str, float]] = {name: {} for name in wanted}
    for name, task in tasks.items():
        seen = {key: np.zeros(len(hashes), dtype=bool) for key, hashes in wanted.items()}
        for start in range(0, task.splits["train"].tokens, CHUNK):
            # Chunks overlap by one n-gram less a token, so that none is lost at the seam.
            hashes = np.unique(ngram_hashes(task.read_tokens("train", start, CHUNK + NGRAM - 1)))
            for key, eval_hashes in wanted.items():
                seen[key] |= np.isin(eval_hashes, hashes, assume_unique=True)
        for key in wanted:
            matrix[key][name] = float(seen[key].mean())
    return matrix
