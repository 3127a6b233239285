"""What torchrun tells the processes it starts; known before they have met."""

from __future__ import annotations

import os


def is_worker() -> bool:
    """Whether torchrun, or `--nproc`, started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def world_of_process() -> int:
    """How many processes there are in all; 1 where nobody started several."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_world() -> int:
    """How many of them are on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def local_rank() -> int:
    """Which of this machine's processes this is."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def is_first_process() -> bool:
    """Whether this process is the one that speaks."""
    return int(os.environ.get("RANK", "0")) == 0


def speaks_for_machine() -> bool:
    """Whether this process tells what goes wrong on its machine: its neighbours see the same disk."""
    return local_rank() == 0


def num_restarts() -> int:
    """How often the processes were started again because one was lost."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
