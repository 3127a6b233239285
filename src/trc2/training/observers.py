"""Observers of a run: they receive records and cannot change the run."""

from __future__ import annotations

import html
import importlib
import json
import math
import time
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from trc2.errors import UserError
from trc2.metrics.forgetting import PERPLEXITY
from trc2.runs.folder import RunFolder
from trc2.runs.records import Record, scores_by_task
from trc2.runs.schedule import TaskSchedule
from trc2.system.console import clock
from trc2.system.files import reading, write_atomically
from trc2.training.forecast import Forecast

SECONDS_BETWEEN_DRAWINGS = 0.2  # in a notebook
PEAK_MEMORY = "efficiency/peak_memory_gb"


class Observer(Protocol):
    def see(self, record: Record) -> None: ...

    def close(self) -> None: ...


class Screen:
    """A progress bar on a terminal, plain lines elsewhere.

    `first` is the step at which the run took over from its parent. Steps are shown relative to it.
    """

    def __init__(
        self, schedule: TaskSchedule, console: Console, log_every: int, start: int = 0,
        forecast: Forecast | None = None, first: int = 0,
    ) -> None:  # fmt: skip
        self.first, self.total = first, schedule.total_steps - first
        self.console, self.log_every, self.forecast = console, log_every, forecast
        self.bar: Progress | None = None
        if console.is_terminal:
            self.bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=24),
                TextColumn("{task.completed}/{task.total}", markup=False),
                TextColumn("{task.fields[line]}", markup=False),
                console=console,
            )
            self.bar.start()
            self.bar_task = self.bar.add_task("starting", total=self.total, completed=max(0, start - first), line="")

    def see(self, record: Record) -> None:
        if self.forecast is not None:
            self.forecast.see(record, time.monotonic())
        step = record.step - self.first
        if record.kind == "train":
            self.show_step(step, record.task, self._train_line(record))
        elif record.kind == "eval":
            scores = "  ".join(f"{name} {value:.4g}" for name, value in scores_by_task(record, PERPLEXITY).items())
            self.show_line(f"step {step}  perplexity  {scores}")
        elif record.kind == "nonfinite":
            self.show_line(f"step {step}  gradients are not finite: the step was skipped")
        elif record.kind == "stop":
            limit, passed_at = record.metrics["stop/limit"], int(record.metrics["stop/passed_at"]) - self.first
            self.show_line(f"step {passed_at}  a past task passed --stop-at {limit:g}: the run ends with step {step}")

    def _train_line(self, record: Record) -> str:
        values = record.metrics
        parts = [f"loss {values['train/loss_lm']:.3f}", f"{values['train/tokens_per_second']:,.0f} tok/s"]
        if "replay/coefficient" in values:
            parts.append(f"λ_rep {values['replay/coefficient']:.3f}")
        if "replay/share" in values:
            parts.append(f"replay {values['replay/share']:.0%}")
        if "hippocampus/fill" in values:
            parts.append(f"episodic slots {values['hippocampus/fill']:.0%} full")
        if self.forecast is not None and self.forecast.left is not None:
            parts.append(clock(self.forecast.left))
        return "  ".join(parts)

    def show_step(self, step: int, task: str, line: str) -> None:
        if self.bar is not None:
            self.bar.update(self.bar_task, completed=step, description=task, line=line)
        elif step % self.log_every == 0 or step == self.total:
            self.show_line(f"step {step}/{self.total}  {task}  {line}")

    def show_line(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True)  # above the bar, if there is one

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()


