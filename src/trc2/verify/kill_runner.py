"""Run commands in processes of their own, kill them at named points or at random moments, and start them again."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from trc2.system.failpoints import VARIABLE

Attempt = Callable[[Path], None]
Compare = Callable[[Path, Path], list[str]]


@dataclass(frozen=True)
class Trial:
    """One command: how it is begun or gone on with, where it may be killed, and what it must leave behind."""

    name: str
    attempt: Attempt
    points: tuple[str, ...]
    compare: Compare
    exit_code: int = 0  # with which it must end


class WrongExitCode(RuntimeError):
    """A command ended by itself, but not as it should."""


@dataclass
class Losses:
    """How often each trial was killed and where, how often it ended, and what was different then."""

    killed: Counter[str]
    ended: Counter[str]
    differences: list[str]


def kill_and_restart(
    trial: Trial, target: Path, whole: Path, kills: int, length: float, rng: random.Random, losses: Losses,
    watch: Callable[[str], None],
) -> None:  # fmt: skip
    """Kill a command `kills` times, starting it again each time. Whenever it ends, compare with the undisturbed one.

    `length` is what an undisturbed one takes, in seconds.
    """
    done = tries = 0
    is_open = False  # something was begun and has not ended
    while done < kills or is_open:
        tries += 1
        if tries > 20 * kills + 20:
            raise RuntimeError(f"only {done} of {kills} kills of {trial.name} hit a running process")
        point, delay = _plan_kill(rng, trial.points, length) if done < kills else (None, None)
        is_open = True
        try:
            was_killed = run_in_child(trial.attempt, target, point, delay, trial.exit_code) < 0
        except WrongExitCode as error:  # is reported, and the other kills go on
            losses.differences.append(f"{trial.name}: after {done} kills {error}")
            is_open = False
            shutil.rmtree(target, ignore_errors=True)
            continue
        if was_killed:
            done += 1
            losses.killed[f"{trial.name}: {(point or 'random moment').split(':')[0]}"] += 1
            watch(f"{trial.name}: {done} of {kills} kills")
        else:
            is_open = False
            losses.ended[trial.name] += 1
            losses.differences += [f"{trial.name}: {name}" for name in trial.compare(whole, target)]
            shutil.rmtree(target)


def kill_concurrently(
    trial: Trial, target: Path, whole: Path, processes: int, kills: int, length: float, rng: random.Random,
    losses: Losses,
) -> None:  # fmt: skip
    """Many processes at once on one target, some of them killed. Those that are left must all end well."""
    running = [_start(trial.attempt, target, None) for _ in range(processes)]
    for process in running[:kills]:
        process.join(rng.uniform(0.0, length))
        if process.is_alive() and process.pid is not None:
            os.kill(process.pid, signal.SIGKILL)
            losses.killed[f"{trial.name}: random moment"] += 1
    for process in running:
        process.join()
        if process.exitcode not in (trial.exit_code, -signal.SIGKILL):
            losses.differences.append(f"{trial.name}: a process ended with exit code {process.exitcode}")
    losses.ended[trial.name] += 1
    losses.differences += [f"{trial.name}: {name}" for name in trial.compare(whole, target)]
    shutil.rmtree(target)


def run_in_child(
    attempt: Attempt, target: Path, point: str | None = None, delay: float | None = None, exit_code: int = 0
) -> float:
    """Run in a process of its own, which must end with `exit_code`. Seconds it took, or −1 if it was killed.

    Forked, so that a hundred kills do not import torch a hundred times.
    """
    begun = time.monotonic()
    process = _start(attempt, target, point)
    if delay is not None:
        process.join(delay)
        if process.is_alive() and process.pid is not None:
            os.kill(process.pid, signal.SIGKILL)
    process.join()
    if process.exitcode == -signal.SIGKILL:
        return -1.0
    if process.exitcode != exit_code:
        raise WrongExitCode(f"the command ended with exit code {process.exitcode} and not {exit_code}")
    return time.monotonic() - begun


def _plan_kill(
    rng: random.Random, points: tuple[str, ...], length: float
) -> tuple[str | None, float | None]:  # fmt: skip
    """A named point, hit for the n-th time, or a moment of the clock."""
    if points and rng.random() < 0.7:
        return f"{rng.choice(points)}:{rng.randint(1, 4)}", None
    return None, rng.uniform(0.0, length)


def _start(attempt: Attempt, target: Path, point: str | None) -> multiprocessing.context.ForkProcess:
    process = multiprocessing.get_context("fork").Process(target=_child, args=(attempt, target, point))
    process.start()
    return process


def _child(attempt: Attempt, target: Path, point: str | None) -> None:
    torch.set_num_threads(1)
    os.environ.pop(VARIABLE, None)
    if point is not None:
        os.environ[VARIABLE] = point
    attempt(target)
