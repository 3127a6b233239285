"""The cost of a run is reported for the whole run, over all of its processes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.conftest import MakeRun
from tests.training.test_loop import trainer
from trc2.runs.records import Record
from trc2.training.observers import PEAK_MEMORY, Recorder


def test_a_story_that_goes_on_knows_peak_and_speed_of_before() -> None:
    recorder = Recorder([])
    assert math.isnan(recorder.last_speed)
    told = [
        Record("train", 1, "a", {"train/tokens_per_second": 50.0}),
        Record("eval", 1, "a", {PEAK_MEMORY: 9.0}),
        Record("train", 2, "a", {"train/tokens_per_second": 70.0}),
        Record("nonfinite", 3, "a", {"train/tokens_per_second": 1.0}),
        Record("eval", 3, "a"),  # of an earlier version
    ]
    recorder.resume_from(told, 100.0)
    assert (recorder.last_speed, recorder.peak_memory_gb) == (70.0, 9.0)
    assert [record.step for record in recorder.evaluations] == [1, 3]
    recorder.emit(Record("eval", 4, "a", {PEAK_MEMORY: 2.0}))
    assert recorder.peak_memory_gb == 9.0
    assert recorder.seconds >= 100.0


def test_a_resumed_run_ends_with_the_peak_and_the_hours_of_all_its_processes(
    tiny_run: MakeRun,
) -> None:
    first, first_notes = trainer(tiny_run())
    first.evaluator.evaluate(["fruit", "tools"])
    for _ in range(7):
        first_notes.see(first.train_step())
        if first.state.progress.step == 6:
            first.evaluator.evaluate(["fruit", "tools"])
            first.evaluator.remember_reference()
    assert all(record.metrics[PEAK_MEMORY] > 0 for record in first_notes.records if record.kind == "eval")

    second, notes = trainer(tiny_run())
    second.state.restore(first.state.to_checkpoint({}))
    told = [replace(r, metrics={**r.metrics, PEAK_MEMORY: 1000.0}) for r in first_notes.records if r.kind == "eval"]
    second.recorder.resume_from(told, 3600.0)
    second.run()
    end = next(record.metrics for record in notes.records if record.kind == "end")
    last = [record.metrics["train/tokens_per_second"] for record in notes.records if record.kind == "train"][-1]
    assert end["efficiency/tokens_per_second_last"] == last != end["efficiency/tokens_per_second"]
    assert end[PEAK_MEMORY] == 1000.0
    assert 1000.0 < end["efficiency/gb_hours"] < 1100.0

    cost = {name.removeprefix("efficiency/"): value for name, value in end.items()}
    progress, train = second.state.progress, second.config.train
    assert cost["tokens_per_second"] == progress.step * train.tokens_per_step / progress.train_seconds
    work_done = cost["tokens_per_second"] * cost["training_flops_per_token"]
    assert cost["utilisation"] == pytest.approx(work_done / cost["matmul_flops"])
    hours = cost["gb_hours"] / cost["peak_memory_gb"]
    assert cost["evaluation_share"] == pytest.approx(1 - progress.train_seconds / 3600 / hours)
