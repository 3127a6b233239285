"""Scores of lm-evaluation-harness tasks, which are not part of the stream, and their forgetting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from trc2.metrics.paired import Interval, paired_fall

ROOT = "lm_eval"


@dataclass(frozen=True)
class Score:
    """One metric of a task: its mean, its standard error, and the score of each document if known."""

    task: str
    metric: str
    value: float
    error: float
    is_higher_better: bool
    documents: dict[str, float] = field(default_factory=dict, repr=False)

    @property
    def path(self) -> str:
        return f"{ROOT}/{self.task}/{self.metric}"


def with_forgetting(score: Score, earlier: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The value, and how far it is behind the best value among `earlier` metrics: positive is forgetting."""
    values = [metrics[score.path] for metrics in earlier if score.path in metrics]
    metrics = {score.path: score.value}
    if values:
        lost = np.max(values) - score.value if score.is_higher_better else score.value - np.min(values)
        metrics[f"cl/{score.path}/forgetting"] = float(lost)
    return metrics


def falls(
    before: Sequence[Score], after: Sequence[Score], rng: np.random.Generator
) -> Iterator[tuple[Score, Interval]]:
    """For each metric with scores of documents: by how much it became worse, in its own unit."""
    new = {score.path: score for score in after}
    for score in before:
        if not score.documents:
            continue
        later = new[score.path].documents
        pairs = np.array([(value, later[document]) for document, value in score.documents.items()])
        sign = 1.0 if score.is_higher_better else -1.0
        yield score, paired_fall(sign * pairs[:, 0], sign * pairs[:, 1], rng)
