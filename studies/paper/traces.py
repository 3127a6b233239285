"""Numbers from the training log of one run: writes, surprise, auxiliary losses, the replay controller."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Sequence

from studies.paper import numbers
from studies.paper.roles import mean
from trc2.config import TRC2Config
from trc2.metrics.forgetting import TaskSpan
from trc2.report.run import Run

WINDOW = 0.2  # share of a task's logged steps that counts as its beginning, and as its end
FIRST, LAST = 5, 20  # logged steps after and before a switch of tasks
CLIPPED_SHARE = 0.95
Trace = Callable[[Run], float | None]
Points = list[tuple[int, float]]


def points(run: Run, path: str, kind: str = "train") -> Points:
    return list(zip(*run.series(kind, path), strict=True))


def within(series: Points, span: TaskSpan) -> list[float]:
    """The values that were logged while a task was trained. Logs count steps from 1."""
    return [value for step, value in series if span.start < step <= span.end]


def early(values: Sequence[float]) -> list[float]:
    return list(values[: max(1, round(WINDOW * len(values)))])


def late(values: Sequence[float]) -> list[float]:
    return list(values[-max(1, round(WINDOW * len(values))) :])


def settled(run: Run) -> int:
    """The end of the start-up: three time constants of the threshold's average, and the warm-up."""
    model, stream = run.config.model, run.config.stream
    assert isinstance(model, TRC2Config)
    assert stream is not None
    warmup = run.config.train.warmup_of(sum(task.steps for task in stream.trained))
    return max(warmup, round(3 / max(1e-9, 1 - model.write_threshold_decay)))


def after_start(run: Run, name: str) -> list[float]:
    return [value for step, value in points(run, f"hippocampus/{name}") if step > settled(run)]


# ----------------------------------------------------------------------------------------------------------- writes


def share_of(name: str, is_so: Callable[[float], bool]) -> Trace:
    """The share of logged steps after the start-up at which a signal of the hippocampus is so."""

    def of(run: Run) -> float | None:
        values = after_start(run, name)
        return mean([float(is_so(value)) for value in values]) if values else None

    return of


def in_band(value: float) -> bool:
    low, high = numbers.KEEP_BAND
    return low <= value <= high


def clipped_share(run: Run) -> float | None:
    """The share of logged steps at which the largest surprise is at its clip."""
    model = run.config.model
    assert isinstance(model, TRC2Config)
    return share_of("surprise_max", lambda value: value >= model.td_clip)(run)


def is_saturated(run: Run) -> bool:
    """Whether nearly every candidate is written because nearly every surprise is at the clip.

    A threshold cannot choose among equal values. It is then the running average of a constant and shows only its own
    start-up, equal in every run.
    """
    kept = share_of("keep_fraction", lambda value: value >= 1)(run)
    at_clip = clipped_share(run)
    return kept is not None and at_clip is not None and min(kept, at_clip) > CLIPPED_SHARE


def jump(name: str, switch: int | None = None) -> Trace:
    """Mean over the first logged steps of a task minus mean over the last of the task before.

    The mean over all switches, or one of them. A threshold still in its start-up is left out.
    """

    def of(run: Run) -> float | None:
        series = points(run, f"hippocampus/{name}")
        found = []
        for old, new in itertools.pairwise(run.spans):
            before, after = within(series, old), within(series, new)
            is_starting = name == "threshold" and old.end < settled(run)
            if before and after and not is_starting:
                found.append(mean(after[:FIRST]) - mean(before[-LAST:]))
        if switch is not None:
            return found[switch] if len(found) > 1 else None
        return mean(found) if found else None

    return of


def change_within(name: str) -> Trace:
    """The end of a task minus its beginning, mean over the tasks after the first."""

    def of(run: Run) -> float | None:
        series = points(run, f"hippocampus/{name}")
        since = settled(run) if name == "threshold" else 0
        parts = [within(series, span) for span in run.spans[1:] if span.start >= since]
        known = [mean(late(values)) - mean(early(values)) for values in parts if values]
        return mean(known) if known else None

    return of


# ----------------------------------------------------------------------------------------------------------- losses


def decades(task: str | None = None) -> Trace:
    """By how many powers of ten the critic's loss falls from a task's beginning to its end. Mean of all by default."""

    def of(run: Run) -> float | None:
        series = points(run, "train/loss_td")
        parts = [within(series, s) for s in run.spans if task is None or s.task == task]
        known = [_decades(mean(early(values)), mean(late(values))) for values in parts if values]
        return mean(known) if known else None

    return of


def _decades(first: float, last: float) -> float:
    return math.log10(first / last) if first > 0 and last > 0 else math.nan


def replay_loss(*, is_later: bool) -> Trace:
    """Mean replay loss after the first task, or in the first fifth of the first task."""

    def of(run: Run) -> float | None:
        series = [(step, value) for step, value in points(run, "train/loss_replay") if value > 0]
        first = within(series, run.spans[0])
        rest = [value for step, value in series if step > run.spans[0].end]
        return (mean(rest) if is_later else mean(early(first))) if first and rest else None

    return of


def drift(path: str) -> Trace:
    """The end of the last task minus the end of the first, relative to the mean over the run."""

    def of(run: Run) -> float | None:
        series = points(run, path)
        first, last = (within(series, span) for span in (run.spans[0], run.spans[-1]))
        whole = mean([value for _, value in series])
        return (mean(late(last)) - mean(late(first))) / whole if first and last and whole else None

    return of


def largest_router_loss(run: Run) -> float | None:
    """The largest load-balance loss over its balanced value λ_lb · L."""
    model = run.config.model
    assert isinstance(model, TRC2Config)
    values, balanced = run.series("train", "train/loss_load_balance")[1], model.lambda_load_balance * model.num_columns
    if not values or balanced == 0:
        return None
    return math.nan if any(map(math.isnan, values)) else max(values) / balanced


# ----------------------------------------------------------------------------------------------------------- controller


def controller_correlation(run: Run) -> float | None:
    """Correlation of measured forgetting and replay coefficient over the calls of the controller."""
    gaps, strengths = (dict(points(run, path, "control")) for path in ("replay/forgetting", "replay/coefficient"))
    steps = sorted(gaps.keys() & strengths.keys())
    if len(steps) < 3 or len({strengths[s] for s in steps}) < 2 or len({gaps[s] for s in steps}) < 2:
        return None
    return statistics.correlation([gaps[s] for s in steps], [strengths[s] for s in steps])


def steered_strength(run: Run) -> float | None:
    """The mean replay coefficient after the first task."""
    values = [value for step, value in points(run, "replay/coefficient") if step > run.spans[0].end]
    return mean(values) if values else None


# ----------------------------------------------------------------------------------------------------------- memory


def memory_reach(run: Run) -> float | None:
    """How many steps back memory can be read: slots that retrieval searches ÷ writes per step."""
    writes, slots = points(run, "hippocampus/writes"), run.config.model.read_slots
    if not writes or not slots:
        return None
    later = [value for step, value in writes if step > settled(run)] or [value for _, value in writes]
    return slots / mean(later) if mean(later) > 0 else math.inf
