"""Stopping in time: when past tasks have become too much worse, and where the run then ends."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from trc2.metrics.forgetting import PERPLEXITY
from trc2.runs.lineage import Lineage
from trc2.runs.records import Record, scores_by_task
from trc2.system.files import reading, to_json, write_atomically

SCHEMA = 1


@dataclass(frozen=True)
class Stop:
    """A run that ended at `step`, because at the evaluation of step `passed_at` a task was above the limit.

    `step` is the last evaluation within the limit. If there was none, it is `passed_at`, and the run has nothing good
    to offer.
    """

    limit: float
    step: int
    passed_at: int
    rises: dict[str, float]  # of every watched task's perplexity, at `passed_at`

    @property
    def is_within(self) -> bool:
        """Whether the run ends with weights that were within the limit."""
        return self.step < self.passed_at

    @property
    def reason(self) -> str:
        """The tasks that were above the limit, as text."""
        return ", ".join(f"{task} {rise:+.1%}" for task, rise in self.rises.items() if not rise <= self.limit)

    def record(self, task: str) -> Record:
        metrics = {"stop/limit": self.limit, "stop/passed_at": float(self.passed_at)}
        return Record(
            "stop", self.step, task, metrics | {f"stop/{name}/rise": rise for name, rise in self.rises.items()}
        )

    def write(self, path: Path) -> None:
        write_atomically(path, to_json({"schema": SCHEMA, **asdict(self)}, indent=2).encode())


def read_stop(path: Path) -> Stop:
    with reading(path):
        return stop_from(json.loads(path.read_text(encoding="utf-8")))


def stop_from(content: dict[str, object]) -> Stop:
    """From its JSON, in which numbers that are not finite are strings."""
    rises, step, passed_at = content["rises"], content["step"], content["passed_at"]
    if not isinstance(rises, dict) or type(step) is not int or type(passed_at) is not int or not 0 < step <= passed_at:
        raise TypeError("it does not say where the run stopped")
    return Stop(float(str(content["limit"])), step, passed_at, {str(name): float(r) for name, r in rises.items()})


@dataclass(frozen=True)
class StopRule:
    """A run stops when the perplexity of a watched task is above its value before the run by more than the limit.

    The decision depends only on recorded scores, so a resumed run decides in the same way.
    """

    limit: float
    tasks: tuple[str, ...]
    first_step: int

    @classmethod
    def of(cls, lineage: Lineage | None) -> StopRule | None:
        if lineage is None or lineage.stop_at is None:
            return None
        return cls(lineage.stop_at, lineage.watched, lineage.first_step)

    def is_within(self, rises: dict[str, float]) -> bool:
        """NaN is not within any limit."""
        return all(rise <= self.limit for rise in rises.values())

    def last_good(self, evaluations: Iterable[Record]) -> list[int]:
        """The steps of the run's own evaluations that were within the limit, newest first."""
        rises = rises_since(evaluations, self.first_step, self.tasks)
        return [step for step in sorted(rises, reverse=True) if self.is_within(rises[step])]


def rises_since(evaluations: Iterable[Record], first_step: int, tasks: Iterable[str]) -> dict[int, dict[str, float]]:
    """By step of an evaluation after `first_step`: the fraction by which each task's perplexity rose since then."""
    scores: dict[int, dict[str, float]] = {}
    for record in evaluations:
        scores.setdefault(record.step, {}).update(scores_by_task(record, PERPLEXITY))
    before = scores.get(first_step, {})
    known = [task for task in tasks if task in before]
    return {
        step: {task: row[task] / before[task] - 1.0 for task in known if task in row}
        for step, row in scores.items()
        if step > first_step and any(task in row for task in known)
    }
