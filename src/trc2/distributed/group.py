"""The group of processes that train together. A single process is a group of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from trc2.errors import UserError

T = TypeVar("T")


class Ranks:
    """A group of one process. `trc2.distributed.join.joined` gives larger groups.

    All ranks must call the same methods in the same order. Tensors are put together in the order of ranks. Rank r owns
    the r-th contiguous share of a step's micro-batches.
    """

    world: int = 1
    rank: int = 0

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that writes the metrics log, checkpoints, screen and lock."""
        return self.rank == 0

    def share(self, total: int) -> range:
        """This rank's part of `total` micro-batches, which the world size must divide."""
        check_divides(total, self.world)
        each = total // self.world
        return range(self.rank * each, (self.rank + 1) * each)

    def gather(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The rows of every tensor, from all ranks, whose numbers of rows may differ."""
        return tensors

    def gather_rows(self, rows: Sequence[Sequence[float]], width: int) -> list[list[float]]:
        """The same for rows of `width` plain numbers, exactly."""
        return [[float(value) for value in row] for row in rows]

    def total(self, value: int) -> int:
        """The sum of a whole number over all ranks."""
        return value

    def on_first(self, act: Callable[[], T]) -> T | None:
        """Let the first rank act while the others wait and get None. Its error is raised on all ranks."""
        return act()

    def first_says(self, number: int) -> int:
        """The first rank's number, on every rank."""
        return number

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Replace every tensor by its sum over all ranks, in place, with one message per dtype."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Ranks:
        """A copy of a network belongs to the same group."""
        return self


ALONE = Ranks()


def check_divides(micro_batches: int, world: int) -> None:
    """Refuse a world size whose ranks would get unequal shares of a step."""
    if micro_batches % world:
        *smaller, last = (str(n) for n in range(1, min(micro_batches, 1024) + 1) if micro_batches % n == 0)
        fitting = f"{', '.join(smaller)} or {last}" if smaller else last
        raise UserError(
            f"train.micro_batches={micro_batches} cannot be divided over {world} processes: use {fitting} of "
            f"them, or set train.micro_batches to a multiple of {world}."
        )


def bytes_of(tensor: Tensor) -> Tensor:
    """A tensor's memory as a row of bytes."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
