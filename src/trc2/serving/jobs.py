"""Fine-tuning jobs: `trc2 continue VERSIONS --promote` in a process of its own, one at a time, also after a crash."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import psutil
import sqlalchemy as sa
from filelock import FileLock, Timeout

from trc2.continuing.acceptance import REFUSED
from trc2.errors import UserError, brief
from trc2.runs.checkpoint import list_checkpoints
from trc2.runs.folder import RunFolder
from trc2.runs.lock import is_locked
from trc2.runs.records import Record
from trc2.serving.files import Files, read_rows
from trc2.serving.progress import Progress, own_records, progress_of
from trc2.serving.shelf import Shelf
from trc2.serving.store import EVENTS, JOBS, alone, find, now
from trc2.serving.wire import ApiError
from trc2.stream.chat import read_template
from trc2.sweep.ray_launcher import import_ray
from trc2.system.failpoints import failpoint
from trc2.system.files import make_folder, sync_folder, to_json, write_atomically
from trc2.versions.entry import RUN, Version
from trc2.versions.registry import ATTEMPTS, Versions

POLL_SECONDS = 0.2
INTERRUPTED = (130, -signal.SIGINT, -signal.SIGTERM)  # exit codes of a process that saved its run and ended
ORPHAN_SECONDS = STOP_SECONDS = 60  # a process that has not saved and ended by then is killed
IDLE_SECONDS = 2  # between looks for a job that another server accepted
MAX_KILLS = 10  # of a job's process without progress
PID_TOLERANCE = 2.0  # seconds by which the time of a process's start may be rounded
LOCK = "jobs.lock"  # in the versions folder: the server that has it runs the jobs
OPEN, FINAL = ("queued", "running", "paused"), ("succeeded", "failed", "cancelled")
METRICS, REPORT, TEXTS, PREFIX = "metrics.jsonl", "report.json", ("text", "keep"), "ftjob-"
FORGETTING = "forgetting"  # the code of a job whose model the acceptance check refused
MAX_OPEN = 100
MAX_RESTARTS = 3  # of several processes that train together, if one of them is lost
# The process ends when the server does, also if the server is killed. It saves first, and is taken up again later.
BEGIN = "import sys; from trc2.system.machine import end_with_parent; end_with_parent(); "
PROGRAM = f"{BEGIN}from trc2.cli import main; main()"
ON_RAY = f"{BEGIN}from trc2.sweep.ray_launcher import run_on_cluster; run_on_cluster(int(sys.argv[1]), sys.argv[2:])"
Stop = Literal["paused", "cancelled"]


@dataclass(frozen=True)
class JobSettings:
    """How jobs are run: in how many processes that train together, and whether here or on a Ray cluster.

    With `hold`, a person makes the versions of jobs the accepted ones.
    """

    hold: bool = False
    nproc: int = 1
    launcher: Literal["local", "ray"] = "local"

    def command(self, arguments: Sequence[str]) -> list[str]:
        """The process of a job with these arguments of `trc2`."""
        several = ["--nproc", str(self.nproc), "--max-restarts", str(MAX_RESTARTS)] if self.nproc > 1 else []
        command = [sys.executable, "-c", PROGRAM, *arguments, *several]
        return command if self.launcher == "local" else [sys.executable, "-c", ON_RAY, str(self.nproc), *command]


@dataclass(frozen=True)
class Outcome:
    """How a job ended."""

    status: str
    model: str | None = None
    code: str = ""
    message: str = ""
    param: str | None = None

    @property
    def error(self) -> dict[str, Any] | None:
        if self.status != "failed":
            return None
        return {"code": self.code, "message": self.message, "param": self.param}


class Jobs:
    """The jobs of a data folder. Their rows are in the database, their text and logs in DATA/jobs/ID.

    Every server that uses the versions folder accepts jobs, and pauses and cancels them. One of them runs them.
    """

    def __init__(
        self, folder: Path, database: sa.Engine, files: Files, versions: Versions, shelf: Shelf, settings: JobSettings
    ) -> None:
        if settings.launcher == "ray":
            import_ray()
        self.folder, self.database, self.files, self.settings = folder / "jobs", database, files, settings
        self.cache = folder / "cache"
        self.versions, self.shelf = versions, shelf
        self.changed = asyncio.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = FileLock(versions.folder / LOCK, thread_local=False)
        make_folder(self.folder)

    def remove_leftovers(self) -> None:
        """Remove what a killed server left: folders without a row, and text of jobs that have ended.

        Only while no other server uses the folder.
        """
        with self.database.connect() as connection:
            known = {row.id: row.status for row in connection.execute(sa.select(JOBS.c.id, JOBS.c.status))}
        for path in self.folder.iterdir():
            if not path.name.startswith(PREFIX) or not path.is_dir() or path.is_symlink():
                continue
            if path.name not in known:
                shutil.rmtree(path, ignore_errors=True)
            elif known[path.name] in FINAL:
                self._remove_text(path.name)

    # ----------------------------------------------------------------------------------------------- rows and events

    def row(self, identity: str) -> Any:
        return find(self.database, JOBS, identity, "job", "fine_tuning_job_id")

    def update(self, identity: str, message: str | None = None, *, level: str = "info", **values: Any) -> None:
        """Change a row, and note why, in one transaction."""
        with alone(self.database) as connection:
            self._update(connection, identity, message, level=level, **values)

    def _update(
        self, connection: sa.Connection, identity: str, message: str | None, *, level: str = "info", **values: Any
    ) -> None:
        if values:
            connection.execute(sa.update(JOBS).where(JOBS.c.id == identity).values(**values))
        if message is not None:
            event = {"job": identity, "created_at": now(), "level": level, "message": message[:1000]}
            connection.execute(sa.insert(EVENTS).values(event))

    def create(self, values: dict[str, Any]) -> str:
        """Add a job to the queue. It is acknowledged after its row is on the disk."""
        with alone(self.database) as connection:
            self.files.check_room(self.files.stored_bytes(connection), values["text_bytes"])
            count = sa.select(sa.func.count()).select_from(JOBS).where(JOBS.c.status.in_(OPEN))
            if (connection.execute(count).scalar() or 0) >= MAX_OPEN:
                raise ApiError(
                    429, f"{MAX_OPEN} jobs wait already: come back when some are done.", code="too_many_jobs",
                    headers={"retry-after": "60"},
                )  # fmt: skip
            connection.execute(sa.insert(JOBS).values(values))
            self._update(connection, values["id"], "The job waits.")
        return str(values["id"])

    def events(self, identity: str) -> list[dict[str, Any]]:
        """Messages and metrics of a job, oldest first. Metrics come from the run's own log, so none is there twice."""
        row = self.row(identity)
        with self.database.connect() as connection:
            notes = connection.execute(
                sa.select(EVENTS).where(EVENTS.c.job == identity).order_by(EVENTS.c.number)
            ).all()
        events = [
            {
                "id": f"ftevent-{identity}-{note.number}", "created_at": note.created_at, "level": note.level,
                "message": note.message, "type": "message", "data": None,
            }
            for note in notes
        ]  # fmt: skip
        begin = row.started_at or row.created_at
        seen: Counter[tuple[str, int]] = Counter()
        for record in self.records(row):
            # A step that is repeated after a kill has the same numbers, and gets the same id.
            seen[record.kind, record.step] += 1
            name = f"{record.kind}-{record.step}-{seen[record.kind, record.step]}"
            events.append({
                "id": f"ftevent-{identity}-{name}", "created_at": begin + int(record.seconds),
                "level": "info", "message": f"Step {record.step} of {record.task}: {record.kind}.", "type": "metrics",
                "data": {"step": record.step, "task": record.task, "kind": record.kind, **_numbers(record)},
            })  # fmt: skip
        return sorted(events, key=lambda event: event["created_at"])

    def records(self, row: Any) -> list[Record]:
        """The metrics of a job, without those of the run it goes on from: a copy after its end."""
        if (self.folder / row.id / METRICS).is_file():
            with suppress(UserError):
                return RunFolder(self.folder / row.id).records()
        attempt = self._attempt(row)
        if attempt is not None and (attempt / METRICS).is_file():
            with suppress(UserError):
                return own_records(RunFolder(attempt))
        return []

    def progress(self, row: Any) -> Progress | None:
        """How far a job is that runs or is paused."""
        attempt = self._attempt(row)
        if row.status not in ("running", "paused") or attempt is None:
            return None
        with suppress(UserError, OSError):  # the run becomes a version, and its folder is gone
            return progress_of(RunFolder(attempt))
        return None

    def verdict(self, row: Any) -> dict[str, Any] | None:
        """Why the acceptance check refused a job's model. The verdict of an accepted one is with its version."""
        return None if row.error is None or row.error["code"] != FORGETTING else self._printed(row.id)

    def _printed(self, identity: str) -> dict[str, Any] | None:
        """The JSON that the process of a job printed. None if it was stopped before."""
        with suppress(OSError, ValueError):
            return dict(json.loads((self.folder / identity / "stdout").read_text(encoding="utf-8")))
        return None

    def _attempt(self, row: Any) -> Path | None:
        return None if row.attempt is None else self.versions.folder / ATTEMPTS / str(row.attempt)

    # ------------------------------------------------------------------------------------------------------ the text

    def copy_text(self, identity: str, file: str, name: str) -> tuple[Path, int]:
        """A job's own copy of a document, and its size: the document may be deleted while the job runs."""
        row = self.files.row(file)
        self.files.check_room(self.files.stored_bytes(), int(row.bytes))
        folder = self.folder / identity / name
        folder.mkdir(parents=True)
        path = folder / ("documents.txt" if row.kind == "text" else "documents.jsonl")
        with self.files.open(file) as source, path.open("wb") as copy:
            if row.kind == "text":
                shutil.copyfileobj(source, copy)
            else:
                copy.writelines(self._lines(source))
            copy.flush()
            os.fsync(copy.fileno())
        sync_folder(folder)
        return folder, int(row.bytes)

    def _lines(self, source: BinaryIO) -> Iterator[bytes]:
        """The documents of an uploaded file in the form that `trc2 continue` reads."""
        has_template: bool | None = None
        for row in read_rows(source):
            if "messages" in row and has_template is None:
                has_template = read_template(self.versions.accepted().model) is not None
            if "messages" in row and not has_template:
                raise ApiError(
                    400, "The file has rows with 'messages', but the model has no chat template: send 'text', or "
                    "'prompt' and 'completion'.", param="training_file", code="unsupported_rows",
                )  # fmt: skip
            yield json.dumps(row).encode() + b"\n"

    def remove_text(self, identity: str) -> None:
        """Remove the text of a job that was refused before it began."""
        shutil.rmtree(self.folder / identity, ignore_errors=True)

    def _remove_text(self, identity: str) -> None:
        """Remove the text of a job that has ended, and packed text that no other job waits for. Its logs stay."""
        for name in TEXTS:
            shutil.rmtree(self.folder / identity / name, ignore_errors=True)
        with self.database.connect() as connection:
            is_needed = connection.execute(sa.select(JOBS.c.id).where(JOBS.c.status.in_(OPEN)).limit(1)).first()
        if is_needed is None:
            shutil.rmtree(self.cache, ignore_errors=True)

    # ------------------------------------------------------------------------------------------------------- running

    async def work(self) -> None:
        """Run jobs one after the other, for ever. One that was running when its server died comes first."""
        try:
            while True:
                self.changed.clear()
                row = None
                try:
                    row = await asyncio.to_thread(self._next) if self._may_run() else None
                    if row is None:
                        with suppress(asyncio.TimeoutError):
                            await asyncio.wait_for(self.changed.wait(), IDLE_SECONDS)
                        continue
                    await self._run(row)
                except Exception as error:
                    message = f"The job could not be run ({type(error).__name__}: {brief(error)})."
                    with suppress(Exception):  # a full disk, for example: the worker must go on
                        if row is not None:
                            outcome = Outcome("failed", code="server_error", message=message)
                            await asyncio.to_thread(self._finish, row.id, outcome)
                    await asyncio.sleep(5)
        finally:
            self._lock.release()

    def _may_run(self) -> bool:
        """Whether this server runs the jobs. The system gives the lock to another one when this process ends."""
        if not self._lock.is_locked:
            with suppress(Timeout):
                self._lock.acquire(timeout=0)
        return bool(self._lock.is_locked)

    async def _end_process(self) -> None:
        """Ask the process to save and end, and kill it if it does not. Its job goes on later at its last checkpoint."""
        process = self._process
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

    def _next(self) -> Any:
        with self.database.connect() as connection:
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
            await asyncio.to_thread(self._finish, row.id, outcome)
        except BaseException:  # the server ends, or the state of the job cannot be written
            await self._end_process()
            raise
        finally:
            self._process = None
        if outcome.status == "succeeded":
            with suppress(Exception):  # the job has ended well. `watch` of the shelf tries again and says why
                await self.shelf.refresh()

    def _claim(self, identity: str) -> bool:
        """Begin a job, or end one that should stop before its process began again. Returns whether it goes on."""
        with alone(self.database) as connection:
            row = connection.execute(sa.select(JOBS).where(JOBS.c.id == identity)).one()
            if row.status not in ("queued", "running"):
                return False
            if row.wanted is None:
                begun = "The job goes on." if row.started_at else "The job has begun."
                begin: dict[str, Any] = {"status": "running", "pid": None, "started_at": row.started_at or now()}
                self._update(connection, identity, begun, **begin)
                return True
        self._finish(identity, Outcome(row.wanted))
        return False

    async def _train(self, row: Any) -> Outcome:
        folder, attempt, is_stopped = self.folder / row.id, row.attempt, False
        with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
            self._process = subprocess.Popen(
                self.settings.command(row.arguments), stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=folder,
                start_new_session=True,  # Ctrl-C is for the server, which then asks this process to save
            )  # fmt: skip
            pid = self._process.pid
            await asyncio.to_thread(self.update, row.id, pid=pid, pid_started=_started(pid))
            failpoint("job")
            while self._process.poll() is None:
                await asyncio.sleep(POLL_SECONDS)
                if attempt is None and (attempt := await asyncio.to_thread(self._attempt_of, row.id)) is not None:
                    await asyncio.to_thread(self.update, row.id, attempt=attempt)
                if (await asyncio.to_thread(self.row, row.id)).wanted is not None:
                    await self._end_process()
                elif is_stopped != _is_stopped(pid):
                    is_stopped = not is_stopped
                    said = "was stopped by a signal and waits" if is_stopped else "goes on"
                    await asyncio.to_thread(self.update, row.id, f"The job's process {said}.")
        return await asyncio.to_thread(self._outcome, row.id, self._process.returncode)

    def _attempt_of(self, identity: str) -> str | None:
        """The name of the run that a job has begun: its settings name the job's copy of the documents.

        Before a run is whole, its folder has a name with a dot.
        """
        for path in self.versions.attempts():
            with suppress(OSError):
                if not path.name.startswith(".") and identity in RunFolder(path).config_file.read_text("utf-8"):
                    return path.name
        return None

    def _outcome(self, identity: str, code: int) -> Outcome:
        folder, row = self.folder / identity, self.row(identity)
        promoted, printed = self._promoted(row), self._printed(identity) or {}
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
        attempt = self._attempt(row)
        paths = [] if attempt is None else list_checkpoints(RunFolder(attempt).checkpoints)
        newest = paths[-1].name[:255] if paths else ""
        kills = 1 if row.kills is None or newest != row.checkpoint else row.kills + 1
        if kills >= MAX_KILLS:
            message = f"The process was killed {kills} times without progress, perhaps because memory is short."
            return Outcome("failed", code="killed", message=message)
        self.update(row.id, kills=kills, checkpoint=newest)
        return Outcome("queued")

    def _promoted(self, row: Any) -> str | None:
        """The version that a job's run has become, also if its process was stopped before it could say so."""
        if row.attempt is None:
            return None
        source = f"{ATTEMPTS}/{row.attempt}"
        return next((version.name for version in self.versions.all() if version.source == source), None)

    def _finish(self, identity: str, outcome: Outcome) -> None:
        """Keep the metrics log and write how the job ended. A paused or interrupted job is not at its end."""
        row = self.row(identity)
        rest: dict[str, Any] = {"pid": None, "pid_started": None, "wanted": None}
        if outcome.status == "paused":
            self.update(identity, "The job is paused.", status="paused", **rest)
            return
        if outcome.status == "queued":
            self.update(identity, "The job was interrupted and goes on later.", status="queued", **rest)
            return
        run = self.versions.folder / outcome.model / RUN if outcome.model else self._attempt(row)
        if run is not None and RunFolder(run).is_run:
            with suppress(UserError):
                lines = "".join(record.to_json() + "\n" for record in own_records(RunFolder(run)))
                write_atomically(self.folder / identity / METRICS, lines.encode())
        if outcome.status == "cancelled" and (attempt := self._attempt(row)) is not None:
            shutil.rmtree(attempt, ignore_errors=True)
        version = self._version(outcome)
        sentences = {
            "succeeded": f"The model passed its check, and {outcome.model} waits until a person promotes it."
            if version is not None and version.is_held
            else f"The model is accepted as {outcome.model}.",
            "cancelled": "The job was cancelled.",
            "failed": outcome.message,
        }
        level = "error" if outcome.status == "failed" else "info"
        self.update(
            identity, sentences[outcome.status], level=level, status=outcome.status, finished_at=now(),
            fine_tuned_model=outcome.model, error=outcome.error,
            result_files=self._keep_report(identity, outcome, version), **rest,
        )  # fmt: skip
        self._remove_text(identity)

    def _version(self, outcome: Outcome) -> Version | None:
        """The version that a job made. None if it made none, or if its description was damaged since."""
        with suppress(UserError):
            return None if outcome.model is None else self.versions.get(outcome.model)
        return None

    def _keep_report(self, identity: str, outcome: Outcome, version: Version | None) -> list[str]:
        """Keep what the acceptance check found, and what an accepted version learned, as a file; returns its id."""
        of_version = None if version is None else version.verdict
        verdict = self._printed(identity) if outcome.code == FORGETTING else of_version
        if verdict is None:  # there was no check
            return []
        description = None if version is None else version.describe()
        report = {"schema": 1, "job": identity, "verdict": verdict, "version": description}
        name = f"file-{identity.removeprefix(PREFIX)}"  # the same after a kill
        try:
            self.files.add_result(name, REPORT, to_json(report, indent=1).encode())
        except OSError as error:  # the disk may be full, but the model is accepted or refused
            self.update(identity, f"The report could not be kept ({error.strerror}).", level="warn")
            return []
        return [name]

    # ------------------------------------------------------------------------------------------------------ stopping

    async def stop(self, identity: str, wanted: Stop) -> None:
        """Pause or cancel a job, and wait until its process has saved and ended."""
        if not await asyncio.to_thread(self._ask_to_stop, identity, wanted):
            return
        self.changed.set()
        for _ in range(int((STOP_SECONDS + ORPHAN_SECONDS) / POLL_SECONDS)):
            if (await asyncio.to_thread(self.row, identity)).status != "running":
                return
            await asyncio.sleep(POLL_SECONDS)
        raise ApiError(
            503, f"The job will be {wanted}, but its process has not ended yet: look at the job again.",
            code="still_stopping", headers={"retry-after": "10"},
        )  # fmt: skip

    def _ask_to_stop(self, identity: str, wanted: Stop) -> bool:
        """Stop a job that waits, or ask the server that runs it. Returns whether its process has to end first."""
        self.row(identity)  # or there is no such job
        possible = ("queued", "running") if wanted == "paused" else OPEN
        with alone(self.database) as connection:
            row = connection.execute(sa.select(JOBS).where(JOBS.c.id == identity)).one()
            if row.status not in possible:
                raise ApiError(
                    409, f"The job is {row.status}: only one that is {' or '.join(possible)} can be {wanted}.",
                    code="invalid_state",
                )  # fmt: skip
            if row.status == "running":
                self._update(connection, identity, None, wanted=wanted)
                return True
            self._update(connection, identity, None, status="paused")  # it does not begin
        self._finish(identity, Outcome(wanted))
        return False

    def resume(self, identity: str) -> None:
        """Put a paused job into the queue again. It goes on exactly where it was."""
        self.row(identity)
        with alone(self.database) as connection:
            row = connection.execute(sa.select(JOBS).where(JOBS.c.id == identity)).one()
            if row.status != "paused":
                raise ApiError(409, "Only a job that is paused can be resumed.", code="invalid_state")
            self._update(connection, identity, "The job waits.", status="queued")

    async def _wait_for_orphan(self, row: Any) -> None:
        """A process of a server that was killed saves and ends by itself. One that does not is killed.

        So is one whose job was cancelled meanwhile, because its checkpoint is not needed.
        """
        for _ in range(int(ORPHAN_SECONDS / POLL_SECONDS)):
            if not _is_ours(row):
                return
            if (await asyncio.to_thread(self.row, row.id)).wanted == "cancelled":
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
            if name is None or not await asyncio.to_thread(is_locked, self.versions.folder / ATTEMPTS / name):
                return
            await asyncio.sleep(POLL_SECONDS)


def new_job_id() -> str:
    return f"{PREFIX}{secrets.token_hex(12)}"


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


def _numbers(record: Record) -> dict[str, Any]:
    """The metrics as JSON can hold them."""
    return dict(json.loads(to_json(record.metrics)))
