"""What pruning removes beside versions: old attempts, and packed text that no run needs any more."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trc2.continuing.acceptance import read_verdict
from trc2.errors import UserError
from trc2.runs.folder import RunFolder
from trc2.runs.lock import is_locked
from trc2.stream.prepare import remove_packed


@dataclass(frozen=True)
class Pruned:
    """What pruning removed of a version or an attempt: "checkpoint" or "all", and how many bytes."""

    version: str
    removed: str
    bytes: int


def spent_attempts(attempts: Sequence[Path], next_number: int, keep: int) -> list[Path]:
    """Attempts with checkpoints that were refused, or that a later version overtook, except the newest few."""
    spent = []
    for path in attempts:
        number, verdict = path.name.split("-")[0], read_verdict(RunFolder(path))
        is_overtaken = number.isdigit() and int(number) < next_number and not is_locked(path)
        if is_overtaken or (verdict is not None and not verdict.passed):
            spent.append(path)
    spent.sort(key=lambda path: (path.name.split("-")[0], len(path.name), path.name))
    return [path for path in spent[: max(0, len(spent) - keep)] if RunFolder(path).checkpoints.is_dir()]


def prune_run(path: Path) -> int:
    """Remove checkpoints and held-out text of a run. Its log and its verdict stay. Returns the bytes."""
    run = RunFolder(path)
    folders = [folder for folder in (run.held_out, run.interpolated, run.checkpoints) if folder.is_dir()]
    size = sum(file.stat().st_size for folder in folders for file in folder.rglob("*") if file.is_file())
    for folder in folders:  # the checkpoints last, so that a killed command is repeated
        shutil.rmtree(folder)
    return size


def remove_texts(lost: Sequence[Path], kept: Sequence[Path]) -> None:
    """Remove the packed text of runs that can be neither continued nor judged any more, unless others have it, too."""
    needed = [text for path in kept for text in _texts(path)] if lost else []
    for path in lost:
        for name, task, cache in _texts(path):
            if (name, task, cache) not in needed:
                remove_packed(name, task, cache)


def _texts(path: Path) -> list[tuple[str, dict[str, Any], Path]]:
    """Name and checksums of every task of a run, and the cache that has its tokens. Empty if the run is damaged."""
    run = RunFolder(path)
    with suppress(UserError):
        stream = run.config().stream
        tasks = run.data()["tasks"].items() if stream is not None else ()
        return [(name, {"splits": task["splits"]}, stream.cache) for name, task in tasks if stream is not None]
    return []
