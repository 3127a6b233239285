"""Runs as processes of this machine, each with its share of the cores."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Protocol

from trc2.errors import UserError
from trc2.machine import available_cores


class Launcher(Protocol):
    """Carries commands out, somewhere else."""

    slots: int

    def start(self, name: str, arguments: list[str], log: Path) -> None:
        """Begin `trc2 ARGUMENTS`, its output going to a file."""

    def ended(self) -> dict[str, int]:
        """Exit codes of those that ended since the last call."""

    def stop(self) -> None:
        """Ask all to save and stop, and wait until they have."""


class LocalLauncher:
    """Two jobs with two threads each on two cores run eight times slower than with one each: so they are divided."""

    def __init__(self, jobs: int, cores: int | None = None) -> None:
        cores = cores or available_cores()
        if jobs > cores:
            raise UserError(f"--jobs {jobs} is more than this machine's {cores} cores: choose at most {cores}.")
        self.slots, self.threads = jobs, max(1, cores // jobs)
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, arguments: list[str], log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as out:
            out.write(f"$ trc2 {' '.join(arguments)}\n".encode())
            out.flush()
            self.running[name] = subprocess.Popen(
                command(arguments, self.threads),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment(self.threads)},
                start_new_session=True,  # a Ctrl-C in the terminal is ours to pass on
                preexec_fn=end_with_parent if sys.platform == "linux" else None,
            )

    def ended(self) -> dict[str, int]:
        done = {name: code for name, process in self.running.items() if (code := process.poll()) is not None}
        for name in done:
            del self.running[name]
        return done

    def stop(self) -> None:
        for process in self.running.values():
            process.send_signal(signal.SIGTERM)
        for process in self.running.values():
            process.wait()
        self.running.clear()


def end_with_parent() -> None:
    """In the child: when the sweep is killed, save and stop as if asked to. Only Linux can promise that."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def command(arguments: list[str], threads: int) -> list[str]:
    """`trc2 train …` or `trc2 resume …` with a number of threads."""
    return [sys.executable, "-m", "trc2", *arguments, f"output.threads={threads}"]


def environment(threads: int) -> dict[str, str]:
    """Threads that are not torch's: BLAS and the tokenizers'."""
    return {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
