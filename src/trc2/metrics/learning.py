"""Whether a run learned its tasks: a task that was not learned cannot show forgetting, so it must not count as kept.

Own gain: how much log-perplexity fell over the task's own training. Whole gain: since before any training, so that
transfer and replay count. A task is learned if

    both gains ≥ 0.3 nats     or     whole gain ≥ 0.9 × the smallest of the run's other tasks of which the first is true

The second half is for a task that was known before its training, for example because it resembles an earlier one.

Worked example, perplexities of an adapter on a frozen model:

    task        untrained   before   after      own    whole
    C4               4200     4200     549     2.03     2.03     learned
    WikiText         4180     1601    1511     0.06     1.02     not: 1.02 < 0.9 × 2.03
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from trc2.metrics.forgetting import PERPLEXITY, ScoreTable, TaskSpan

LEAST_GAIN = 0.3
KNOWN_SHARE = 0.9


@dataclass(frozen=True)
class Gain:
    """The gains of one task, in nats. NaN if a score is NaN."""

    own: float
    whole: float

    @property
    def is_large(self) -> bool:
        """Both gains count: a task that was ruined first and then repaired is not learned."""
        return min(self.own, self.whole) >= LEAST_GAIN


def gain_of(table: ScoreTable, span: TaskSpan) -> Gain | None:
    """The gains of a task. None unless it was measured just before and just after its own training."""
    if table.metric != PERPLEXITY:
        raise ValueError(f"gains are measured in nats of log-perplexity, not in {table.metric.name}")
    if not table.has(span.start, span.task) or not table.has(span.end, span.task):
        return None
    after = table.post(span)
    own = table.value(span.start, span.task) - after
    first = table.steps[0]
    return Gain(own, table.value(first, span.task) - after if table.has(first, span.task) else own)


def learned(table: ScoreTable, task: str) -> bool | None:
    """Whether a task was learned by the rule above. None if it was not measured. A score that is not finite fails."""
    gains = {span.task: gain for span in table.spans if (gain := gain_of(table, span)) is not None}
    if task not in gains:
        return None
    gain = gains.pop(task)
    yardsticks = [other.whole for other in gains.values() if other.is_large]
    is_known = bool(yardsticks) and gain.whole >= KNOWN_SHARE * min(yardsticks)
    return math.isfinite(gain.own) and (gain.is_large or is_known)


def unlearned(table: ScoreTable) -> list[str]:
    """Tasks that were trained but not learned, in the order of the stream."""
    return [span.task for span in table.spans if learned(table, span.task) is False]
