"""The metrics log of a run: records as JSON lines, the file they are appended to, and tables read back from it."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from trc2.errors import UserError
from trc2.metrics.forgetting import METRICS, Metric, ScoreTable, TaskSpan
from trc2.system.files import about, reading, refuse_link, to_json

SCHEMA = 1
Kind = Literal["train", "eval", "control", "boundary", "test", "resume", "nonfinite", "end", "stop"]
KINDS = get_args(Kind)
TAIL = 2**16  # bytes. A record is much shorter


@dataclass(frozen=True)
class Record:
    """Something that happened at an optimizer step. `metrics` are numbers by path, e.g. `eval/c4/perplexity`."""

    kind: Kind
    step: int
    task: str
    metrics: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    def to_json(self) -> str:
        content = {"schema": SCHEMA, "kind": self.kind, "step": self.step, "task": self.task}
        return to_json({**content, "seconds": round(self.seconds, 3), "metrics": self.metrics})


def parse(line: str | bytes) -> Record:
    """One line of a metrics log. Raises ValueError if it is not a record."""
    content = json.loads(line)
    if not isinstance(content, dict) or not isinstance(content.get("schema"), int):
        raise ValueError("not a record")
    if content["schema"] > SCHEMA:
        raise UserError(f"A record has schema {content['schema']}, this version reads up to {SCHEMA}: update trc2.")
    step, task, metrics = content.get("step"), content.get("task"), content.get("metrics")
    kind: Any = content.get("kind")
    if kind not in KINDS or type(step) is not int or not isinstance(task, str) or not isinstance(metrics, dict):
        raise ValueError("not a record")
    numbers = {name: float(value) for name, value in metrics.items()}
    return Record(kind, step, task, numbers, float(content.get("seconds", 0.0)))


def read_all_records(path: Path) -> list[Record]:
    """Every record in the order it was written, also those that were superseded later."""
    with reading(path):
        content = path.read_bytes()
        records, _ = _scan(path, gzip.decompress(content) if path.suffix == ".gz" else content)
    return records


def last_record(path: Path) -> Record | None:
    """The newest whole record of a metrics log, which may be long and still growing."""
    return next(reversed(last_records(path)), None)


def last_records(path: Path) -> list[Record]:
    """The whole records at the end of a metrics log, oldest first. The log may be long and still growing."""
    with reading(path), path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL))
        lines = file.read().split(b"\n")[:-1]  # the rest after the last line end is not whole
    records = []
    for line in lines:
        with suppress(ValueError, TypeError):  # the first one may be cut off
            records.append(parse(line))
    return records


def current(records: Iterable[Record]) -> list[Record]:
    """The records without those that a later `resume` or `stop` record superseded.

    A resumed run ends again, so an earlier end and its test scores are superseded too. A run that is resumed at step 0
    is evaluated again before its first step. A second `stop` record means
    that the run was killed at its end, so the first one and the scores after it are superseded.
    """
    kept: list[Record] = []
    for record in records:
        if record.kind == "stop":
            first = next((number for number, earlier in enumerate(kept) if earlier.kind == "stop"), len(kept))
            kept = kept[:first]
        if record.kind == "resume":
            is_begun = record.step > 0
            kept = [r for r in kept if is_begun and r.step <= record.step and r.kind not in ("test", "end")]
        kept.append(record)
    return kept


def repair(path: Path) -> None:
    """Cut off the bytes after the last whole record: the next record must not be appended to a torn line.

    Call this before appending to a metrics log.
    """
    refuse_link(path)
    if not path.exists():
        return
    with reading(path):
        content = path.read_bytes()
        _, keep = _scan(path, content)
        if keep < len(content):
            with path.open("r+b") as file:
                file.truncate(keep)
                os.fsync(file.fileno())


def append_record(path: Path, record: Record) -> None:
    """Append one record to a metrics log that is not open, durably."""
    with closing(MetricsLog(path)) as log:
        log.see(record)
        log.sync()


def _scan(path: Path, content: bytes) -> tuple[list[Record], int]:
    """The whole records of a metrics log and their number of bytes. A bad line before a good one is an error."""
    records: list[Record] = []
    keep = start = 0
    bad: int | None = None
    for number, line in enumerate(content.split(b"\n"), start=1):
        end = start + len(line) + 1
        if not line.strip():
            keep = end if bad is None and end <= len(content) else keep
        else:
            try:
                record = parse(line)
            except UserError:
                raise
            except (ValueError, TypeError, RecursionError, OverflowError):
                bad = bad or number
            else:
                if bad is not None:
                    raise UserError(f"{path}:{bad} is not a record: restore the file from a copy.")
                if end <= len(content):  # else its line end is missing, and something may be missing before that
                    records.append(record)
                    keep = end
        start = end
    return records, keep


def score_table(records: Iterable[Record], metric: Metric, spans: tuple[TaskSpan, ...]) -> ScoreTable:
    """score[step, task] of one metric from the evaluation records."""
    scores: dict[int, dict[str, float]] = {}
    for record in records:
        row = scores_by_task(record, metric) if record.kind == "eval" else {}
        if row:
            scores.setdefault(record.step, {}).update(row)
    return ScoreTable(metric, spans, scores)


def scores_by_task(record: Record, metric: Metric) -> dict[str, float]:
    """The values of a metric in one evaluation."""
    scores = {}
    for name, value in record.metrics.items():
        parts = name.split("/")
        if len(parts) == 3 and parts[0] == "eval" and parts[2] == metric.name:
            scores[parts[1]] = value
    return scores


def score_tables(
    records: Iterable[Record], spans: tuple[TaskSpan, ...], metrics: Mapping[str, Metric] = METRICS
) -> dict[str, ScoreTable]:
    records = list(records)
    tables = {name: score_table(records, metric, spans) for name, metric in metrics.items()}
    return {name: table for name, table in tables.items() if any(table.scores.values())}


class MetricsLog:
    """Appends every record to metrics.jsonl at once, so that a killed run loses no record.

    The file only grows. A checkpoint stores its length and hash (`mark`), so that a reader can check that the records
    before the checkpoint are still there.
    """

    def __init__(self, path: Path) -> None:
        repair(path)
        self.path = path
        with about(path):
            content = path.read_bytes() if path.exists() else b""
            self.file = path.open("ab", buffering=0)
        self.size, self.hash = len(content), hashlib.sha256(content)

    def see(self, record: Record) -> None:
        line = record.to_json().encode() + b"\n"
        with about(self.path):
            if self.file.write(line) != len(line):  # `repair` removes the torn line later
                raise OSError(28, os.strerror(28))
        self.size += len(line)
        self.hash.update(line)

    def mark(self) -> dict[str, Any]:
        """Length and hash of everything written so far."""
        return {"bytes": self.size, "sha256": self.hash.hexdigest()}

    def sync(self) -> None:
        """Wait until the disk has everything written so far."""
        with about(self.path):
            os.fsync(self.file.fileno())

    def close(self) -> None:
        self.file.close()
