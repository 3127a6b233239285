"""How far a job is: the steps of its own run, and an estimate of its end."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trc2.runs.folder import RunFolder
from trc2.runs.records import Record, current, last_records


@dataclass(frozen=True)
class Progress:
    """`step` of `steps` is done. `finish` is when training will end, in seconds since 1970, None if not known yet."""

    step: int
    steps: int
    finish: int | None


def own_records(run: RunFolder) -> list[Record]:
    """The records that a run made itself, counted from its own beginning.

    The log of a run that goes on from another begins with the records of that one. The last scores of that one stay:
    they are where this run began.
    """
    records, first = run.records(), run.first_step
    if first == 0:
        return records
    begun = max((record.seconds for record in records if record.step <= first), default=0.0)
    before = [record for record in records if record.step == first and record.kind == "eval"][-1:]
    return [
        replace(record, step=record.step - first, seconds=max(0.0, record.seconds - begun))
        for record in [*before, *(record for record in records if record.step > first)]
    ]


def progress_of(run: RunFolder) -> Progress | None:
    """Progress by the end of the metrics log, so a long log costs no more than a short one. None before it begins."""
    first, total = run.first_step, run.schedule().total_steps
    done = [record for record in current(last_records(run.metrics_file)) if record.step > first]
    if not done:
        return Progress(0, total - first, None)
    steps = [record for record in done if record.kind == "train"]
    finish = None
    if len(steps) > 1 and steps[-1].step > steps[0].step:
        pace = (steps[-1].seconds - steps[0].seconds) / (steps[-1].step - steps[0].step)
        written = run.metrics_file.stat().st_mtime
        finish = round(written + max(0.0, pace) * (total - steps[-1].step))
    return Progress(done[-1].step - first, total - first, finish)
