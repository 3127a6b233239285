"""Scores of other packages, on what our own text scores read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from trc2.config.metric import MetricConfig, plugged_metric
from trc2.errors import UserError
from trc2.plugins import find


def plugged_scores(
    metrics: Iterable[MetricConfig], texts: tuple[Sequence[str], Sequence[str]], tokens: tuple[Tensor, Tensor]
) -> dict[str, float]:
    """By name; `texts` and `tokens` are predictions and what they predict."""
    scores = {}
    for metric in metrics:
        plugin = find("metric", metric.name)
        score = plugged_metric(metric.name).score
        predictions, references = (list(part) for part in texts)
        try:
            if metric.reads == "text":
                found = score(predictions, references)
            else:
                found = score(*(part.clone() for part in tokens))  # what it does with them is its own affair
            scores[metric.name] = float(found)
        except UserError:
            raise
        except (Exception, SystemExit, GeneratorExit) as error:
            assert plugin is not None
            raise plugin.broken(f"{type(error).__name__}: {error}") from error
    return scores
