"""Batches as functions of (seed, task, step): there is no state to save, and any step takes O(1)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trc2.errors import UserError
from trc2.nn.provenance import UNKNOWN, Origin
from trc2.ops.head_loss import IGNORE_INDEX
from trc2.stream.packed import COUNTED, PreparedTask

MAX_CONTROL_SHARE = 0.1


@dataclass(frozen=True)
class Batch:
    """Token ids, the next token of each, −100 where the loss is not taken, and the origin of the rows."""

    x: Tensor
    y: Tensor
    origin: Origin

    @property
    def num_labels(self) -> int:
        return int((self.y != IGNORE_INDEX).sum())


class SplitWindows:
    """One task's packed splits as windows of T tokens."""

    def __init__(self, task: PreparedTask, length: int, index: int = UNKNOWN) -> None:
        self.task, self.length, self.index = task, length, index

    @property
    def name(self) -> str:
        return self.task.name

    def eval_batches(self, split: str, batch_size: int, max_batches: int | None = None) -> Iterator[Batch]:
        """A split from its start: whole windows in batches, then the rest as one short row."""
        tokens = self.task.splits[split].tokens
        whole = max(0, (tokens - 1) // self.length)
        count = 0
        for start in range(0, whole, batch_size):
            if max_batches is not None and count >= max_batches:
                return
            yield self._windows(split, np.arange(start, min(start + batch_size, whole)))
            count += 1
        rest = tokens - 1 - whole * self.length
        if rest > 0 and (max_batches is None or count < max_batches):
            yield self._rows(split, np.asarray([whole * self.length]), rest)

    def sample_windows(self, split: str, count: int) -> Batch | None:
        """Evenly spaced whole windows of a split."""
        whole = max(0, (self.task.splits[split].tokens - 1) // self.length)
        if whole == 0 or count == 0:
            return None
        return self._windows(split, np.unique(np.linspace(0, whole - 1, min(count, whole)).astype(np.int64)))

    def _windows(self, split: str, windows: NDArray[np.int64]) -> Batch:
        return self._rows(split, windows * self.length, self.length)

    def _rows(self, split: str, starts: NDArray[np.int64], length: int) -> Batch:
        tokens = self.task.tokens(split)
        index = starts[:, None] + np.arange(length + 1)
        ids = torch.from_numpy(np.asarray(tokens[index]).astype(np.int64))
        begins = np.asarray(self.task.document_starts(split))
        document = np.searchsorted(begins, index[:, :-1], side="right") - 1
        position = index[:, :-1] - begins[document]
        origin = Origin(self.index, torch.from_numpy(document), torch.from_numpy(position))
        x, y = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
        labels = self.task.labels(split)
        if labels is not None:
            is_ignored = torch.from_numpy(np.asarray(labels[index[:, 1:]]) & COUNTED == 0)
            y = y.masked_fill(is_ignored, IGNORE_INDEX)  # a copy: x and y may share their memory
        return Batch(x, y, origin)


class TaskData(SplitWindows):
    """A task's training windows in its own order, without a control subset that is never trained on.

    A task that is only evaluated may have too little train text for a step.
    """

    def __init__(
        self, task: PreparedTask, index: int, *, length: int, batch_size: int, micro_batches: int, seed: int,
        control_batches: int, is_trained: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(task, length, index)
        self.batch_size, self.micro_batches, self.seed = batch_size, micro_batches, seed
        self.num_windows = max(0, (task.splits["train"].tokens - 1) // length)
        wanted = control_batches * batch_size
        self.num_control = min(wanted, max(1, int(self.num_windows * MAX_CONTROL_SHARE)))
        needed = batch_size * micro_batches
        if is_trained and self.num_pool < needed:
            raise UserError(
                f"Task '{task.name}' has {task.splits['train'].tokens} train tokens, {max(0, self.num_pool)} sequences "
                f"of {length} besides the control subset, but one step takes {needed}: give it more text, or lower "
                "train.batch_size, train.micro_batches or train.sequence_length."
            )

    @property
    def num_pool(self) -> int:
        """The number of windows for training."""
        return self.num_windows - self.num_control

    def train_batches(self, step: int, share: range | None = None) -> list[Batch]:
        """The micro-batches of the task's own step, in order, or those whose numbers are in `share`."""
        wanted = range(self.micro_batches) if share is None else share
        first = step * self.micro_batches
        numbers = np.arange((first + wanted.start) * self.batch_size, (first + wanted.stop) * self.batch_size)
        return [self._windows("train", part) for part in np.split(self.train_windows(numbers), len(wanted))]

    def train_windows(self, number: NDArray[np.int64]) -> NDArray[np.int64]:
        """The windows of the task's training sequences with these numbers. Every epoch has another order."""
        epochs, places = number // self.num_pool, number % self.num_pool
        shuffled = np.empty_like(places)
        for epoch in np.unique(epochs):
            chosen = epochs == epoch
            key = ("shuffle", self.seed, self.name, int(epoch))
            shuffled[chosen] = permute(places[chosen], self.num_pool, key)
        return self._pool(shuffled + self.num_control)

    def control_batches(self, batch_size: int) -> Iterator[Batch]:
        """The control subset, in a fixed order."""
        windows = self._pool(np.arange(self.num_control))
        for start in range(0, len(windows), batch_size):
            yield self._windows("train", windows[start : start + batch_size])

    def _pool(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """A fixed permutation, whose first places are the control subset and whose others are trained on.

        It does not depend on the seed, so that all seeds have the same control text.
        """
        return permute(places, self.num_windows, ("control", self.name))


class Mixture:
    """All tasks at once: the training sequences of their separate steps in one shuffled order."""

    def __init__(self, tasks: list[TaskData], steps: Sequence[int]) -> None:
        self.tasks, self.steps = tasks, steps

    def train_batches(self, step: int, share: range | None = None) -> list[Batch]:
        """The micro-batches of a step. Over the run each task gives as many sequences as in its own steps."""
        first = self.tasks[0]
        wanted = range(first.micro_batches) if share is None else share
        per_step = first.batch_size * first.micro_batches
        numbers = step * per_step + np.arange(wanted.start * first.batch_size, wanted.stop * first.batch_size)
        places = permute(numbers, sum(self.steps) * per_step, ("mixture", first.seed))
        ends = np.cumsum(self.steps) * per_step
        which = np.searchsorted(ends, places, side="right")
        rows = []
        for place, index in zip(places, which, strict=True):
            task, begin = self.tasks[index], ends[index] - self.steps[index] * per_step
            rows.append(task._windows("train", task.train_windows(np.asarray([place - begin]))))
        return [join_batches(rows[i : i + first.batch_size]) for i in range(0, len(rows), first.batch_size)]


def join_batches(rows: list[Batch]) -> Batch:
    """Several batches as one. Every row keeps its task, document and positions."""
    task = torch.cat([torch.full((len(row.x),), int(row.origin.task)) for row in rows])
    document = torch.cat([row.origin.document for row in rows if row.origin.document is not None])
    position = torch.cat([row.origin.position for row in rows if row.origin.position is not None])
    x, y = torch.cat([row.x for row in rows]), torch.cat([row.y for row in rows])
    return Batch(x, y, Origin(task, document, position))


def permute(places: NDArray[Any], size: int, key: tuple[int | str, ...]) -> NDArray[np.int64]:
    """A pseudo-random permutation of 0 … size−1, evaluated at the given places only.

    A four-round Feistel network on the next power of four. Places that land outside are permuted again.
    """
    digest = hashlib.blake2b(repr(key).encode(), digest_size=32).digest()
    rounds = np.frombuffer(digest, dtype=np.uint64)
    half = np.uint64(max(1, (max(2, size) - 1).bit_length() + 1) // 2)
    mask = np.uint64((1 << int(half)) - 1)
    result = np.asarray(places).astype(np.uint64)
    walking = np.ones(result.shape, dtype=bool)
    while walking.any():
        left, right = result[walking] >> half, result[walking] & mask
        for secret in rounds:
            left, right = right, left ^ (_mix(right + secret) & mask)
        result[walking] = (left << half) | right
        walking = result >= size
    return result.astype(np.int64)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
