from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import MakeRun
from trc2.config import RunConfig
from trc2.runs.records import Record
from trc2.runs.schedule import TaskSchedule
from trc2.stream.prepare import prepare_stream
from trc2.training.data import StreamData
from trc2.training.forecast import SCORING_SPEED, Forecast, scored, tokens_to_score


def parts_of(config: RunConfig) -> tuple[TaskSchedule, StreamData]:
    assert config.stream is not None
    schedule = TaskSchedule.of_run(config)
    return schedule, StreamData(config, schedule, prepare_stream(config.stream))


def scored_at(config: RunConfig, schedule: TaskSchedule, data: StreamData, step: int) -> Iterator[int]:
    """Tokens that the training loop scores when a step is done."""

    def evaluation(names: list[str], split: str = "validation") -> int:
        return scored([data.tasks[name] for name in names], split, config.eval)

    def control(names: list[str]) -> int:
        return sum(data.tasks[name].num_control * data.tasks[name].length for name in names)

    if schedule.is_boundary(step):
        yield evaluation(list(data.tasks))
        yield control([span.task for span in schedule.spans if span.end == step][-1:])
    elif step % config.eval.every_steps == 0:
        yield evaluation(schedule.seen(step))
    if step % config.control.period == 0 and config.control.mode == "closed_loop":
        yield control(schedule.past(step))
    if step == schedule.total_steps and config.eval.test:
        yield evaluation(list(data.tasks), "test")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"eval": {"every_steps": 1}},
        {"eval": {"every_steps": 4, "max_batches": None, "text_sequences": 0}, "control": {"every_steps": 5}},
        {"control": {"mode": "off"}},
        {"stream": {"mode": "joint"}},
    ],
)
def test_the_remaining_tokens_are_the_sum_of_all_later_scoring(
    tiny_run: MakeRun, changes: dict[str, dict[str, object]]
) -> None:
    config = tiny_run(**changes)
    schedule, data = parts_of(config)
    remaining, listed = tokens_to_score(config, schedule, data), 0
    for step in range(schedule.total_steps, 0, -1):
        listed += sum(scored_at(config, schedule, data, step))
        assert remaining[step] == listed
    assert remaining[0] == listed + scored(data.tasks.values(), "validation", config.eval)


@pytest.mark.parametrize("every", [5, 50])
@pytest.mark.parametrize("token", [1e-4, 5e-4])
def test_after_twenty_steps_the_time_left_is_right_within_a_third(tiny_run: MakeRun, every: int, token: float) -> None:
    tasks = [{"name": name, "folder": name, "steps": 100} for name in ("fruit", "tools")]
    config = tiny_run(stream={"tasks": tasks}, eval={"every_steps": every}, control={"every_steps": 20})
    schedule, data = parts_of(config)
    forecast, now, estimates = Forecast(config, schedule, data), 7.0, []
    for step in range(1, 201):
        now += SCORING_SPEED * token * config.train.tokens_per_step + (5.0 if step == 1 else 0.01)
        forecast.see(Record("train", step, "a"), now)
        estimates.append((now, forecast.left))
        now += token * sum(scored_at(config, schedule, data, step))
        forecast.see(Record("eval", step, "a"), now)
    assert estimates[0][1] is None  # the first step is not representative
    assert all(left is not None and 2 / 3 < left / (now - at) < 4 / 3 for at, left in estimates[20:195])
