"""Run a matrix: start and resume runs, record failures, and stop when asked."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console

from trc2.config import StreamConfig
from trc2.errors import UserError
from trc2.runs.folder import FAILURE, RunFolder
from trc2.runs.identity import is_same_run
from trc2.runs.lock import is_locked, lock_folder
from trc2.sweep.local_launcher import Launcher
from trc2.sweep.matrix import Cell
from trc2.sweep.progress import Board
from trc2.sweep.status import Standing, compact, note_failure, progressed, standing
from trc2.system.files import write_atomically
from trc2.training.setup import Interrupted, heeding_signals, prepare_with_progress

LOGS = ".logs"  # beside the runs: the output of each
POLL = 1.0  # seconds


def run_sweep(
    cells: list[Cell],
    out: Path,
    launcher: Launcher,
    console: Console,
    *,
    retry: bool = False,
    keep: bool = True,
    matrix: str = "",
    title: str = "",
) -> dict[str, Standing]:
    """Train every run that has not ended. One that was interrupted goes on where it stopped.

    A run that fails is kept and shown, and the others go on. `retry` also starts those that failed before. `keep=False`
    leaves of an ended run only what reports read. `matrix` and `title` are written into every run for reports.
    """
    threads = {cell.name: _threads(cell, launcher) for cell in cells}
    out.mkdir(parents=True, exist_ok=True)
    description = {"schema": 1, "matrix": matrix, "title": title}
    with lock_folder(out):
        sweep = _Sweep({cell.name: cell for cell in cells}, out, launcher, console, keep, threads, description)
        return sweep.run(retry)


def _threads(cell: Cell, launcher: Launcher) -> int:
    """Those that the run's own settings name, else the launcher's."""
    asked = cell.config.output.threads
    if asked is not None and launcher.most_threads is not None and asked > launcher.most_threads:
        raise UserError(
            f"The run {cell.name} has output.threads={asked}, but {launcher.slots} at a time leave each "
            f"{launcher.most_threads} of this machine's cores: add output.threads={launcher.most_threads}, or take "
            "fewer --jobs."
        )
    return asked or launcher.threads


@dataclass
class _Sweep:
    cells: dict[str, Cell]
    out: Path
    launcher: Launcher
    console: Console
    keep: bool
    threads: dict[str, int]
    description: dict[str, object]
    standings: dict[str, Standing] = field(default_factory=dict)
    running: list[str] = field(default_factory=list)
    stop_requested: bool = False

    def run(self, retry: bool) -> dict[str, Standing]:
        for cell in self.cells.values():
            folder = RunFolder(self.out / cell.name)
            if folder.is_run and not is_same_run(folder.config(), cell.config):
                raise UserError(
                    f"{folder} holds a run with other settings than the matrix asks for: move it away, "
                    "or choose another --out."
                )
            if retry:
                (folder.path / FAILURE).unlink(missing_ok=True)
            self.standings[cell.name] = standing(cell, self.out)
            if folder.is_run:
                self._describe(cell)  # an older run may not have a description
        self._shrink_ended()  # some may have ended outside a sweep
        waiting = [name for name, status in self.standings.items() if status.left]
        self._prepare_data([self.cells[name] for name in waiting])
        board = Board(self.cells, self.console, self.launcher.slots)
        try:
            with heeding_signals(self._request_stop):
                while (waiting or self.running) and not self.stop_requested:
                    self._begin_some(waiting)
                    board.show(self.standings, self.running)
                    time.sleep(POLL)
                    self._look(board)
            if self.stop_requested:
                self.launcher.stop()
                raise Interrupted("Stopped, and every run has saved: go on with the same `trc2 sweep`.")
        finally:
            self.launcher.stop()
            board.close()
        self._shrink_ended()  # others may have ended in other processes
        return self.standings

    def _prepare_data(self, cells: list[Cell]) -> None:
        """Prepare each stream once, before training. The order of its tasks does not matter.

        An error in the data of a stream is reported by its own runs, and does not stop the others.
        """
        done: list[StreamConfig] = []
        for cell in cells:
            assert cell.config.stream is not None
            stream = cell.config.stream.replace(order=None, only=None, mode="sequential")
            if stream not in done:
                done.append(stream)
                with suppress(UserError):
                    prepare_with_progress(cell.config, self.console)

    def _begin_some(self, waiting: list[str]) -> None:
        """Start as many runs as there is room for. A run that another process holds has to wait."""
        for name in [name for name in waiting if not is_locked(self.out / name)]:
            if len(self.running) == self.launcher.slots:
                return
            waiting.remove(name)
            self.standings[name] = standing(self.cells[name], self.out)
            if self.standings[name].left:
                self._begin(name)

    def _shrink_ended(self) -> None:
        """Delete what reports do not read of runs that have ended, if asked to and if no other process holds them."""
        for name, status in self.standings.items():
            if status.state == "ended" and not self.keep and not is_locked(self.out / name):
                compact(RunFolder(self.out / name))

    def _begin(self, name: str) -> None:
        folder = RunFolder(self.out / name)
        begun = folder.is_run and folder.has_metrics
        arguments = ["resume", str(folder)] if begun else self.cells[name].command(folder.path)
        arguments.append(f"output.threads={self.threads[name]}")
        self._describe(self.cells[name])
        self.launcher.start(name, arguments, self.threads[name], self._log(name))
        self.running.append(name)

    def _describe(self, cell: Cell) -> None:
        """Write the names that the matrix gives this run into its folder, for reports."""
        content = {**self.description, "axes": cell.axes, "order": cell.order, "seed": cell.seed}
        path = RunFolder(self.out / cell.name).variant_file
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(content, indent=2).encode())

    def _log(self, name: str) -> Path:
        return self.out / LOGS / f"{name}.log"

    def _look(self, board: Board) -> None:
        """Find out which runs ended and how far the others are."""
        ended = self.launcher.ended()
        for name, code in ended.items():
            self.running.remove(name)
            folder = RunFolder(self.out / name)
            status = standing(self.cells[name], self.out)
            if status.state != "ended":
                problem = note_failure(folder.path, code, self._log(name))
                status = replace(status, state="failed", problem=problem)
                board.say(f"{name} failed: {problem}")
            else:
                board.say(f"{name} ended after {status.seconds / 60:.1f} min")
            self.standings[name] = status
        if ended:
            self._shrink_ended()
        for name in self.running:
            self.standings[name] = progressed(self.standings[name], RunFolder(self.out / name).metrics_file)

    def _request_stop(self) -> None:
        self.stop_requested = True
