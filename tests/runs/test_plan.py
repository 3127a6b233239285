from __future__ import annotations

import pytest

from trc2.config import StreamConfig, TrainConfig
from trc2.runs.plan import Plan

STREAM = StreamConfig(
    tasks=[{"name": "a", "builtin": "prose", "steps": 10}, {"name": "b", "builtin": "code", "steps": 20}]
)


def plan(**changes: object) -> Plan:
    return Plan.of(STREAM, TrainConfig(**{"learning_rate": 1.0, "warmup_steps": 4, "min_lr_ratio": 0.1, **changes}))


def test_tasks_follow_each_other() -> None:
    layout = plan()
    assert [layout.at(step).task for step in (0, 9, 10, 29)] == ["a", "a", "b", "b"]
    assert (layout.total_steps, layout.is_boundary(10), layout.is_boundary(11)) == (30, True, False)
    assert layout.seen(10) == ["a"]
    assert layout.seen(11) == ["a", "b"]
    with pytest.raises(IndexError):
        layout.at(30)


def test_per_task_schedules_warm_up_and_cool_down_in_every_task() -> None:
    rates = [plan().learning_rate(step) for step in range(30)]
    assert rates[:4] == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert rates[4] == pytest.approx(1.0)
    assert rates[10:14] == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert rates[9] < 0.2
    assert 0.1 <= rates[29] < 0.11


def test_the_stream_schedule_is_one_warm_up_and_one_cosine() -> None:
    rates = [plan(schedule="stream", min_lr_ratio=0.0).learning_rate(step) for step in range(30)]
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert rates[29] < 0.01
    assert rates[17] == pytest.approx(0.5)
