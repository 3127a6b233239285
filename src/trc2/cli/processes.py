"""`--nproc N`: the same command in N processes that train together."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from trc2.system.torchrun import is_worker

if TYPE_CHECKING:
    from trc2.config import RunConfig

Processes = Annotated[
    int, typer.Option("--nproc", help="Processes on this machine that train together.", min=1, max=1024)
]
Restarts = Annotated[
    int, typer.Option(help="How often --nproc starts them again if one is lost.", min=0, max=1_000_000)
]


def launched(nproc: int, max_restarts: int, config: RunConfig) -> bool:
    """Run this very command in `nproc` processes, if that is asked for and has not been done; exits as they exit."""
    if nproc == 1 or is_worker():
        return False
    from trc2.distributed.group import check_divides
    from trc2.distributed.launch import launch

    check_divides(config.train.micro_batches, nproc)  # before anything is started
    code = launch(sys.argv[1:], nproc, max_restarts)
    if code:
        raise typer.Exit(code)
    return True
