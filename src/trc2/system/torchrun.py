"""The environment variables that torchrun sets in the processes it starts."""

from __future__ import annotations

import os
from dataclasses import dataclass

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


@dataclass(frozen=True)
class Place:
    """This process among those that train together. One process alone by default."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 1


def place_of_process() -> Place:
    """Where the environment says that this process stands, if it describes a group of several that can meet.

    Job schedulers and notebooks leave single variables behind. A rank without a world, or without an address to meet
    at, names no group: such a process is alone, so it trains, speaks and judges.
    """
    values = [os.environ.get(name, default) for name, default in zip(VARIABLES, ("", "", "0", "1"), strict=True)]
    if "MASTER_ADDR" not in os.environ or not all(map(_is_count, values)):
        return Place()
    place = Place(*map(int, values))
    return place if place.rank < place.world and place.local_rank < place.local_world <= place.world else Place()


def _is_count(value: str) -> bool:
    return value.isascii() and value.isdigit() and len(value) < 10


def left_over() -> list[str]:
    """Variables of a group, such as RANK=1, that are set although this process is alone."""
    if world_of_process() > 1:
        return []
    alone = zip(VARIABLES, ("0", "1", "0", "1"), strict=True)
    return [f"{name}={os.environ[name]}" for name, usual in alone if os.environ.get(name, usual) != usual]


def is_worker() -> bool:
    """Whether torchrun, or `--nproc`, started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ and world_of_process() > 1


def world_of_process() -> int:
    """How many processes train together. 1 for a process alone."""
    return place_of_process().world


def is_first_process() -> bool:
    """Whether this process is the one that speaks."""
    return place_of_process().rank == 0


def speaks_for_machine() -> bool:
    """Whether this process reports problems of its machine. Other processes there see the same disk."""
    return place_of_process().local_rank == 0


def num_restarts() -> int:
    """How often the processes were started again because one was lost."""
    count = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return int(count) if "TORCHELASTIC_RUN_ID" in os.environ and _is_count(count) else 0
