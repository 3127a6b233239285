"""Several processes that train together, forked from the test: they find each other as torchrun's workers do."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import socket
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

PATIENCE = 150.0  # seconds, on a machine that has much else to do


torch.optim.AdamW([torch.zeros(1)])  # the first one imports for a second: once here, not in every child


def together(world: int, act: Callable[..., Any], *args: Any, double: bool = False) -> list[Any]:
    """The results of `act(*args)` on every rank, in the order of ranks. `double` trains in float64."""
    context = multiprocessing.get_context("fork")
    port = _free_port()
    pipes, processes = [], []
    for rank in range(world):
        here, there = context.Pipe(duplex=False)
        settings = (rank, world, port, double, there)
        processes.append(context.Process(target=_act, args=(settings, act, args), daemon=True))
        pipes.append(here)
        processes[-1].start()
        there.close()
    results = _receive_all(pipes)
    for process in processes:
        process.kill()  # a rank that has answered is done
        process.join()
    failures = [text for went_well, text in results if not went_well]
    assert not failures, "\n".join(map(str, failures))
    return [value for _, value in results]


def alone(act: Callable[..., Any], *args: Any, double: bool = False) -> Any:
    """The same in one process of its own."""
    return together(1, act, *args, double=double)[0]


def _act(settings: tuple[int, int, int, bool, Connection], act: Callable[..., Any], args: tuple[Any, ...]) -> None:
    rank, world, port, double, pipe = settings
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    if world > 1:
        os.environ.update({name: str(value) for name, value in place.items()})
        os.environ.update({"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)})
    if double:
        torch.set_default_dtype(torch.float64)
    faulthandler.dump_traceback_later(PATIENCE - 5)
    try:
        pipe.send((True, act(*args)))
    except BaseException:
        pipe.send((False, f"rank {rank}: {traceback.format_exc()}"))


def _receive_all(pipes: list[Connection]) -> list[tuple[bool, Any]]:
    """Until all have answered, or one of them has failed: then the others wait for it in vain."""
    answers: dict[int, tuple[bool, Any]] = {}
    until = time.monotonic() + PATIENCE
    while len(answers) < len(pipes):
        waiting = {id(pipe): rank for rank, pipe in enumerate(pipes) if rank not in answers}
        ready = wait([pipes[rank] for rank in waiting.values()], timeout=max(0.0, until - time.monotonic()))
        for pipe in ready:
            try:
                answers[waiting[id(pipe)]] = pipe.recv()  # type: ignore[union-attr]
            except EOFError:
                answers[waiting[id(pipe)]] = (False, "a rank was lost")
        if not ready or not all(went_well for went_well, _ in answers.values()):
            break
    return [answers.get(rank, (False, f"rank {rank} did not answer")) for rank in range(len(pipes))]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])
