"""The run's diary: append-only JSON lines, and tables read back from them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from trc2.errors import UserError
from trc2.metrics.forgetting import METRICS, Metric, ScoreTable, Stretch

SCHEMA = 1
Kind = Literal["train", "eval", "control", "boundary", "test", "resume", "nonfinite", "end"]


@dataclass(frozen=True)
class Record:
    """Something that happened at an optimizer step. `metrics` are numbers by path, e.g. `eval/c4/perplexity`."""

    kind: Kind
    step: int
    task: str
    metrics: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    def to_json(self) -> str:
        numbers = {name: value if math.isfinite(value) else str(value) for name, value in self.metrics.items()}
        content = {"schema": SCHEMA, "kind": self.kind, "step": self.step, "task": self.task}
        return json.dumps({**content, "seconds": round(self.seconds, 3), "metrics": numbers})


def parse(line: str) -> Record:
    content: dict[str, Any] = json.loads(line)
    if content["schema"] > SCHEMA:
        raise UserError(f"A record has schema {content['schema']}, this version reads up to {SCHEMA}: update trc2.")
    metrics = {name: float(value) for name, value in content["metrics"].items()}
    return Record(content["kind"], content["step"], content["task"], metrics, content["seconds"])


def read_records(path: Path) -> list[Record]:
    """All records that count: those a later `resume` record superseded are dropped, and so is a torn last line.

    A resumed run ends anew, so an earlier end and its test scores are superseded whatever their step.
    """
    records: list[Record] = []
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            record = parse(line)
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, UserError):
                raise
            if number == len(lines):
                break  # the process died while writing it
            raise UserError(f"{path}:{number} is not a record: restore the file from a copy.") from None
        if record.kind == "resume":
            records = [r for r in records if r.step <= record.step and r.kind not in ("test", "end")]
        records.append(record)
    return records


def score_table(records: Iterable[Record], metric: Metric, stretches: tuple[Stretch, ...]) -> ScoreTable:
    """score[step, task] of one metric from the evaluation records."""
    scores: dict[int, dict[str, float]] = {}
    for record in records:
        if record.kind != "eval":
            continue
        for name, value in record.metrics.items():
            parts = name.split("/")
            if len(parts) == 3 and parts[0] == "eval" and parts[2] == metric.name:
                scores.setdefault(record.step, {})[parts[1]] = value
    return ScoreTable(metric, stretches, scores)


def score_tables(records: Iterable[Record], stretches: tuple[Stretch, ...]) -> dict[str, ScoreTable]:
    records = list(records)
    tables = {name: score_table(records, metric, stretches) for name, metric in METRICS.items()}
    return {name: table for name, table in tables.items() if any(table.scores.values())}
