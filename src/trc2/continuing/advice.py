"""Advice after a child stopped early or was refused, computed from the scores that its own training recorded."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

from trc2.continuing.acceptance import Verdict
from trc2.runs.folder import RunFolder
from trc2.runs.stopping import Stop, rises_since

MAX_SHARE = 0.4
PERPLEXITY = "perplexity"


def stop_sentence(stop: Stop, first_step: int) -> str:
    """Where and why a run stopped, in its own steps."""
    end, passed_at = stop.step - first_step, stop.passed_at - first_step
    ending = f"it ends with step {end}" if stop.is_within else "no earlier evaluation was within, so it ends there"
    return f"Training stopped: at step {passed_at} --stop-at {stop.limit:.1%} was passed ({stop.reason}); {ending}."


def advice(child: Path, verdict: Verdict) -> list[str]:
    """What to change in the next attempt. Empty if the child ran to its end and was accepted."""
    folder = RunFolder(child)
    lineage = folder.lineage()
    stop = verdict.stop
    if lineage is None or (verdict.passed and stop is None):
        return []
    unsure = [task for task in verdict.tasks if not task.passed and task.rise.value <= (task.limit or 0.0)]
    above = [task for task in verdict.tasks if not task.passed and task not in unsure]
    sentences = []
    for task in unsure:
        reach, room = task.rise.high - task.rise.value, (task.limit or 0.0) - task.rise.value
        if math.isfinite(reach) and room > 0:
            wanted = math.ceil(task.documents * (reach / room) ** 2)
            sentences.append(
                f"The estimate for {task.task} is within the limit and its interval is not: about {wanted:,} held-out "
                f"documents instead of {task.documents} would decide."
            )
    if not above and stop is None:
        return sentences
    limit = stop.limit if stop is not None else min(task.limit or 0.0 for task in above)
    curve = _worst_rises(folder, lineage.watched, lineage.first_step)
    rises = [*(rise for _, rise in curve), *(task.rise.value for task in above if task.measure == PERPLEXITY)]
    worst = max(rises, default=math.nan)  # tasks of the lm-evaluation-harness have no perplexity
    if not (math.isfinite(worst) and worst > 0):
        return sentences
    return [*sentences, *_remedies(folder, curve, limit, worst)]


def _remedies(folder: RunFolder, curve: list[tuple[int, float]], limit: float, worst: float) -> Iterable[str]:
    """Fewer steps, a smaller learning rate, a larger share, each with its number."""
    config = folder.config()
    passed = next(((step, rise) for step, rise in curve if rise > limit), None)
    if passed is not None:
        before = max(((step, rise) for step, rise in curve if step < passed[0]), default=(0, 0.0))
        slope = (passed[1] - before[1]) / (passed[0] - before[0])
        steps = int(before[0] + max(0.0, limit - before[1]) / slope) if slope > 0 else before[0]
        yield (
            f"Fewer steps: between steps {before[0]} and {passed[0]} the worst task rose by {100 * slope:.2g} % a step "
            f"and reached the limit of {limit:.1%} after about {steps}" + (f": --steps {steps}." if steps else ".")
        )
    rate = config.train.learning_rate
    factor = math.log1p(limit) / math.log1p(worst)
    if 0 < factor < 1:
        yield (
            f"Smaller rate: at train.learning_rate={rate:g} the worst task rose by {worst:.1%}. If the rise is in "
            f"proportion to the rate, train.learning_rate={rate * factor:.2g} stays at the limit."
        )
    share, lineage = config.model.replay_share if config.model.replay else None, folder.lineage()
    assert config.stream is not None
    is_filled = bool(config.stream.replay_prefill_files or config.stream.replay_prefill_tasks)
    has_old_text = is_filled or (lineage is not None and lineage.is_run)
    if share is not None and has_old_text and share < MAX_SHARE:
        larger = min(MAX_SHARE, max(2 * share, 0.05))
        yield (
            f"Larger share: {share:.0%} replay was not enough. Try --replay-share {larger:.2g}, or find the smallest "
            "sufficient one by --try-shares."
        )


def _worst_rises(folder: RunFolder, tasks: Iterable[str], first_step: int) -> list[tuple[int, float]]:
    """(own step, largest rise) at every evaluation of the run, also at those after the step it went back to."""
    records = [record for record in folder.all_records() if record.kind == "eval"]
    rises = rises_since(records, first_step, tasks)
    return sorted((step - first_step, max(by_task.values())) for step, by_task in rises.items())
