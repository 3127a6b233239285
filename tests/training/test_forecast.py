from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from trc2.config import RunConfig
from trc2.runs.folder import RunFolder
from trc2.runs.records import Record
from trc2.runs.schedule import TaskSchedule
from trc2.stream.prepare import prepare_stream
from trc2.training.data import StreamData
from trc2.training.forecast import Agenda, Forecast, Work
from trc2.training.loop import Trainer
from trc2.training.setup import start_run

MakeRun = Callable[..., RunConfig]


def agenda_of(config: RunConfig) -> Agenda:
    assert config.stream is not None
    plan = TaskSchedule.of_run(config)
    return Agenda(config, plan, StreamData(config, plan, prepare_stream(config.stream)))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"eval": {"every_steps": 1, "text_metrics_at": "always"}},
        {"eval": {"every_steps": 4, "max_batches": None, "text_sequences": 0}, "control": {"every_steps": 5}},
        {"control": {"mode": "off"}},
        {"stream": {"mode": "joint"}},
    ],
)
def test_what_is_left_is_the_sum_of_what_comes(tiny_run: MakeRun, changes: dict[str, dict[str, object]]) -> None:
    agenda = agenda_of(tiny_run(**changes))
    total = agenda.plan.total_steps
    for step in range(total + 1):
        listed = sum((agenda.at(later) for later in range(step + 1, total + 1)), Work())
        assert agenda.after(step) == listed


def test_a_run_of_any_length_is_counted_at_once(tiny_run: MakeRun, tiny_data: Path) -> None:
    tasks = [{"name": name, "folder": name, "steps": 10**12} for name in ("fruit", "tools")]
    begun = time.monotonic()
    assert agenda_of(tiny_run(stream={"tasks": tasks})).after(0).tokens > 1e12
    assert time.monotonic() - begun < 5


def told(agenda: Agenda, step_seconds: float, token: float, text: float, first: float) -> tuple[Forecast, list[float]]:
    """A run with invented times: its forecast after every step, and what was truly left then."""
    now, left, ends = 0.0, [], []
    forecast = Forecast(agenda, 0, now)

    def scored(work: Work) -> float:
        return work.tokens * token + work.texts * text

    now += 1.2 * scored(agenda.evaluation(0))
    forecast.see(Record("eval", 0, "a"), now)
    for step in range(1, agenda.plan.total_steps + 1):
        seconds = step_seconds + (first if step == 1 else 0.0)
        now += seconds + 0.01
        speed = agenda.config.train.tokens_per_step / seconds
        forecast.see(Record("train", step, "a", {"train/tokens_per_second": speed}), now)
        left.append(forecast.left() or 0.0)
        ends.append(now)
        if (work := agenda.evaluation(step)).tokens:
            now += scored(work)
            forecast.see(Record("eval", step, "a"), now)
        if (work := agenda.control(step)).tokens:
            now += scored(work)
            forecast.see(Record("control", step, "a"), now)
    now += scored(agenda.at(agenda.plan.total_steps)) - scored(agenda.evaluation(agenda.plan.total_steps))
    return forecast, [estimate / max(1e-9, now - at) for estimate, at in zip(left, ends, strict=True)]


@pytest.mark.parametrize("every", [5, 50])
@pytest.mark.parametrize("token", [1e-4, 5e-4])
@pytest.mark.parametrize("text", [0.0, 1.0])
def test_after_twenty_steps_the_time_left_is_right_within_a_third(
    tiny_run: MakeRun, every: int, token: float, text: float
) -> None:
    tasks = [{"name": name, "folder": name, "steps": 100} for name in ("fruit", "tools")]
    config = tiny_run(stream={"tasks": tasks}, eval={"every_steps": every}, control={"every_steps": 20})
    agenda = agenda_of(config)
    a_step = config.train.tokens_per_step * token * 3
    forecast, ratios = told(agenda, a_step, token, text, first=5.0)
    assert all(2 / 3 < ratio < 4 / 3 for ratio in ratios[20:195])
    assert forecast.left() is not None


def test_before_the_second_step_nothing_is_said(tiny_run: MakeRun) -> None:
    forecast = Forecast(agenda_of(tiny_run()), 0, 0.0)
    assert forecast.left() is None
    forecast.see(Record("train", 1, "fruit", {"train/tokens_per_second": 1.0}), 64.0)
    assert forecast.left() is None
    forecast.see(Record("train", 2, "fruit", {"train/tokens_per_second": 64.0}), 65.0)
    left = forecast.left()
    assert left is not None
    assert left < 60  # the minute of the first step is forgotten


class Listener:
    """Keeps what the forecast said at every step, and when."""

    def __init__(self, trainer: Trainer) -> None:
        self.forecast = Forecast(Agenda(trainer.config, trainer.plan, trainer.stream_data), 0, time.monotonic())
        self.said: list[tuple[float, float]] = []

    def see(self, record: Record) -> None:
        now = time.monotonic()
        self.forecast.see(record, now)
        if record.kind == "train" and (left := self.forecast.left()) is not None:
            self.said.append((now, left))

    def close(self) -> None:
        pass


@pytest.mark.slow
def test_a_real_run_ends_about_when_it_was_said_to(tiny_run: MakeRun) -> None:
    tasks = [{"name": name, "folder": name, "steps": 120} for name in ("fruit", "tools")]
    config = tiny_run(
        stream={"tasks": tasks},
        eval={"every_steps": 15, "check_no_side_effects": False},
        output={"checkpoint_every": 500},
    )
    start_run(config.replace(output={**config.output.model_dump(), "folder": config.output.folder / "warm"}), QUIET)
    trainer = Trainer(config, prepare_stream(config.stream), RunFolder(config.output.folder), [])  # type: ignore[arg-type]
    listener = Listener(trainer)
    trainer.recorder.observers.append(listener)
    trainer.folder.path.mkdir(exist_ok=True)
    trainer.run()
    at, left = listener.said[20]
    assert 1 / 2 < left / (time.monotonic() - at) < 2  # others use the machine while tests run


QUIET = Console(quiet=True)
