"""Cases in forked children: a crash, a hang or a leak costs one case, and torch is imported once."""

from __future__ import annotations

import errno
import faulthandler
import gc
import os
import resource
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import psutil

from tests.fuzz.border import Outcome
from tests.fuzz.cases import Case, Cases
from tests.fuzz.judge import Problem

PER_CHILD = 200  # a fork costs about as much as one case. Leaked state is thrown away this often
SPARE_BYTES = 6 * 2**30  # address space beyond what the child begins with
LEAK_MB = 500
PATIENCE = 45.0  # seconds without an outcome and without work, after which a case is killed
DEVICES = ("/dev/null", "/dev/full")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
WRITTEN = {  # the arguments of audit events that name what is written
    **dict.fromkeys(("os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.chmod", "os.utime"), (0,)),
    **dict.fromkeys(("os.rename", "os.link"), (0, 1)),
    "os.symlink": (1,),
}


@dataclass(frozen=True)
class Server:
    """Runs numbered cases and yields their outcomes in order. A case may write below `nest` only."""

    cases: Cases | Mapping[int, Case]
    run_case: Callable[[Case], Outcome]
    nest: Path
    log: Path
    patience: float = PATIENCE

    def run(self, numbers: Sequence[int]) -> Iterator[Outcome]:
        done = 0
        while done < len(numbers):
            for outcome in self._child(numbers[done : done + PER_CHILD]):
                yield outcome
                done += 1

    def _child(self, numbers: Sequence[int]) -> Iterator[Outcome]:
        """Outcomes of some cases. Fewer than asked for if the child ended early. If it died, the last says why."""
        reader, writer = Pipe(duplex=False)
        gc.freeze()  # pages that the collector does not touch stay shared
        self.log.write_bytes(b"")
        pid = os.fork()
        if pid == 0:
            reader.close()
            self._serve(numbers, writer)
        writer.close()
        count, died = 0, False
        with reader:
            for message in _messages(reader, pid, self.patience):
                if message is None:
                    break
                if isinstance(message, str):
                    raise RuntimeError(f"case {numbers[count]} could not be run: {message}")
                count += 1
                yield message
            else:
                died = True
        _, status = os.waitpid(pid, 0)
        if died and count < len(numbers):
            yield self._died(status, self.cases[numbers[count]])

    def _died(self, status: int, case: Case) -> Outcome:
        code = os.waitstatus_to_exitcode(status)
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        native = self.log.read_bytes()[-3000:].decode("utf-8", "replace")
        spot = next((line.strip() for line in native.splitlines() if "/trc2/" in line), "").rsplit("/trc2/", 1)[-1]
        rule = "hang" if code == -signal.SIGKILL else "crash"
        problem = Problem(rule, f"{how} {spot}".strip(), native)
        return Outcome(case.kind, (problem,), self.patience, None, 0.0)

    def _serve(self, numbers: Sequence[int], writer: Connection) -> NoReturn:
        """The child: sends outcomes, then None. Or a traceback if the fuzzer itself is wrong."""
        code = 1
        try:
            self._settle()
            for number in numbers:
                faulthandler.dump_traceback_later(0.8 * self.patience)
                outcome = self.run_case(self.cases[number])
                faulthandler.cancel_dump_traceback_later()
                writer.send(outcome)
                if outcome.growth_mb > LEAK_MB or any(p.rule in ("too long", "traceback") for p in outcome.problems):
                    break  # its remains would be blamed on the next case
            writer.send(None)
            code = 0
        except BaseException:
            writer.send(traceback.format_exc())
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
        limit = psutil.Process().memory_info().vms + SPARE_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**30, 2**30))
        guard(self.nest)


def _messages(reader: Connection, pid: int, patience: float) -> Iterator[Outcome | str | None]:
    """What the child sends. It is killed if it sends nothing for too long and is not just waiting for the processor."""
    child = psutil.Process(pid)
    worked = _seconds_of_work(child)
    while True:
        if reader.poll(patience):
            try:
                yield reader.recv()
            except EOFError:
                return
            worked = _seconds_of_work(child)
        elif child.status() != psutil.STATUS_RUNNING or _seconds_of_work(child) - worked >= patience:
            child.kill()
            return


def _seconds_of_work(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def guard(root: Path) -> None:
    """From now on this process writes below one folder only: a mutated path must not reach the machine's own files."""
    inside = f"{os.path.realpath(root)}{os.sep}"

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        written = WRITTEN.get(event, ())
        if event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING:
            written = (0,)
        for path in (arguments[index] for index in written):
            if isinstance(path, str | bytes | os.PathLike):
                real = os.path.realpath(os.fsdecode(path))
                if not real.startswith(inside) and real not in DEVICES:
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fsdecode(path))

    sys.addaudithook(hook)
