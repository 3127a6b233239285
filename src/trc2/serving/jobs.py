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
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil
import sqlalchemy as sa

from trc2.continuing.acceptance import REFUSED
from trc2.errors import UserError, brief
from trc2.runs.folder import RunFolder
from trc2.runs.lock import OWNER
from trc2.runs.records import Record
from trc2.serving.files import Files, read_rows
from trc2.serving.shelf import Shelf
from trc2.serving.store import EVENTS, JOBS, now
from trc2.serving.wire import ApiError
from trc2.system.failpoints import failpoint
from trc2.system.files import make_folder, sync_folder, to_json, write_atomically
from trc2.versions.entry import RUN
from trc2.versions.registry import ATTEMPTS, Versions

POLL_SECONDS = 0.2
INTERRUPTED = (130, -signal.SIGINT, -signal.SIGTERM)  # exit codes of a process that saved its run and ended
ORPHAN_SECONDS = 60
OPEN, FINAL = ("queued", "running", "paused"), ("succeeded", "failed", "cancelled")
METRICS = "metrics.jsonl"
MAX_OPEN = 100
# The process ends when the server does, also if the server is killed. It saves first, and is taken up again later.
PROGRAM = "from trc2.system.machine import end_with_parent; end_with_parent(); from trc2.cli import main; main()"
Stop = Literal["paused", "cancelled"]


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
    """The jobs of a data folder. Their rows are in the database, their text and logs in DATA/jobs/ID."""

    def __init__(self, folder: Path, database: sa.Engine, files: Files, versions: Versions, shelf: Shelf) -> None:
        self.folder, self.database, self.files = folder / "jobs", database, files
        self.cache = folder / "cache"
        self.versions, self.shelf = versions, shelf
        self.changed = asyncio.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._running: str | None = None
        self._wanted: Stop | None = None
        make_folder(self.folder)

    # ----------------------------------------------------------------------------------------------- rows and events

    def row(self, identity: str) -> Any:
        with self.database.connect() as connection:
            row = connection.execute(sa.select(JOBS).where(JOBS.c.id == identity)).first()
        if row is None:
            raise ApiError(404, "There is no job with this id.", param="fine_tuning_job_id", code="not_found")
        return row

    def update(self, identity: str, message: str | None = None, *, level: str = "info", **values: Any) -> None:
        """Change a row, and note why, in one transaction."""
        with self.database.begin() as connection:
            if values:
                connection.execute(sa.update(JOBS).where(JOBS.c.id == identity).values(**values))
            if message is not None:
                event = {"job": identity, "created_at": now(), "level": level, "message": message[:1000]}
                connection.execute(sa.insert(EVENTS).values(event))

    def create(self, values: dict[str, Any]) -> str:
        """Add a job to the queue; it is acknowledged after its row is on the disk."""
        with self.database.begin() as connection:
            count = sa.select(sa.func.count()).select_from(JOBS).where(JOBS.c.status.in_(OPEN))
            if (connection.execute(count).scalar() or 0) >= MAX_OPEN:
                raise ApiError(
                    429, f"{MAX_OPEN} jobs wait already: come back when some are done.", code="too_many_jobs",
                    headers={"retry-after": "60"},
                )  # fmt: skip
            connection.execute(sa.insert(JOBS).values(values))
            event = {"job": values["id"], "created_at": now(), "level": "info", "message": "The job waits."}
            connection.execute(sa.insert(EVENTS).values(event))
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
        for place, record in enumerate(self.records(row)):
            events.append({
                "id": f"ftevent-{identity}-metrics-{place}", "created_at": begin + int(record.seconds),
                "level": "info", "message": f"Step {record.step} of {record.task}: {record.kind}.", "type": "metrics",
                "data": {"step": record.step, "task": record.task, "kind": record.kind, **_numbers(record)},
            })  # fmt: skip
        return sorted(events, key=lambda event: event["created_at"])

    def records(self, row: Any) -> list[Record]:
        """The metrics log of a job's run: a copy after its end, before it the run's own."""
        for folder in (self.folder / row.id, self._attempt(row)):
            if folder is not None and (folder / METRICS).is_file():
                with suppress(UserError):
                    return RunFolder(folder).records()
        return []

    def _attempt(self, row: Any) -> Path | None:
        return None if row.attempt is None else self.versions.folder / ATTEMPTS / str(row.attempt)

    # ------------------------------------------------------------------------------------------------------ the text

    def copy_text(self, identity: str, file: str, name: str) -> tuple[Path, int]:
        """A job's own copy of a document, and its size: the document may be deleted while the job runs."""
        row, source = self.files.row(file), self.files.path(file)
        folder = self.folder / identity / name
        folder.mkdir(parents=True)
        path = folder / ("documents.txt" if row.kind == "text" else "documents.jsonl")
        with source.open("rb") as text, path.open("wb") as copy:
            copy.writelines(text if row.kind == "text" else _lines(source))
            copy.flush()
            os.fsync(copy.fileno())
        sync_folder(folder)
        return folder, int(row.bytes)

    def remove_text(self, identity: str) -> None:
        """Of a job that was refused before it began."""
        shutil.rmtree(self.folder / identity, ignore_errors=True)

    # ------------------------------------------------------------------------------------------------------- running

    async def work(self) -> None:
        """Run jobs one after the other, for ever. One that was running when the server died comes first."""
        while True:
            self.changed.clear()
            row = None
            try:
                row = await asyncio.to_thread(self._next)
                if row is None:
                    with suppress(asyncio.TimeoutError):
                        await asyncio.wait_for(self.changed.wait(), 5)
                    continue
                await self._run(row)
            except Exception as error:
                message = f"The job could not be run ({type(error).__name__}: {brief(error)})."
                with suppress(Exception):  # a full disk, for example: the worker must go on
                    if row is not None:
                        self._finish(row.id, Outcome("failed", code="server_error", message=message))
                await asyncio.sleep(5)

    async def _end_process(self) -> None:
        """Ask the process to save and end; the next server goes on with its job."""
        process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGINT)
            await asyncio.to_thread(process.wait)

    def _next(self) -> Any:
        with self.database.connect() as connection:
            query = sa.select(JOBS).where(JOBS.c.status.in_(("running", "queued")))
            order = (sa.case((JOBS.c.status == "running", 0), else_=1), JOBS.c.number)
            return connection.execute(query.order_by(*order).limit(1)).first()

    async def _run(self, row: Any) -> None:
        if row.pid is not None:
            await _wait_for_orphan(row.pid, row.id)
        if self.row(row.id).status not in ("queued", "running"):  # it was stopped meanwhile
            return
        self._running, self._wanted = row.id, None
        try:
            outcome = await self._train(row)
            failpoint("job end")
            await asyncio.to_thread(self._finish, row.id, outcome)
        except BaseException:  # the server ends, or the state of the job cannot be written
            await self._end_process()
            raise
        finally:
            self._running = self._process = None
        if outcome.status == "succeeded":
            with suppress(Exception):  # the job has ended well; `watch` of the shelf tries again and says why
                await self.shelf.refresh()

    async def _train(self, row: Any) -> Outcome:
        begun = "The job goes on." if row.started_at else "The job has begun."
        folder = self.folder / row.id
        with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
            command = [sys.executable, "-c", PROGRAM, *row.arguments]
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=folder,
                start_new_session=True,  # Ctrl-C is for the server, which then asks this process to save
            )  # fmt: skip
            pid, started = self._process.pid, row.started_at or now()
            self.update(row.id, begun, status="running", pid=pid, started_at=started)
            failpoint("job")
            attempt = row.attempt
            while self._process.poll() is None:
                await asyncio.sleep(POLL_SECONDS)
                if attempt is None and (attempt := await asyncio.to_thread(self._attempt_of, pid)) is not None:
                    self.update(row.id, attempt=attempt)
        return await asyncio.to_thread(self._outcome, row.id, self._process.returncode)

    def _attempt_of(self, pid: int) -> str | None:
        """The name of the run that this process holds. Before a run is whole, its folder has a name with a dot."""
        for path in self.versions.attempts():
            if path.name.startswith("."):
                continue
            with suppress(OSError, ValueError):
                if int((path / OWNER).read_text(encoding="ascii")) == pid:
                    return path.name
        return None

    def _outcome(self, identity: str, code: int) -> Outcome:
        folder, row = self.folder / identity, self.row(identity)
        promoted = self._promoted(row)
        printed: Any = {}
        with suppress(ValueError):
            printed = json.loads((folder / "stdout").read_text(encoding="utf-8"))
        if promoted is not None:
            return Outcome("succeeded", promoted)
        if code == 0 and "taught_by" in printed:
            return Outcome("succeeded", printed["taught_by"])
        if code == 0 and "accepted" in printed:
            return Outcome("succeeded", printed["accepted"]["name"])
        if self._wanted is not None:
            return Outcome(self._wanted)
        if code in INTERRUPTED:
            return Outcome("queued")
        if code == REFUSED:
            lost = [name for name, task in printed.get("tasks", {}).items() if not task["passed"]]
            sentence = f"The acceptance check refused the model, because it forgot too much of: {', '.join(lost)}."
            return Outcome("failed", code="forgetting", message=sentence, param=",".join(lost) or None)
        said = (folder / "stderr").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        reason = brief(said[-1].removeprefix("error: "), 500) if said else f"exit code {code}"
        return Outcome("failed", code="training_failed", message=f"Training ended early: {reason}.")

    def _promoted(self, row: Any) -> str | None:
        """The version that a job's run has become, also if its process was stopped before it could say so."""
        if row.attempt is None:
            return None
        source = f"{ATTEMPTS}/{row.attempt}"
        return next((version.name for version in self.versions.all() if version.source == source), None)

    def _finish(self, identity: str, outcome: Outcome) -> None:
        """Keep the metrics log and write how the job ended. A paused or interrupted job is not at its end."""
        row = self.row(identity)
        if outcome.status == "paused":
            self.update(identity, "The job is paused.", status="paused", pid=None)
            return
        if outcome.status == "queued":
            self.update(identity, "The job was interrupted and goes on later.", status="queued", pid=None)
            return
        run = self.versions.folder / outcome.model / RUN if outcome.model else self._attempt(row)
        if run is not None and RunFolder(run).is_run:
            with suppress(UserError):
                lines = "".join(record.to_json() + "\n" for record in RunFolder(run).records())
                write_atomically(self.folder / identity / METRICS, lines.encode())
        if outcome.status == "cancelled" and (attempt := self._attempt(row)) is not None:
            shutil.rmtree(attempt, ignore_errors=True)
        sentences = {
            "succeeded": f"The model is accepted as {outcome.model}.",
            "cancelled": "The job was cancelled.",
            "failed": outcome.message,
        }
        level = "error" if outcome.status == "failed" else "info"
        self.update(
            identity, sentences[outcome.status], level=level, status=outcome.status, pid=None, finished_at=now(),
            fine_tuned_model=outcome.model, error=outcome.error,
        )  # fmt: skip

    # ------------------------------------------------------------------------------------------------------ stopping

    async def stop(self, identity: str, wanted: Stop) -> None:
        """Pause or cancel a job, and wait until its process has saved and ended."""
        row = self.row(identity)
        possible = ("queued", "running") if wanted == "paused" else OPEN
        if row.status not in possible:
            raise ApiError(
                409, f"The job is {row.status}: only one that is {' or '.join(possible)} can be {wanted}.",
                code="invalid_state",
            )  # fmt: skip
        if self._running != identity:
            self._finish(identity, Outcome(wanted))
            return
        self._wanted = wanted
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        while self._running == identity:
            await asyncio.sleep(POLL_SECONDS / 4)

    def resume(self, identity: str) -> None:
        """Put a paused job into the queue again; it goes on exactly where it was."""
        if self.row(identity).status != "paused":
            raise ApiError(409, "Only a job that is paused can be resumed.", code="invalid_state")
        self.update(identity, "The job waits.", status="queued")
        self.changed.set()


