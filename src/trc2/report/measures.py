"""The numbers that tables, figures and tests read from a run, each defined once.

A measure gives None where a run does not have the number, and NaN where the run is broken: a missing number is left
out of a mean, a broken one makes the mean NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from trc2.report.run import Run


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
    """The score of a task right after its own training; None if the run did not train it."""

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
