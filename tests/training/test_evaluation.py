"""Which scores are measured between steps, and of which tasks."""

from __future__ import annotations

import pytest

from tests.conftest import QUIET, MakeRun
from trc2.config import RunConfig
from trc2.runs.records import Record, current, read_all_records
from trc2.training.setup import start_run


def records(config: RunConfig) -> list[Record]:
    return current(read_all_records(start_run(config, QUIET) / "metrics.jsonl"))


def test_the_controller_probes_past_tasks_only(tiny_run: MakeRun) -> None:
    folders = {"a": "fruit", "b": "tools", "c": "fruit"}
    tasks = [{"name": name, "folder": folder, "steps": 4} for name, folder in folders.items()]
    told = records(tiny_run(stream={"tasks": tasks}, control={"every_steps": 3}))
    probed = {
        record.step: [name.split("/")[1] for name in record.metrics if name.startswith("control/")]
        for record in told
        if record.kind == "control"
    }
    assert probed == {6: ["a"], 9: ["a", "b"], 12: ["a", "b"]}  # at 12 the last task ends, and is still the current one


@pytest.mark.parametrize(("when", "steps"), [("boundaries", [0, 6, 12]), ("always", [0, 3, 6, 9, 12])])
def test_text_is_scored_when_it_is_asked_for(tiny_run: MakeRun, when: str, steps: list[int]) -> None:
    config = tiny_run()
    told = records(config.replace(eval={**config.eval.model_dump(), "text_metrics_at": when}))
    scored = [record.step for record in told if record.kind == "eval" and "eval/fruit/bleu" in record.metrics]
    assert scored == steps
    areas = [record.step for record in told if record.kind == "eval" and "cl/bleu/aufc" in record.metrics]
    assert areas == [step for step in steps if step > 6]
