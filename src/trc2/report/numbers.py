"""A run's results as JSON: the numbers of its summary, for programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trc2.report.finished import FinishedRun, read_run
from trc2.report.summary import Comparison
from trc2.runs.folder import RunFolder

SCHEMA = 1


def run_numbers(folder: Path) -> dict[str, Any]:
    """What `trc2 report RUN` says. `kept` and `forgetting` are of the newest evaluation; None was not measured.

    `parent` is from where the run goes on, and how that scored then.
    """
    run, ancestry = read_run(folder), RunFolder(folder).ancestry()
    numbers = {"schema": SCHEMA, **_of(run), "parent": None}
    if ancestry is not None:
        scores = run.tables["perplexity"].scores.get(ancestry.step, {})
        numbers["parent"] = {"folder": ancestry.parent, "step": ancestry.step, "perplexity": dict(scores)}
    return numbers


def comparison_numbers(comparison: Comparison) -> dict[str, Any]:
    """Runs of one stream, and the sentences that follow from their numbers."""
    return {"schema": SCHEMA, "runs": [_of(run) for run in comparison.runs], "reading": comparison.reading()}


def _of(run: FinishedRun) -> dict[str, Any]:
    table, tests = run.tables["perplexity"], run.final("test")

    def score(task: str, step: int | None) -> float | None:
        return table.scores[step][task] if step is not None and table.has(step, task) else None

    tasks = {}
    for task in run.tasks:
        stretch = next((stretch for stretch in run.stretches if stretch.task == task), None)
        prefix = f"test/{task}/"
        tasks[task] = {
            "steps": 0 if stretch is None else stretch.end - stretch.start,
            "before": score(task, 0),
            "learnt": score(task, None if stretch is None else stretch.end),
            "kept": score(task, table.steps[-1]),
            "test": {name.removeprefix(prefix): value for name, value in tests.items() if name.startswith(prefix)},
        }
    return {
        "run": run.name, "folder": str(run.folder), "finished": run.is_finished, "step": run.last_step,
        "steps": run.stretches[-1].end, "seed": run.config.train.seed, "perplexity": tasks,
        "forgetting": {metric: run.summary(metric) for metric in run.tables}, "cost": run.final("end"),
    }  # fmt: skip
