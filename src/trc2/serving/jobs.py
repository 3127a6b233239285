"""Fine-tuning jobs: their rows, text, events, metrics and reports. `worker.py` runs them."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import sqlalchemy as sa

from trc2.errors import UserError
from trc2.runs.folder import RunFolder
from trc2.runs.records import Record
from trc2.serving.files import Files, read_rows
from trc2.serving.progress import Progress, own_records, progress_of
from trc2.serving.store import EVENTS, JOBS, alone, find, now
from trc2.serving.wire import ApiError
from trc2.stream.chat import read_template
from trc2.sweep.ray_launcher import import_ray
from trc2.system.files import make_folder, sync_folder, to_json, write_atomically
from trc2.versions.entry import RUN, Version
from trc2.versions.registry import ATTEMPTS, Versions

POLL_SECONDS = 0.2
ORPHAN_SECONDS = STOP_SECONDS = 60  # a process that has not saved and ended by then is killed
OPEN, FINAL = ("queued", "running", "paused"), ("succeeded", "failed", "cancelled")
METRICS, REPORT, TEXTS, PREFIX = "metrics.jsonl", "report.json", ("text", "keep"), "ftjob-"
FORGETTING = "forgetting"  # the code of a job whose model the acceptance check refused
MAX_OPEN = 100
Stop = Literal["paused", "cancelled"]


@dataclass(frozen=True)
class JobSettings:
    """How jobs are run: in how many processes that train together, and whether here or on a Ray cluster.

    With `hold`, a person makes the versions of jobs the accepted ones.
    """

    hold: bool = False
    nproc: int = 1
    launcher: Literal["local", "ray"] = "local"


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
        self, folder: Path, database: sa.Engine, files: Files, versions: Versions, settings: JobSettings
    ) -> None:
        if settings.launcher == "ray":
            import_ray()
        self.folder, self.database, self.files, self.settings = folder / "jobs", database, files, settings
        self.cache = folder / "cache"
        self.versions = versions
        self.changed = asyncio.Event()
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
            self.update_row(connection, identity, message, level=level, **values)

    def update_row(
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
            self.update_row(connection, values["id"], "The job waits.")
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
        attempt = self.attempt(row)
        if attempt is not None and (attempt / METRICS).is_file():
            with suppress(UserError):
                return own_records(RunFolder(attempt))
        return []

    def progress(self, row: Any) -> Progress | None:
        """How far a job is that runs or is paused."""
        attempt = self.attempt(row)
        if row.status not in ("running", "paused") or attempt is None:
            return None
        with suppress(UserError, OSError):  # the run becomes a version, and its folder is gone
            return progress_of(RunFolder(attempt))
        return None

    def verdict(self, row: Any) -> dict[str, Any] | None:
        """Why the acceptance check refused a job's model. The verdict of an accepted one is with its version."""
        return None if row.error is None or row.error["code"] != FORGETTING else self.printed(row.id)

    def printed(self, identity: str) -> dict[str, Any] | None:
        """The JSON that the process of a job printed. None if it was stopped before."""
        with suppress(OSError, ValueError):
            return dict(json.loads((self.folder / identity / "stdout").read_text(encoding="utf-8")))
        return None

    def attempt(self, row: Any) -> Path | None:
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

    # -------------------------------------------------------------------------------------------------------- ending

    def finish(self, identity: str, outcome: Outcome) -> None:
        """Keep the metrics log and write how the job ended. A paused or interrupted job is not at its end."""
        row = self.row(identity)
        rest: dict[str, Any] = {"pid": None, "pid_started": None, "wanted": None}
        if outcome.status == "paused":
            self.update(identity, "The job is paused.", status="paused", **rest)
            return
        if outcome.status == "queued":
            self.update(identity, "The job was interrupted and goes on later.", status="queued", **rest)
            return
        run = self.versions.folder / outcome.model / RUN if outcome.model else self.attempt(row)
        if run is not None and RunFolder(run).is_run:
            with suppress(UserError):
                lines = "".join(record.to_json() + "\n" for record in own_records(RunFolder(run)))
                write_atomically(self.folder / identity / METRICS, lines.encode())
        if outcome.status == "cancelled" and (attempt := self.attempt(row)) is not None:
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
        verdict = self.printed(identity) if outcome.code == FORGETTING else of_version
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
                self.update_row(connection, identity, None, wanted=wanted)
                return True
            self.update_row(connection, identity, None, status="paused")  # it does not begin
        self.finish(identity, Outcome(wanted))
        return False

    def resume(self, identity: str) -> None:
        """Put a paused job into the queue again. It goes on exactly where it was."""
        self.row(identity)
        with alone(self.database) as connection:
            row = connection.execute(sa.select(JOBS).where(JOBS.c.id == identity)).one()
            if row.status != "paused":
                raise ApiError(409, "Only a job that is paused can be resumed.", code="invalid_state")
            self.update_row(connection, identity, "The job waits.", status="queued")


def new_job_id() -> str:
    return f"{PREFIX}{secrets.token_hex(12)}"


def _numbers(record: Record) -> dict[str, Any]:
    """The metrics as JSON can hold them."""
    return dict(json.loads(to_json(record.metrics)))
