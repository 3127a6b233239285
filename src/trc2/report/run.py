"""One run, read back from its folder, and the numbers that tables, figures and tests read from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from trc2.config import RunConfig
from trc2.errors import UserError
from trc2.metrics.forgetting import METRICS, PERPLEXITY, Metric, ScoreTable, TaskSpan, metrics_of, summarise
from trc2.metrics.learning import unlearned
from trc2.runs.folder import RunFolder
from trc2.runs.lineage import Lineage
from trc2.runs.records import Record, score_tables
from trc2.system.files import reading


@dataclass(frozen=True)
class Run:
    """Settings, data and metrics log of a run, and its scores by metric."""

    name: str
    folder: Path
    config: RunConfig
    data: dict[str, Any]
    records: list[Record]
    spans: tuple[TaskSpan, ...]
    tables: dict[str, ScoreTable]

    @property
    def tasks(self) -> list[str]:
        """Every task of the stream, trained or only measured."""
        assert self.config.stream is not None
        return [task.name for task in self.config.stream.tasks]

    @property
    def order(self) -> tuple[str, ...]:
        """The trained tasks, in the order of training."""
        assert self.config.stream is not None
        return tuple(task.name for task in self.config.stream.trained)

    @cached_property
    def perplexity(self) -> ScoreTable:
        """The perplexities. An empty table if none were measured."""
        return self.tables.get("perplexity") or ScoreTable(PERPLEXITY, self.spans, {})

    @cached_property
    def as_trained(self) -> RunConfig:
        """The settings, with the mean of the replayed shares where a controller changed the share."""
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

    @property
    def end(self) -> int:
        """The step at which the whole run ends."""
        return self.spans[-1].end

    @cached_property
    def unlearned(self) -> list[str]:
        """The tasks that the run trained without learning them, see `metrics/learning.py`."""
        return unlearned(self.perplexity) if self.perplexity.steps else []

    def summary(self, metric: str = "perplexity", step: int | None = None) -> dict[str, float]:
        """Forgetting, transfer and areas at a step, by default the last."""
        table = self.tables.get(metric)
        if table is None or not table.steps:
            return {}
        return summarise(table, table.steps[-1] if step is None else step)

    def score(self, metric: str, task: str, step: int) -> float | None:
        """None if it was not measured at this step."""
        table = self.tables.get(metric)
        return None if table is None else table.scores.get(step, {}).get(task)

    def task_scores(self, metric: str = "perplexity") -> dict[str, list[float | None]]:
        """By task: the score before training, right after its own training, and at the newest evaluation."""
        ends = {span.task: span.end for span in reversed(self.spans)}
        last = max(self.tables[metric].steps, default=0)
        return {task: [self.score(metric, task, step) for step in (0, ends.get(task, -1), last)] for task in self.tasks}

    def series(self, kind: str, path: str) -> tuple[list[int], list[float]]:
        """(steps, values) of one metric path over the records of a kind."""
        points = [(r.step, r.metrics[path]) for r in self.records if r.kind == kind and path in r.metrics]
        return [step for step, _ in points], [value for _, value in points]

    def final(self, kind: str) -> dict[str, float]:
        """Metrics of the last record of a kind."""
        return next((record.metrics for record in reversed(self.records) if record.kind == kind), {})


def read_run(folder: Path) -> Run:
    """Read a run folder. A UserError names a part that is missing or damaged."""
    files = RunFolder(folder)
    config = files.config()
    if config.stream is None:
        raise UserError(f"{folder} is the folder of a recipe without a stream: there is nothing to report.")
    for file, exists in ((files.metrics_file, files.has_metrics), (files.data_file, files.data_file.exists())):
        if not exists:
            raise UserError(f"{folder} is not a whole run folder: {file.name} is missing.")
    records, data = files.records(), files.data()
    spans = files.schedule(config).spans
    name = folder.resolve().name or "run"
    tables = score_tables(records, spans, metrics_of(config.eval.metrics))
    run = Run(name, folder, config, data, records, spans, tables)
    _check_data(run)
    if not run.perplexity.steps:
        raise UserError(
            f"{folder} has not been evaluated yet, so there is nothing to report: let it reach its first evaluation, "
            f"or go on with `trc2 resume {folder}`."
        )
    return run


def _check_data(run: Run) -> None:
    """data.json must describe the tasks of config.yaml."""
    with reading(RunFolder(run.folder).data_file):
        for task in run.tasks:
            split = run.data["tasks"][task]["splits"]["train"]
            if not all(isinstance(split[name], int) for name in ("tokens", "documents")):
                raise TypeError(f"it does not say how much text {task} has")
        for shared in (run.data.get("overlap") or {}).values():
            if not all(isinstance(overlap, float | int) for overlap in shared.values()):
                raise TypeError("its overlaps are not numbers")


def own_part(run: Run, lineage: Lineage) -> Run:
    """The steps that a continued run trained itself, counted from its parent's end, which becomes step 0.

    Tasks of the parent count as learned at step 0, so forgetting is measured against the parent.
    """
    first = lineage.first_step
    trained = {span.task for span in run.spans}
    old = [task for task in run.tasks if task not in lineage.tasks]
    # A parent run did not learn tasks that it only measured. If the log starts with the child, all count as learned.
    spans = [TaskSpan(task, 0, 0) for task in old if task in trained or first == 0]
    spans += [TaskSpan(s.task, s.start - first, s.end - first) for s in run.spans if s.task in lineage.tasks]
    tables = {
        name: ScoreTable(
            table.metric,
            tuple(spans),
            {step - first: row for step, row in table.scores.items() if step >= first},
        )
        for name, table in run.tables.items()
    }
    records = [
        replace(record, step=record.step - first)
        for record in run.records
        if record.step > first or (record.step == first and record.kind not in ("train", "nonfinite"))
    ]
    kept = {name: table for name, table in tables.items() if table.scores}
    return replace(run, records=records, spans=tuple(spans), tables=kept)


def scores_in(runs: Iterable[Run]) -> dict[str, Metric]:
    """Every score that at least one run has: ours in their usual order, then those of plug-ins."""
    metrics = {name: table.metric for run in runs for name, table in run.tables.items()}
    return {name: metrics[name] for name in [*METRICS, *metrics] if name in metrics}


# ------------------------------------------------------------------------------------------------------ measures
# A measure gives None where a run does not have the number, and NaN where the run is broken: a missing number is left
# out of a mean, a broken one makes the mean NaN.


@dataclass(frozen=True)
class Measure:
    """One number of a run."""

    name: str
    title: str
    of: Callable[[Run], float | None]
    better: Literal["lower", "higher"] = "lower"
    unit: str = ""
    is_log: bool = False  # intervals are computed on the log scale: perplexities, speeds and costs are never negative
    is_ranked: bool = True  # tables set the best value in bold
    is_forgetting: bool = False  # it has no meaning for a run that did not learn its tasks
    factor: float = 1.0  # what a table multiplies it by, e.g. 100 for percent

    @property
    def label(self) -> str:
        return f"{self.title} ({self.unit})" if self.unit else self.title


def _log(value: float | None) -> float:
    return math.log(value) if value is not None and value > 0 else math.nan


def own_score(task: str, metric: str = "perplexity") -> Callable[[Run], float | None]:
    """The score of a task right after its own training. None if the run did not train it."""

    def of(run: Run) -> float | None:
        ends = [span.end for span in run.spans if span.task == task]
        return run.score(metric, task, ends[-1]) if ends else None

    return of


def final_score(task: str, metric: str = "perplexity") -> Callable[[Run], float | None]:
    """The score of a task after the last step of the run."""
    return lambda run: run.score(metric, task, run.end)


def final_loss(tasks: Sequence[str]) -> Measure:
    """Mean log-perplexity of the tasks after the last step: low only if old tasks were kept and new ones learned."""

    def of(run: Run) -> float:
        return sum(_log(run.score("perplexity", task, run.end)) for task in tasks) / len(tasks)

    return Measure("final_loss", "final loss, mean log-perplexity of all tasks", of, unit="nats")


def checkpoints(run: Run) -> list[int]:
    """The steps at which areas are tabulated: the last boundary before the final task, if any task is past then, and
    the end."""
    return sorted({span.end for span in run.spans})[1:][-2:]


def area_at(metric: str = "perplexity", checkpoint: int = -1) -> Callable[[Run], float | None]:
    """Forgetting (AUFC) at one of the run's checkpoints, counted from the end."""

    def of(run: Run) -> float | None:
        steps = checkpoints(run)
        return run.summary(metric, steps[checkpoint]).get(f"cl/{metric}/aufc") if len(steps) >= -checkpoint else None

    return of


