"""The progress of a whole matrix, and the time that is left."""

from __future__ import annotations

import time
from collections.abc import Mapping

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from trc2.sweep.matrix import Cell
from trc2.sweep.status import Standing
from trc2.system.console import clock


def seconds_left(standings: Mapping[str, Standing], cells: Mapping[str, Cell], slots: int) -> float | None:
    """What is still to train, by the seconds a step took in runs of the same backbone, or in any. None before that."""
    rates: dict[str, list[float]] = {}
    for name, status in standings.items():
        if status.step > 0 and status.seconds > 0:
            rates.setdefault(cells[name].variant.config.model.name, []).append(status.seconds / status.step)
    every = [rate for group in rates.values() for rate in group]
    if not every:
        return None
    typical = sum(every) / len(every)
    left = 0.0
    for name, status in standings.items():
        group = rates.get(cells[name].variant.config.model.name)
        left += status.left * (typical if not group else sum(group) / len(group))
    open_runs = sum(status.left > 0 for status in standings.values())
    return left / max(1, min(slots, open_runs))


class Board:
    """A bar over all steps of all runs on a terminal. Elsewhere a line every minute, and when a run ends."""

    def __init__(self, cells: Mapping[str, Cell], console: Console, slots: int, every: float = 60.0) -> None:
        self.cells, self.console, self.slots, self.every = cells, console, slots, every
        self.last_line = 0.0
        self.bar: Progress | None = None
        if console.is_terminal:
            self.bar = Progress(
                TextColumn("{task.description}", markup=False), BarColumn(bar_width=24),
                TextColumn("{task.fields[state]}", markup=False), console=console,
            )  # fmt: skip
            self.bar.start()
            self.task = self.bar.add_task("sweep", total=None, state="")

    def show(self, standings: Mapping[str, Standing], running: list[str]) -> None:
        done = sum(status.state == "ended" for status in standings.values())
        failed = sum(status.state == "failed" for status in standings.values())
        state = f"{done}/{len(standings)} runs" + (f", {failed} failed" if failed else "")
        state += f"  {clock(seconds_left(standings, self.cells, self.slots))}"
        if self.bar is not None:
            steps = sum(status.total - status.left for status in standings.values())
            total = sum(status.total for status in standings.values())
            self.bar.update(self.task, completed=steps, total=total, description=" · ".join(running), state=state)
        elif time.monotonic() - self.last_line >= self.every:
            self.last_line = time.monotonic()
            now = ", ".join(f"{name} {standings[name].step}/{standings[name].total}" for name in running)
            self.say(f"{state}  ({now})")

    def say(self, line: str) -> None:
        (self.bar.console if self.bar is not None else self.console).print(line, highlight=False, soft_wrap=True)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()
