"""The worker: runs jobs one at a time, each as `trc2 continue VERSIONS --promote` in a process of its own."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import psutil
import sqlalchemy as sa
from filelock import FileLock, Timeout

from trc2.continuing.acceptance import REFUSED
from trc2.errors import brief
from trc2.runs.checkpoint import list_checkpoints
from trc2.runs.folder import RunFolder
from trc2.runs.lock import is_locked
from trc2.serving.jobs import FORGETTING, ORPHAN_SECONDS, POLL_SECONDS, STOP_SECONDS, Jobs, JobSettings, Outcome
from trc2.serving.shelf import Shelf
from trc2.serving.store import JOBS, alone, now
from trc2.system.failpoints import failpoint
from trc2.versions.registry import ATTEMPTS

INTERRUPTED = (130, -signal.SIGINT, -signal.SIGTERM)  # exit codes of a process that saved its run and ended
IDLE_SECONDS = 2  # between looks for a job that another server accepted
MAX_KILLS = 10  # of a job's process without progress
PID_TOLERANCE = 2.0  # seconds by which the time of a process's start may be rounded
LOCK = "jobs.lock"  # in the versions folder: the server that has it runs the jobs
MAX_RESTARTS = 3  # of several processes that train together, if one of them is lost
# The process ends when the server does, also if the server is killed. It saves first, and is taken up again later.
BEGIN = "import sys; from trc2.system.machine import end_with_parent; end_with_parent(); "
PROGRAM = f"{BEGIN}from trc2.cli import main; main()"
ON_RAY = f"{BEGIN}from trc2.sweep.ray_launcher import run_on_cluster; run_on_cluster(int(sys.argv[1]), sys.argv[2:])"


class Worker:
    """Runs the jobs of a versions folder. Of all servers that use the folder, one does, also after a crash."""

    def __init__(self, jobs: Jobs, shelf: Shelf) -> None:
        self.jobs, self.shelf = jobs, shelf
        self.process: subprocess.Popen[bytes] | None = None
        self._lock = FileLock(jobs.versions.folder / LOCK, thread_local=False)

    async def work(self) -> None:
        """Run jobs one after the other, for ever. One that was running when its server died comes first."""
        try:
            while True:
                self.jobs.changed.clear()
                row = None
                try:
                    row = await asyncio.to_thread(self._next) if self._may_run() else None
                    if row is None:
                        with suppress(asyncio.TimeoutError):
                            await asyncio.wait_for(self.jobs.changed.wait(), IDLE_SECONDS)
                        continue
                    await self._run(row)
                except Exception as error:
                    message = f"The job could not be run ({type(error).__name__}: {brief(error)})."
                    with suppress(Exception):  # a full disk, for example: the worker must go on
                        if row is not None:
                            outcome = Outcome("failed", code="server_error", message=message)
                            await asyncio.to_thread(self.jobs.finish, row.id, outcome)
                    await asyncio.sleep(5)
        finally:
            self._lock.release()

    def _may_run(self) -> bool:
        """Whether this server runs the jobs. The system gives the lock to another one when this process ends."""
        if not self._lock.is_locked:
            with suppress(Timeout):
                self._lock.acquire(timeout=0)
        return bool(self._lock.is_locked)

    def _next(self) -> Any:
        with self.jobs.database.connect() as connection:
            query = sa.select(JOBS).where(JOBS.c.status.in_(("running", "queued")))
            order = (sa.case((JOBS.c.status == "running", 0), else_=1), JOBS.c.number)
            return connection.execute(query.order_by(*order).limit(1)).first()

    async def _run(self, row: Any) -> None:
        if row.pid is not None:
            await self._wait_for_orphan(row)
        await self._wait_for_lock(row)
        if not await asyncio.to_thread(self._claim, row.id):
            return
        try:
            outcome = await self._train(row)
            failpoint("job end")
            await asyncio.to_thread(self.jobs.finish, row.id, outcome)
        except BaseException:  # the server ends, or the state of the job cannot be written
            await self._end_process()
            raise
        finally:
            self.process = None
        if outcome.status == "succeeded":
            with suppress(Exception):  # the job has ended well. `watch` of the shelf tries again and says why
                await self.shelf.refresh()

    def _claim(self, identity: str) -> bool:
        """Begin a job, or end one that should stop before its process began again. Returns whether it goes on."""
        with alone(self.jobs.database) as connection:
            row = connection.execute(sa.select(JOBS).where(JOBS.c.id == identity)).one()
            if row.status not in ("queued", "running"):
                return False
            if row.wanted is None:
                begun = "The job goes on." if row.started_at else "The job has begun."
                begin: dict[str, Any] = {"status": "running", "pid": None, "started_at": row.started_at or now()}
                self.jobs.update_row(connection, identity, begun, **begin)
                return True
        self.jobs.finish(identity, Outcome(row.wanted))
        return False

    async def _train(self, row: Any) -> Outcome:
        folder, attempt, is_stopped = self.jobs.folder / row.id, row.attempt, False
        with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
            self.process = subprocess.Popen(
                command_of(self.jobs.settings, row.arguments), stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                cwd=folder, start_new_session=True,  # Ctrl-C is for the server, which then asks this process to save
            )  # fmt: skip
            pid = self.process.pid
            await asyncio.to_thread(self.jobs.update, row.id, pid=pid, pid_started=_started(pid))
            failpoint("job")
            while self.process.poll() is None:
                await asyncio.sleep(POLL_SECONDS)
                if attempt is None and (attempt := await asyncio.to_thread(self._attempt_of, row.id)) is not None:
                    await asyncio.to_thread(self.jobs.update, row.id, attempt=attempt)
                if (await asyncio.to_thread(self.jobs.row, row.id)).wanted is not None:
                    await self._end_process()
                elif is_stopped != _is_stopped(pid):
                    is_stopped = not is_stopped
                    said = "was stopped by a signal and waits" if is_stopped else "goes on"
                    await asyncio.to_thread(self.jobs.update, row.id, f"The job's process {said}.")
        return await asyncio.to_thread(self._outcome, row.id, self.process.returncode)

    async def _end_process(self) -> None:
        """Ask the process to save and end, and kill it if it does not. Its job goes on later at its last checkpoint."""
        process = self.process
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGCONT)  # a stopped process would not see the other signal
        for _ in range(int(STOP_SECONDS / POLL_SECONDS)):
            if process.poll() is not None:
                return
            await asyncio.sleep(POLL_SECONDS)
        process.kill()
        await asyncio.to_thread(process.wait)

    def _attempt_of(self, identity: str) -> str | None:
        """The name of the run that a job has begun: its settings name the job's copy of the documents.

        Before a run is whole, its folder has a name with a dot.
        """
        for path in self.jobs.versions.attempts():
            with suppress(OSError):
                if not path.name.startswith(".") and identity in RunFolder(path).config_file.read_text("utf-8"):
                    return path.name
        return None

    def _outcome(self, identity: str, code: int) -> Outcome:
        folder, row = self.jobs.folder / identity, self.jobs.row(identity)
        promoted, printed = self._promoted(row), self.jobs.printed(identity) or {}
        if promoted is not None:
            return Outcome("succeeded", promoted)
        if code == 0 and "taught_by" in printed:
            return Outcome("succeeded", printed["taught_by"])
        if code == 0 and (added := printed.get("accepted") or printed.get("held")):
            return Outcome("succeeded", added["name"])
        if row.wanted is not None:
            return Outcome(row.wanted)
        if code in INTERRUPTED:
            return Outcome("queued")
        if code == -signal.SIGKILL:
            return self._after_kill(row)
        if code == REFUSED:
            lost = [name for name, task in printed.get("tasks", {}).items() if not task["passed"]]
            sentence = f"The acceptance check refused the model, because it forgot too much of: {', '.join(lost)}."
            return Outcome("failed", code=FORGETTING, message=sentence, param=",".join(lost) or None)
        said = (folder / "stderr").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        reason = brief(said[-1].removeprefix("error: "), 500) if said else f"exit code {code}"
        return Outcome("failed", code="training_failed", message=f"Training ended early: {reason}.")

    def _after_kill(self, row: Any) -> Outcome:
        """A killed job goes on at its last checkpoint, unless it is killed again and again before the next one."""
        attempt = self.jobs.attempt(row)
        paths = [] if attempt is None else list_checkpoints(RunFolder(attempt).checkpoints)
        newest = paths[-1].name[:255] if paths else ""
        kills = 1 if row.kills is None or newest != row.checkpoint else row.kills + 1
        if kills >= MAX_KILLS:
            message = f"The process was killed {kills} times without progress, perhaps because memory is short."
            return Outcome("failed", code="killed", message=message)
        self.jobs.update(row.id, kills=kills, checkpoint=newest)
        return Outcome("queued")

    def _promoted(self, row: Any) -> str | None:
        """The version that a job's run has become, also if its process was stopped before it could say so."""
        if row.attempt is None:
            return None
        source = f"{ATTEMPTS}/{row.attempt}"
        return next((version.name for version in self.jobs.versions.all() if version.source == source), None)

    async def _wait_for_orphan(self, row: Any) -> None:
        """A process of a server that was killed saves and ends by itself. One that does not is killed.

        So is one whose job was cancelled meanwhile, because its checkpoint is not needed.
        """
        for _ in range(int(ORPHAN_SECONDS / POLL_SECONDS)):
            if not _is_ours(row):
                return
            if (await asyncio.to_thread(self.jobs.row, row.id)).wanted == "cancelled":
                break
            await asyncio.sleep(POLL_SECONDS)
        while _is_ours(row):
            with suppress(psutil.Error):
                psutil.Process(row.pid).kill()
            await asyncio.sleep(POLL_SECONDS)

    async def _wait_for_lock(self, row: Any) -> None:
        """Others that a killed process had started save its run, and end a moment later."""
        name = row.attempt or await asyncio.to_thread(self._attempt_of, row.id)
        for _ in range(int(ORPHAN_SECONDS / POLL_SECONDS)):
            if name is None or not await asyncio.to_thread(is_locked, self.jobs.versions.folder / ATTEMPTS / name):
                return
            await asyncio.sleep(POLL_SECONDS)


def command_of(settings: JobSettings, arguments: Sequence[str]) -> list[str]:
    """The process of a job with these arguments of `trc2`."""
    several = ["--nproc", str(settings.nproc), "--max-restarts", str(MAX_RESTARTS)] if settings.nproc > 1 else []
    command = [sys.executable, "-c", PROGRAM, *arguments, *several]
    return command if settings.launcher == "local" else [sys.executable, "-c", ON_RAY, str(settings.nproc), *command]


def _started(pid: int) -> float | None:
    """When a process began. None if it has ended."""
    try:
        return float(psutil.Process(pid).create_time())
    except psutil.Error:
        return None


def _is_stopped(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False


def _is_ours(row: Any) -> bool:
    """Whether the process of a job still runs: its number alone may be another program's by now."""
    try:
        process = psutil.Process(row.pid)
        if row.pid_started is not None and abs(process.create_time() - row.pid_started) > PID_TOLERANCE:
            return False
        return process.status() != psutil.STATUS_ZOMBIE and any(row.id in word for word in process.cmdline())
    except psutil.Error:
        return False
