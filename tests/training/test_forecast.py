from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.conftest import MakeRun
from trc2.config import RunConfig
from trc2.runs.records import Record
from trc2.runs.schedule import TaskSchedule
from trc2.stream.prepare import prepare_stream
from trc2.training.data import StreamData
from trc2.training.forecast import Agenda, Forecast, Work


def agenda_of(config: RunConfig) -> Agenda:
    assert config.stream is not None
    schedule = TaskSchedule.of_run(config)
    return Agenda(config, schedule, StreamData(config, schedule, prepare_stream(config.stream)))


def scored_at(agenda: Agenda, step: int) -> Iterator[tuple[list[str], Work]]:
    """What the training loop scores when a step is done: the tasks of an evaluation, else no names; and the work."""
    config, schedule = agenda.config, agenda.schedule
    if schedule.is_boundary(step):
        yield list(agenda.tasks), agenda.scored(agenda.tasks)
        yield [], agenda._controlled([span.task for span in schedule.spans if span.end == step][-1:])
    elif step % config.eval.every_steps == 0:
        names = schedule.seen(step)
        yield names, agenda.scored(names, with_text=config.eval.text_metrics_at == "always")
    if step % config.control.period == 0 and config.control.mode == "closed_loop":
        yield [], agenda._controlled(schedule.past(step))
    if step == schedule.total_steps and config.eval.test:
        yield [], agenda.scored(agenda.tasks, "test")


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
def test_the_remaining_work_is_the_sum_of_all_later_scoring(
    tiny_run: MakeRun, changes: dict[str, dict[str, object]]
) -> None:
    agenda = agenda_of(tiny_run(**changes))
    total, listed = agenda.schedule.total_steps, np.zeros(2)
    for step in range(total, -1, -1):
        assert (agenda.after(step) == listed).all()
        listed += sum(work for _, work in scored_at(agenda, step)) if step else 0
    assert (agenda.after(-1) == listed + agenda.scored(agenda.tasks)).all()


@pytest.mark.parametrize("every", [5, 50])
@pytest.mark.parametrize("token", [1e-4, 5e-4])
@pytest.mark.parametrize("text", [0.0, 1.0])
def test_after_twenty_steps_the_time_left_is_right_within_a_third(
    tiny_run: MakeRun, every: int, token: float, text: float
) -> None:
    tasks = [{"name": name, "folder": name, "steps": 100} for name in ("fruit", "tools")]
    agenda = agenda_of(tiny_run(stream={"tasks": tasks}, eval={"every_steps": every}, control={"every_steps": 20}))
    now, estimates = 1.2 * float(agenda.scored(agenda.tasks) @ [token, text]), []
    forecast = Forecast(agenda, 0, 0.0)
    forecast.see(evaluation(["fruit", "tools"], 0, with_text=True), now)
    for step in range(1, 201):
        now += 3 * token * agenda.config.train.tokens_per_step + (5.0 if step == 1 else 0.01)
        forecast.see(Record("train", step, "a"), now)
        estimates.append((now, forecast.left()))
        for names, work in scored_at(agenda, step):
            now += float(work @ [token, text])
            kind = evaluation(names, step, with_text=work[1] > 0) if names else Record("control", step, "a")
            forecast.see(kind, now)
    assert estimates[0][1] is None  # the first step tells nothing
    assert all(2 / 3 < left / (now - at) < 4 / 3 for at, left in estimates[20:195])


def evaluation(names: list[str], step: int, *, with_text: bool) -> Record:
    metrics = ("perplexity", "bleu") if with_text else ("perplexity",)
    return Record("eval", step, "a", {f"eval/{name}/{metric}": 1.0 for name in names for metric in metrics})