class NotebookScreen(Screen):
    """One output of a notebook's cell, drawn again as the run goes on: a bar, the newest step and the last scores.

    Rich needs ipywidgets for this, which notebooks do not always have.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        from IPython.display import HTML, display

        super().__init__(*args, **settings)
        self.html, self.output = HTML, display(HTML(""), display_id=True)
        self.step, self.step_text, self.line, self.drawn_at = 0, "", "", 0.0

    def show_step(self, step: int, task: str, line: str) -> None:
        self.step, self.step_text = step, f"{step}/{self.total}  {task}  {line}"
        if step == self.total or time.monotonic() - self.drawn_at >= SECONDS_BETWEEN_DRAWINGS:
            self.draw()

    def show_line(self, text: str) -> None:
        self.line = text
        self.draw()

    def draw(self) -> None:
        self.drawn_at = time.monotonic()
        bar = f'<progress value="{self.step}" max="{self.total}"></progress>'
        text = f"{html.escape(self.step_text)}<br><small>{html.escape(self.line)}</small>"
        self.output.update(self.html(f"<div>{bar} {text}</div>"))


class TensorBoard:
    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UserError(
                "report_to=tensorboard needs tensorboard: pip install '.[tensorboard]' in the checkout."
            ) from None
        self.writer: Any = SummaryWriter(str(folder / "tensorboard"))

    def see(self, record: Record) -> None:
        for name, value in record.metrics.items():
            self.writer.add_scalar(name, value, record.step)

    def close(self) -> None:
        self.writer.close()


class Tracker:
    """W&B or trackio, which share one interface.

    A resumed run continues the tracker's run. W&B finds it by an id, which the run folder stores, trackio by its name.
    W&B ignores steps that it has already. They are the same.
    """

    def __init__(self, name: str, folder: RunFolder, settings: dict[str, Any]) -> None:
        try:
            self.module = importlib.import_module(name)
        except ImportError:
            raise UserError(f"report_to={name} needs {name}: pip install '.[{name}]' in the checkout.") from None
        file = folder.tracker_file(name)
        arguments = {"dir": str(folder.path)} if name == "wandb" else {}  # W&B would use the current folder
        if file.exists():
            arguments["resume"] = "allow"
            with reading(file, "remove it to begin a new one"):
                run_id = json.loads(file.read_text(encoding="utf-8"))["id"]
            if name == "wandb" and isinstance(run_id, str):
                arguments["id"] = run_id
        run = self.module.init(project="trc2", name=folder.path.name, config=settings, **arguments)
        run_id = getattr(run, "id", None)
        content = {"schema": 1, "id": run_id if isinstance(run_id, str) else None}
        write_atomically(file, json.dumps(content).encode())

    def see(self, record: Record) -> None:
        self.module.log(dict(record.metrics), step=record.step)

    def close(self) -> None:
        self.module.finish()


def build_observers(report_to: tuple[str, ...], folder: RunFolder, settings: dict[str, Any]) -> list[Observer]:
    """The observers a config asks for by name."""
    return [
        TensorBoard(folder.path) if name == "tensorboard" else Tracker(name, folder, settings) for name in report_to
    ]


class Recorder:
    """Sends records to observers. Keeps the evaluations, the peak memory, the last speed and the time of the run."""

    def __init__(self, observers: list[Observer]) -> None:
        self.observers = observers
        self.evaluations: list[Record] = []
        self.peak_memory_gb = 0.0  # the most that any of its processes has recorded
        self.last_speed = math.nan  # tokens per second of the last step
        self._begun = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds that the run took so far, over all of its processes."""
        return time.monotonic() - self._begun

    def emit(self, record: Record) -> None:
        self._note(record)
        for observer in self.observers:
            observer.see(record)

    def resume_from(self, records: list[Record], seconds: float) -> None:
        """Continue a run that made these records and took this many seconds so far."""
        self.evaluations = []
        for record in records:
            self._note(record)
        self._begun = time.monotonic() - seconds

    def _note(self, record: Record) -> None:
        if record.kind == "eval":
            self.evaluations.append(record)
        if record.kind == "train":
            self.last_speed = record.metrics.get("train/tokens_per_second", self.last_speed)
        self.peak_memory_gb = max(self.peak_memory_gb, record.metrics.get(PEAK_MEMORY, 0.0))

    def close(self) -> None:
        for observer in self.observers:
            observer.close()
