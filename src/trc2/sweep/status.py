"""How far the runs of a sweep are, read from their folders alone."""

from __future__ import annotations

import gzip
import json
import shutil
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from trc2.runs.folder import FAILURE, RunFolder
from trc2.runs.lock import LOCK, OWNER
from trc2.runs.records import last_record
from trc2.sweep.matrix import Cell
from trc2.system.files import reading, write_atomically

LAST_WORDS = 2000  # characters of a failed run's output that are kept


@dataclass(frozen=True)
class Standing:
    """One run: how far it is, and how long its steps took."""

    state: Literal["waiting", "begun", "ended", "failed"]
    step: int
    total: int
    seconds: float = 0.0
    problem: str = ""

    @property
    def left(self) -> int:
        return 0 if self.state in ("ended", "failed") else self.total - self.step


def standing(cell: Cell, out: Path) -> Standing:
    """The state of a run, from its folder."""
    path, total = out / cell.name, cell.variant.total_steps
    if not path.exists():  # most runs of a large sweep that has just begun
        return Standing("waiting", 0, total)
    folder = RunFolder(path)
    failure = folder.path / FAILURE
    records = folder.records() if folder.has_metrics else []  # without an end that a resume undid
    step, seconds = (max(0, records[-1].step), records[-1].seconds) if records else (0, 0.0)
    if any(record.kind == "end" for record in records):
        return Standing("ended", total, total, seconds)
    if failure.exists():
        with reading(failure):
            problem = str(json.loads(failure.read_text(encoding="utf-8"))["problem"])
        return Standing("failed", step, total, seconds, problem)
    return Standing("begun" if records else "waiting", step, total, seconds)


def progressed(before: Standing, metrics_log: Path) -> Standing:
    """How far a run is that is being trained."""
    newest = last_record(metrics_log) if metrics_log.exists() else None
    return before if newest is None else replace(before, state="begun", step=newest.step, seconds=newest.seconds)


def note_failure(folder: Path, code: int, log: Path) -> str:
    """Keep the last output of a failed run in its folder, and return its last line."""
    output = log.read_text(encoding="utf-8", errors="replace")[-LAST_WORDS:] if log.exists() else ""
    lines = [line for line in output.splitlines() if line.strip()]
    problem = lines[-1] if lines else f"exit code {code}"
    if code < 0:  # it was killed, so its last line is not the reason
        problem = f"killed by signal {-code} ({signal.strsignal(-code)})"
    folder.mkdir(parents=True, exist_ok=True)
    content = {"schema": 1, "exit_code": code, "problem": problem, "output": output}
    write_atomically(folder / FAILURE, json.dumps(content, indent=2).encode())
    return problem


def compact(folder: RunFolder) -> None:
    """Keep only the files of an ended run that reports read: settings, data and the metrics log, compressed.

    If this is interrupted, the whole metrics log is still there, compressed or not.
    """
    if folder.metrics_file.exists():
        content = folder.metrics_file.read_bytes()
        write_atomically(folder.compressed_metrics_file, gzip.compress(content, mtime=0))
        folder.metrics_file.unlink()
    for checkpoints in (folder.checkpoints, folder.interpolated):
        shutil.rmtree(checkpoints, ignore_errors=True)
    named = (folder.path / name for name in (LOCK, OWNER, "summary.md"))
    for path in (folder.tokenizer_file, *named, *folder.path.glob("*.png")):
        path.unlink(missing_ok=True)
