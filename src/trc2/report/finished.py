"""A run read back from its folder, and whether runs may be compared."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from trc2.config import RunConfig
from trc2.errors import UserError
from trc2.files import reading
from trc2.metrics.forgetting import METRICS, Metric, ScoreTable, Stretch, is_divided, metrics_of, summarise
from trc2.runs.budget import budget_of, equal_budgets
from trc2.runs.folder import RunFolder
from trc2.runs.plan import Plan
from trc2.runs.records import Record, score_tables


@dataclass(frozen=True)
class FinishedRun:
    """Everything a report needs, recomputed from the diary."""

    name: str
    folder: Path
    config: RunConfig
    data: dict[str, Any]
    records: list[Record]
    stretches: tuple[Stretch, ...]
    tables: dict[str, ScoreTable]

    @property
    def tasks(self) -> list[str]:
        """Every task of the stream, trained or only measured."""
        assert self.config.stream is not None
        return [task.name for task in self.config.stream.tasks]

    @cached_property
    def as_trained(self) -> RunConfig:
        """Its settings with the share that was replayed on average, where a controller steered it."""
        shares = self.series("train", "replay/share")[1]
        if self.config.model.replay_share is None or not shares:
            return self.config
        return self.config.replace(model=self.config.model.replace(replay_share=sum(shares) / len(shares)))

    @property
    def is_finished(self) -> bool:
        return any(record.kind == "end" for record in self.records)

    @property
    def last_step(self) -> int:
        return max((record.step for record in self.records), default=0)

    def summary(self, metric: str = "perplexity", step: int | None = None) -> dict[str, float]:
        """Forgetting, transfer and areas at a step, the last by default."""
        if metric not in self.tables:
            return {}
        table = self.tables[metric]
        return summarise(table, table.steps[-1] if step is None else step)

    def score(self, metric: str, task: str, step: int) -> float:
        """NaN if it was not measured then."""
        return self.tables[metric].scores.get(step, {}).get(task, math.nan)

    def series(self, kind: str, name: str) -> tuple[list[int], list[float]]:
        """(steps, values) of one metric path over the records of a kind."""
        points = [(r.step, r.metrics[name]) for r in self.records if r.kind == kind and name in r.metrics]
        return [step for step, _ in points], [value for _, value in points]

    def final(self, kind: str) -> dict[str, float]:
        """Metrics of the last record of a kind."""
        found = [record.metrics for record in self.records if record.kind == kind]
        return found[-1] if found else {}


def read_run(folder: Path) -> FinishedRun:
    """Read a run folder; a missing or torn part is told in a sentence."""
    files = RunFolder(folder)
    config = files.config()
    if config.stream is None:
        raise UserError(f"{folder} is the folder of a recipe without a stream: there is nothing to report.")
    for file, is_there in ((files.diary_file, files.has_diary), (files.data_file, files.data_file.exists())):
        if not is_there:
            raise UserError(f"{folder} is not a whole run folder: {file.name} is missing.")
    records, data = files.records(), files.data()
    stretches = Plan.of_run(config).stretches
    name = folder.resolve().name or "run"
    tables = score_tables(records, stretches, metrics_of(config.eval.metrics))
    run = FinishedRun(name, folder, config, data, records, stretches, tables)
    _check_data(run)
    if "perplexity" not in run.tables:
        raise UserError(
            f"{folder} has not been evaluated yet, so there is nothing to report: let it reach its first evaluation, "
            f"or go on with `trc2 resume {folder}`."
        )
    return run


WHOLE_GAIN = "share of the gain"


def gap_unit(runs: Iterable[FinishedRun], metric: str) -> str:
    """What forgetting is measured in: nats, shares of what a task gained, or the score's own unit where it gained none.

    With tied embeddings an untrained network repeats its input, which has an excellent BLEU: then nothing is gained.
    """
    tables = [run.tables[metric] for run in runs if metric in run.tables]
    if any(table.metric.is_log for table in tables):
        return "nats"
    past = [(table, stretch) for table in tables for stretch in table.stretches[:-1]]
    divided = [is_divided(table, stretch) for table, stretch in past]
    if divided and all(divided):
        return WHOLE_GAIN
    return "share of the gain, else raw" if any(divided) else "raw"


def scores_in(runs: Iterable[FinishedRun]) -> dict[str, Metric]:
    """Every score that some run has, ours in their usual order, then those of plug-ins."""
    found = {name: table.metric for run in runs for name, table in run.tables.items()}
    return {name: found[name] for name in [*METRICS, *found] if name in found}


def _check_data(run: FinishedRun) -> None:
    """data.json must describe the tasks of config.yaml."""
    with reading(RunFolder(run.folder).data_file):
        for task in run.tasks:
            split = run.data["tasks"][task]["splits"]["train"]
            if not all(isinstance(split[name], int) for name in ("tokens", "documents")):
                raise TypeError(f"it does not say how much text {task} has")
        for shared in dict(run.data.get("overlap") or {}).values():
            if not all(isinstance(overlap, float | int) for overlap in dict(shared).values()):
                raise TypeError("its overlaps are no numbers")


def declares_length(run: FinishedRun) -> bool:
    """Whether a run says by its settings why it has another length: a bound, or a budget in tokens or FLOPs."""
    stream = run.config.stream
    assert stream is not None
    return run.config.budget.match != "steps" or stream.mode == "joint" or stream.only is not None


def check_comparable(runs: list[FinishedRun]) -> None:
    """Refuse to compare runs that are unfinished, on other data, or of unequal length or order without saying so.

    Runs that say so are bounds (joint, or of some tasks only) and those whose budget is tokens or FLOPs.
    """
    for run in runs:
        if not run.is_finished:
            total = run.stretches[-1].end
            raise UserError(
                f"{run.folder} stopped at step {run.last_step} of {total}: finish it with `trc2 resume {run.folder}` "
                "before comparing."
            )
    first = runs[0]
    for run in runs[1:]:
        if run.stretches != first.stretches and not (declares_length(run) or declares_length(first)):
            raise UserError(
                f"{run.folder} and {first.folder} trained other tasks or other numbers of steps: not comparable."
            )
        if run.data["fingerprint"] != first.data["fingerprint"]:
            raise UserError(f"{run.folder} and {first.folder} were trained on different data: not comparable.")
    check_equal_work(runs)


def check_equal_work(runs: list[FinishedRun]) -> None:
    """Refuse runs among which there is none that does the work of each, whatever their order.

    2,048 new tokens a step belong with 2,304 where there is, say, one that replays 256 on top of 2,048. From run to
    run without one in the middle of all, 5 % and 5 % would soon be anything.
    """
    budgets = [budget_of(run.as_trained) for run in runs]
    unequal = [
        [run for run, other in zip(runs, budgets, strict=True) if not equal_budgets(budget, other)]
        for budget in budgets
    ]  # fmt: skip
    odd, middle = min(zip(unequal, runs, strict=True), key=lambda found: len(found[0]))
    if odd:
        ours, theirs = (run.config.train.tokens_per_step for run in (odd[0], middle))
        raise UserError(
            f"{odd[0].folder} has {ours} new tokens a step, {middle.folder} {theirs}, and replay does not make up for "
            "it: report them apart."
        )
