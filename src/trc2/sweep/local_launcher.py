"""Runs as processes of this machine, each with its share of the cores."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO, Protocol

from trc2.errors import UserError
from trc2.system.machine import available_cores, end_with_parent


class Launcher(Protocol):
    """Carries commands out, somewhere else."""

    slots: int
    threads: int  # of a run that does not set output.threads

    @property
    def most_threads(self) -> int | None:
        """A run may not have more. None where this process cannot know."""

    def start(self, name: str, arguments: list[str], threads: int, log: Path) -> None:
        """Begin `trc2 ARGUMENTS` with a number of threads. The log gets the command, then its output."""

    def ended(self) -> dict[str, int]:
        """Exit codes of those that ended since the last call."""

    def stop(self) -> None:
        """Ask all to save and stop, and wait until they have."""


class LocalLauncher:
    """Each of N runs at a time gets at most cores ÷ N threads: two runs with two threads each on two cores were eight
    times slower than with one each. Fewer are taken where `--threads` or OMP_NUM_THREADS asks for fewer.
    """

    def __init__(self, jobs: int, cores: int | None = None, threads: int | None = None) -> None:
        cores = cores or available_cores()
        if jobs > cores:
            raise UserError(f"--jobs {jobs} is more than this machine's {cores} cores: choose at most {cores}.")
        self.slots, self.most_threads = jobs, cores // jobs
        if threads is not None and threads > self.most_threads:
            raise UserError(
                f"--threads {threads} times --jobs {jobs} is more than this machine's {cores} cores: choose at most "
                f"--threads {self.most_threads}."
            )
        self.threads = threads or min(self.most_threads, _threads_of_environment() or self.most_threads)
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, arguments: list[str], threads: int, log: Path) -> None:
        with open_log(log, arguments) as out:
            self.running[name] = subprocess.Popen(
                command(arguments),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environment(threads),
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


def _threads_of_environment() -> int | None:
    """OMP_NUM_THREADS, of which OpenMP lets users list one number per level. None if it says nothing useful."""
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(first) if first.isascii() and first.isdigit() and int(first) > 0 else None


def open_log(log: Path, arguments: list[str]) -> BinaryIO:
    """The log of a run, with the command about to be run as its next line."""
    log.parent.mkdir(parents=True, exist_ok=True)
    out = log.open("ab")
    out.write(f"$ {shlex.join(['trc2', *arguments])}\n".encode())
    out.flush()
    return out


def command(arguments: list[str]) -> list[str]:
    """`trc2 train …` or `trc2 resume …` with the Python that runs this."""
    return [sys.executable, "-m", "trc2", *arguments]


def environment(threads: int) -> dict[str, str]:
    """The environment of a run: this process's, with a limit for the threads that are not torch's (BLAS)."""
    limits = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    return {"TOKENIZERS_PARALLELISM": "false", **os.environ, **limits}