def summary_value(name: str, metric: str = "perplexity") -> Callable[[Run], float | None]:
    """A number of `Run.summary` at the last evaluation: forgetting, aufc, aufc_task, bwt or fwt."""
    return lambda run: run.summary(metric).get(f"cl/{metric}/{name}")


def cost(name: str) -> Callable[[Run], float | None]:
    """A number that the run measured about itself at its end, e.g. tokens_per_second."""
    return lambda run: run.final("end").get(f"efficiency/{name}")


def trained_tokens(run: Run) -> float:
    """New tokens that the run was trained on, without replay."""
    return float(run.config.train.tokens_per_step * run.last_step)


def training_flops(run: Run) -> float | None:
    """FLOPs of matrix products in training, as the run counted them."""
    per_token = run.final("end").get("efficiency/training_flops_per_token")
    return None if per_token is None else per_token * trained_tokens(run)


def training_seconds(run: Run) -> float | None:
    """Seconds from the first step to the end, evaluation included."""
    return next((record.seconds for record in reversed(run.records) if record.kind == "end"), None)


def learning(task: str) -> Callable[[Run], float | None]:
    """The loss of a task right after its own training, in nats."""
    score = own_score(task)

    def of(run: Run) -> float | None:
        value = score(run)
        return None if value is None else _log(value)

    return of


def own_loss(run: Run) -> float | None:
    """Mean over the trained tasks of the loss right after their own training: how well they were learned."""
    values = [learning(task)(run) for task in run.order]
    logs = [value for value in values if value is not None]
    return sum(logs) / len(logs) if logs else None


AUFC = Measure("aufc", "forgetting (AUFC)", summary_value("aufc"), unit="nats", is_forgetting=True)
FORGETTING = Measure(
    "forgetting", "forgetting at the end", summary_value("forgetting"), unit="nats", is_forgetting=True
)
BACKWARD = Measure("bwt", "backward transfer", summary_value("bwt"), "higher", "nats", is_forgetting=True)
OWN_LOSS = Measure("own_loss", "loss right after its own training, mean of all tasks", own_loss, unit="nats")
SPEED = Measure(
    "tokens_per_second", "training speed", cost("tokens_per_second"), better="higher", unit="tokens/s", is_log=True
)
MEMORY_HOURS = Measure("gb_hours", "peak memory × time", cost("gb_hours"), unit="GB·h", is_log=True)
FLOPS = Measure("flops", "training FLOPs", training_flops, unit="FLOP", is_log=True)
