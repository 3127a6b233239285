from __future__ import annotations

import pytest

from trc2.config import StreamConfig, TrainConfig
from trc2.runs.schedule import TaskSchedule

STREAM = StreamConfig(
    tasks=[{"name": "a", "builtin": "prose", "steps": 10}, {"name": "b", "builtin": "code", "steps": 20}]
)


def schedule_of(**changes: object) -> TaskSchedule:
    return TaskSchedule.of(
        STREAM, TrainConfig(**{"learning_rate": 1.0, "warmup_steps": 4, "min_lr_ratio": 0.1, **changes})
    )


def test_tasks_follow_each_other() -> None:
    layout = schedule_of()
    assert [layout.at(step).task for step in (0, 9, 10, 29)] == ["a", "a", "b", "b"]
    assert (layout.total_steps, layout.is_boundary(10), layout.is_boundary(11)) == (30, True, False)
    assert layout.seen(10) == ["a"]
    assert layout.seen(11) == ["a", "b"]
    with pytest.raises(IndexError):
        layout.at(30)


def test_per_task_schedules_warm_up_and_cool_down_in_every_task() -> None:
    rates = [schedule_of().learning_rate(step) for step in range(30)]
    assert rates[:4] == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert rates[4] == pytest.approx(1.0)
    assert rates[10:14] == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert rates[9] < 0.2
    assert 0.1 <= rates[29] < 0.11


def test_the_stream_schedule_is_one_warm_up_and_one_cosine() -> None:
    rates = [schedule_of(schedule="stream", min_lr_ratio=0.0).learning_rate(step) for step in range(30)]
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert rates[29] < 0.01
    assert rates[17] == pytest.approx(0.5)


def test_schedules_without_a_horizon_hold_a_rate_and_anneal_before_every_boundary() -> None:
    first, second = {"name": "a", "builtin": "prose", "steps": 20}, {"name": "b", "builtin": "code", "steps": 10}
    stream = StreamConfig(tasks=[first, second])
    train = TrainConfig(learning_rate=1.0, warmup_steps=4, schedule="wsd", anneal_share=0.2, min_lr_ratio=0.1)
    schedule = TaskSchedule.of(stream, train)
    rates = [schedule.learning_rate(step) for step in range(30)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert set(rates[4:16]) == {1.0}
    assert rates[16:20] == pytest.approx([0.775, 0.55, 0.325, 0.1])
    assert rates[20:28] == [1.0] * 8  # it goes on from before the anneal, so there is nothing to warm up
    assert rates[28:] == pytest.approx([0.55, 0.1])
    assert schedule.branch_points == {16, 28}
    assert [schedule.step_before_anneal(step) for step in (0, 19, 20, 30)] == [None, None, 16, 28]
    longer = TaskSchedule.of(
        stream.replace(tasks=[first, second, {"name": "c", "builtin": "prose", "steps": 5}]), train
    )
    assert [longer.learning_rate(step) for step in range(30)] == rates  # no horizon: a later task changes nothing

    endless = train.replace(schedule="infinite", cooldown_steps=8, constant_lr_ratio=0.5)
    rates = [TaskSchedule.of(stream, endless).learning_rate(step) for step in range(30)]
    assert rates[3:5] == [1.0, 1.0]
    assert rates[8] == pytest.approx(0.75)
    assert rates[12:16] == pytest.approx([0.5] * 4)
    assert rates[19] == pytest.approx(0.1)
    assert rates[20:28] == pytest.approx([0.5] * 8)
    assert TaskSchedule.of(stream, train.replace(schedule="per_task")).branch_points == set()
