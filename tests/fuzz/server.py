"""Cases in forked children: a crash, a hang or a leak costs one case, and torch is imported once."""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import resource
import select
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from tests.fuzz.border import WAITING_SECONDS, Outcome
from tests.fuzz.cases import Case
from tests.fuzz.guard import guard
from tests.fuzz.judge import Problem

PER_CHILD = 200  # a fork costs about as much as one case; state that leaks is thrown away this often
SPARE_BYTES = 6 * 2**30  # address space beyond what the child begins with
LEAK_MB = 500
PATIENCE = WAITING_SECONDS + 15  # after which a case that heeds no alarm is killed


class Numbered(Protocol):
    """Cases by number, see `Cases`."""

    def __getitem__(self, index: int) -> Case: ...


class Runs(Protocol):
    """Whoever runs a case, see `Border`."""

    def run(self, case: Case) -> Outcome: ...


class Server:
    """Runs numbered cases and yields their outcomes in order."""

    def __init__(self, cases: Numbered, border: Runs, nest: Path, log: Path, patience: float = PATIENCE) -> None:
        self.cases, self.border, self.nest, self.log, self.patience = cases, border, nest, log, patience

    def run(self, numbers: Sequence[int]) -> Iterator[Outcome]:
        place = 0
        while place < len(numbers):
            for outcome in self._child(numbers[place : place + PER_CHILD]):
                yield outcome
                place += 1

    def _child(self, numbers: Sequence[int]) -> Iterator[Outcome]:
        """Outcomes of some cases; fewer than asked for if the child had to go, the last then says why."""
        reader, writer = os.pipe()
        gc.freeze()  # pages that the collector does not touch stay shared
        self.log.write_bytes(b"")
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            self._serve(numbers, writer)
        os.close(writer)
        count, ended = 0, False
        with open(reader, "rb", buffering=0) as pipe:
            for line in _lines(pipe, pid, self.patience):
                if line is None:
                    os.kill(pid, signal.SIGKILL)
                    break
                message = json.loads(line)
                if message is None:
                    ended = True
                    break
                if "broken" in message:
                    raise RuntimeError(f"case {numbers[count]} could not be run: {message['broken']}")
                count += 1
                problems = tuple(Problem(**problem) for problem in message.pop("problems"))
                yield Outcome(problems=problems, **message)
        _, status = os.waitpid(pid, 0)
        if not ended and count < len(numbers):
            yield self._died(status, self.cases[numbers[count]])

    def _died(self, status: int, case: Case) -> Outcome:
        by_signal = os.WIFSIGNALED(status)
        how = f"signal {os.WTERMSIG(status)}" if by_signal else f"exit code {os.WEXITSTATUS(status)}"
        told = self.log.read_bytes()[-3000:].decode("utf-8", "replace")
        spot = next((line.strip() for line in told.splitlines() if "/trc2/" in line), "").rsplit("/trc2/", 1)[-1]
        rule = "hang" if by_signal and os.WTERMSIG(status) == signal.SIGKILL else "crash"
        problem = Problem(rule, f"{how} {spot}".strip(), told)
        return Outcome(case.kind, (problem,), self.patience, None, 0.0)

    def _serve(self, numbers: Sequence[int], writer: int) -> None:
        """The child's life."""
        code = 1
        try:
            self._settle()
            for number in numbers:
                faulthandler.dump_traceback_later(WAITING_SECONDS + 5)
                outcome = self.border.run(self.cases[number])
                faulthandler.cancel_dump_traceback_later()
                _write_line(writer, asdict(outcome))
                if outcome.growth_mb > LEAK_MB or any(p.rule in ("too long", "traceback") for p in outcome.problems):
                    break  # whatever is left of it would be blamed on the next case
            _write_line(writer, None)
            code = 0
        except BaseException:  # a mistake of ours, not of the case: a case's own errors are part of its outcome
            _write_line(writer, {"broken": traceback.format_exc()})
        finally:
            os._exit(code)

    def _settle(self) -> None:
        """Limits, and nothing of the parent's that a case could reach."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        handle = os.open(self.log, os.O_WRONLY | os.O_APPEND)
        for target in (1, 2):
            os.dup2(handle, target)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        faulthandler.enable(file=2, all_threads=False)
        sys.dont_write_bytecode = True
        warnings.simplefilter("ignore")
        home = self.nest / "home"
        home.mkdir(exist_ok=True)
        os.environ["HOME"] = str(home)
        os.chdir(self.nest)
        limit = _address_space() + SPARE_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**30, 2**30))
        guard(self.nest)


def _lines(pipe: Any, pid: int, patience: float) -> Iterator[bytes | None]:
    """Whole lines as they come; None once nothing came for too long and the child is not just short of the machine."""
    held, worked, deadline = b"", _work_of(pid)[1], time.monotonic() + patience
    while True:
        ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            state, work = _work_of(pid)
            if state == "R" and work - worked < patience:
                deadline = time.monotonic() + patience
                continue
            yield None
            return
        received = pipe.read(65536)
        if not received:
            return
        held += received
        worked, deadline = _work_of(pid)[1], time.monotonic() + patience
        *whole, held = held.split(b"\n")
        yield from whole


def _work_of(pid: int) -> tuple[str, float]:
    """Whether a process is running or could ("R"), and its seconds of work; unknown where there is no /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return "", 0.0
    return fields[0], (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _write_line(writer: int, message: Any) -> None:
    data = json.dumps(message).encode() + b"\n"
    while data:
        data = data[os.write(writer, data) :]


def _address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 0
    return pages * resource.getpagesize() or 2**36
