"""A child run beside its parent: its own steps only, counted from where it took over."""

from __future__ import annotations

from dataclasses import replace

from trc2.metrics.forgetting import ScoreTable, Stretch
from trc2.report.finished import FinishedRun
from trc2.runs.ancestry import Ancestry


def own_part(run: FinishedRun, ancestry: Ancestry) -> FinishedRun:
    """The run as if it had begun with its parent's end, which is step 0.

    What the parent knew counts as learnt at 0: forgetting is then what was lost against the parent.
    """
    first = ancestry.step
    known = [task for task in run.tasks if task not in ancestry.tasks]
    old = {stretch.task: stretch for stretch in run.stretches}
    # A run's tasks that it never trained are no knowledge of its own; beside a saved model all that is named is.
    stretches = [Stretch(task, 0, 0) for task in known if task in old or not ancestry.is_run]
    stretches += [Stretch(s.task, s.start - first, s.end - first) for s in run.stretches if s.task in ancestry.tasks]
    tables = {name: _from(table, first, tuple(stretches)) for name, table in run.tables.items()}
    records = [
        replace(record, step=record.step - first)
        for record in run.records
        if record.step > first or (record.step == first and record.kind not in ("train", "nonfinite"))
    ]
    kept = {name: table for name, table in tables.items() if table.scores}
    return replace(run, records=records, stretches=tuple(stretches), tables=kept)


def _from(table: ScoreTable, first: int, stretches: tuple[Stretch, ...]) -> ScoreTable:
    scores = {step - first: row for step, row in table.scores.items() if step >= first}
    return ScoreTable(table.metric, stretches, scores)