def new_job_id() -> str:
    return f"ftjob-{secrets.token_hex(12)}"


async def _wait_for_orphan(pid: int, identity: str) -> None:
    """A process of a server that was killed saves and ends by itself; one that does not is killed."""
    for _ in range(int(ORPHAN_SECONDS / POLL_SECONDS)):
        if not _is_ours(pid, identity):
            return
        await asyncio.sleep(POLL_SECONDS)
    with suppress(psutil.Error):
        psutil.Process(pid).kill()
    while _is_ours(pid, identity):
        await asyncio.sleep(POLL_SECONDS)


def _is_ours(pid: int, identity: str) -> bool:
    """Whether a process is the one of this job: the number alone may be another program's by now."""
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and any(identity in word for word in process.cmdline())
    except psutil.Error:
        return False


def _lines(source: Path) -> Iterator[bytes]:
    """The documents of an uploaded file in the form that `trc2 continue` reads."""
    for row in read_rows(source):
        if row.messages:
            raise ApiError(
                400, "The file has rows with 'messages', which cannot be taught here yet: send 'text' instead.",
                param="training_file", code="unsupported_rows",
            )  # fmt: skip
        yield json.dumps({"text": row.text}).encode() + b"\n"


def _numbers(record: Record) -> dict[str, Any]:
    """The metrics as JSON can hold them."""
    return dict(json.loads(to_json(record.metrics)))
