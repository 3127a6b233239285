"""The processes that train together, as the code that trains sees them; one process alone is a group of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from trc2.errors import UserError

T = TypeVar("T")


class Ranks:
    """A group of one process, which answers at once. `trc2.distributed.join.joined` gives larger groups.

    Every method is a meeting: all ranks call it, in the same order. Tensors are put together in the order of ranks.
    Rank r owns the r-th contiguous share of a step's micro-batches, so a single process meets them in that order too.
    """

    world: int = 1
    rank: int = 0

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that writes: diary, checkpoints, screen, lock."""
        return self.rank == 0

    def share(self, total: int) -> range:
        """This rank's part of `total` numbered things, which the world size must divide."""
        check_divides(total, self.world)
        each = total // self.world
        return range(self.rank * each, (self.rank + 1) * each)

    def gather(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The rows of every tensor, of all ranks; ranks may have different numbers of rows."""
        return tensors

    def gather_rows(self, rows: Sequence[Sequence[float]], width: int) -> list[list[float]]:
        """The same for rows of `width` plain numbers, exactly."""
        return [[float(value) for value in row] for row in rows]

    def total(self, value: int) -> int:
        """The sum of a whole number over all ranks."""
        return value

    def any(self, flag: bool) -> bool:
        """Whether it is so on some rank."""
        return flag

    def wait(self) -> None:
        """Until all ranks are here."""

    def on_first(self, act: Callable[[], T]) -> T | None:
        """Let the first rank act while the others wait; they get None. What is refused there is refused everywhere."""
        return act()

    def first_says(self, number: int) -> int:
        """The first rank's number, on every rank."""
        return number

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Replace every tensor by its sum over all ranks, in place and in one message per type of number."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Ranks:
        """A copy of a network belongs to the same group."""
        return self


ALONE = Ranks()


def check_divides(micro_batches: int, world: int) -> None:
    """Refuse a world size whose ranks would get unequal shares of a step."""
    if micro_batches % world:
        fitting = [str(number) for number in range(1, min(micro_batches, 1024) + 1) if micro_batches % number == 0]
        raise UserError(
            f"train.micro_batches={micro_batches} cannot be divided over {world} processes: use {_either(fitting)} of "
            f"them, or set train.micro_batches to a multiple of {world}."
        )


def _either(choices: list[str]) -> str:
    return choices[0] if len(choices) == 1 else f"{', '.join(choices[:-1])} or {choices[-1]}"


def bytes_of(tensor: Tensor) -> Tensor:
    """A tensor's memory, as a row of bytes."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
