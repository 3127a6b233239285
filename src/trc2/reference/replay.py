"""Appendix "Replay memory": chunks, recency buffer, reservoir."""

from __future__ import annotations

from collections.abc import Sequence

Chunk = tuple[int, ...]


def cut_chunks(rows: Sequence[Sequence[int]], length: int) -> list[Chunk]:
    chunks = []
    for row in rows:
        for m in range(len(row) // length):
            chunks.append(tuple(row[m * length : (m + 1) * length]))
    return chunks


def insert(recent: dict[int, Chunk], size: int, seen: int, chunk: Chunk) -> None:
    """Slot `seen` mod size of the recency buffer."""
    recent[seen % size] = chunk


def insert_reservoir(reservoir: dict[int, Chunk], size: int, seen: int, chunk: Chunk, draw: float) -> None:
    """Slot `seen` while there is room, then slot r = ⌊draw · (seen + 1)⌋ ~ U{0..seen} if that is a slot."""
    slot = seen if seen < size else int(draw * (seen + 1))
    if slot < size:
        reservoir[slot] = chunk
