"""Claims about what happens inside a run of TRC²: writes, surprise, auxiliary losses, the replay controller."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from studies.paper import paper
from studies.paper.casting import Cast
from studies.paper.ledger import Better, Claim, Contrast, against, rule
from studies.paper.retention import needs_trc2
from trc2.config import TRC2Config
from trc2.metrics.forgetting import Stretch
from trc2.replay.controller import base_settings
from trc2.report.finished import FinishedRun

WINDOW = 0.2  # of a task's logged steps: what "at its beginning" and "at its end" mean
DRIFT = 0.05  # of the router loss over the run, relative to its mean: below this it does not drift upward
TRACES = "section E; Figure E.3"
LOSSES = "section E; Figure E.4"
Points = list[tuple[int, float]]


def dynamics_claims(cast: Cast) -> list[Claim]:
    return [
        _sparse(cast), _saturated(cast), _switches(cast), _relaxes(cast), _last_switch(cast), _critic_falls(cast),
        _critic_decades(cast), _replay_loss(cast), _loss_drift(cast), _router_range(cast), _router_drift(cast),
        _controller(cast),
    ]  # fmt: skip


def by_seed(cast: Cast, of: Callable[[FinishedRun], float | None]) -> dict[int, float]:
    """A number of each TRC² run in the listed order; runs that have none are left out."""
    runs = cast.runs(cast.trc2) if cast.trc2 is not None else []
    found = {run.config.train.seed: of(run) for run in runs}
    return {seed: value for seed, value in found.items() if value is not None}


def points(run: FinishedRun, name: str, kind: str = "train") -> Points:
    return list(zip(*run.series(kind, name), strict=True))


def within(series: Points, stretch: Stretch) -> list[float]:
    return [value for step, value in series if stretch.start < step <= stretch.end]


def early(values: Sequence[float]) -> list[float]:
    """The beginning of a task, at least one logged step."""
    return list(values[: max(1, round(WINDOW * len(values)))])


def late(values: Sequence[float]) -> list[float]:
    return list(values[-max(1, round(WINDOW * len(values))) :])


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def settled(run: FinishedRun) -> int:
    """When the start-up transient is over: after three time constants of the threshold's average, and the warm-up."""
    assert isinstance(run.config.model, TRC2Config)
    assert run.config.stream is not None
    warmup = run.config.train.warmup_of(sum(task.steps for task in run.config.stream.trained))
    return max(warmup, round(3 / max(1e-9, 1 - run.config.model.write_threshold_decay)))


def _missing(cast: Cast, values: dict[int, float], what: str) -> list[str]:
    return needs_trc2(cast) or ([] if values else [what])


def _after_start(run: FinishedRun, name: str) -> list[float]:
    return [value for step, value in points(run, f"hippocampus/{name}") if step > settled(run)]


def _sparse(cast: Cast) -> Claim:
    low, high = paper.KEEP_BAND

    def share(name: str) -> dict[int, float]:
        def of(run: FinishedRun) -> float | None:
            values = _after_start(run, name)
            return mean([float(low <= value <= high) for value in values]) if values else None

        return by_seed(cast, of)

    keep, raw = share("keep_fraction"), share("raw_fraction")
    means = by_seed(cast, lambda run: mean(values) if (values := _after_start(run, "keep_fraction")) else None)
    return rule(
        "writes.sparse", "After warm-up writes are sparse: keep and raw write fraction are usually 0.1–0.4",
        where=TRACES, paper=f"{paper.LAST_KEEP_FRACTION} and {paper.LAST_RAW_FRACTION} at the end",
        how=f"Share of logged steps with a fraction within {low:g}–{high:g}, after three time constants of the "
        "threshold's average and the warm-up, against a half.",
        contrasts=[
            against("steps with a keep fraction in the band", "TRC²", keep, 0.5, "higher"),
            against("steps with a raw fraction in the band", "TRC²", raw, 0.5, "higher"),
        ] if keep else [],
        missing=_missing(cast, keep, "runs longer than the start-up transient of the threshold"),
        notes=[*([f"Mean keep fraction: {_listed(means)}."] if means else []), *_ceiling(cast)],
    )  # fmt: skip


def _ceiling(cast: Cast) -> list[str]:
    """Surprise is clipped at δ_max; candidates that all lie there cannot be told apart by a threshold."""

    def share(run: FinishedRun) -> float | None:
        assert isinstance(run.config.model, TRC2Config)
        values = _after_start(run, "surprise_max")
        return mean([float(value >= run.config.model.td_clip) for value in values]) if values else None

    known = by_seed(cast, share)
    return [f"Steps whose largest surprise is at its clip δ_max: {_listed(known)}."] if known else []


def _while_clipped(cast: Cast, contrast: Contrast) -> Contrast:
    """A contrast of the threshold, not counted where all that it averages lies at the clip.

    It is then 1 − β^t times a constant: what it does at a switch or within a task is its own start-up, to the last
    digit the same in every run, and with an interval that would decide anything.
    """

    def is_clipped(run: FinishedRun) -> bool:
        assert isinstance(run.config.model, TRC2Config)
        largest, kept = _after_start(run, "surprise_max"), _after_start(run, "keep_fraction")
        at_clip = mean([float(value >= run.config.model.td_clip) for value in largest])
        return at_clip > 0.95 and mean([float(value >= 1) for value in kept]) > 0.95

    if cast.trc2 is None or not all(map(is_clipped, cast.runs(cast.trc2))):
        return contrast
    return replace(contrast, counts=False, remark="every candidate's surprise is at its clip, so the threshold is the "
                   "average of a constant and shows its start-up only")  # fmt: skip


def _saturated(cast: Cast) -> Claim:
    values = by_seed(cast, lambda run: mean([float(v >= 1) for v in known])
                     if (known := _after_start(run, "keep_fraction")) else None)  # fmt: skip
    few, logs = paper.SATURATED_LOGS
    return rule(
        "writes.saturated", "The write fraction is far from saturation at almost all logged steps",
        where=TRACES, paper=f"all candidates written at {few} of {logs} logged steps ({few / logs:.2%})",
        how="Share of logged steps after the start-up transient at which every candidate was written, against 5 %.",
        contrasts=[against("share of saturated steps", "TRC²", values, 0.05, "lower")] if values else [],
        missing=_missing(cast, values, "runs longer than the start-up transient of the threshold"),
        notes=_ceiling(cast),
    )  # fmt: skip


def _rises(run: FinishedRun, name: str) -> list[float]:
    """At each switch of tasks: the beginning of the new one minus the end of the old, beyond the trend.

    The trend is the change over as many logged steps before the end of the old one: an average that is still climbing
    from 0 rises at any step, and at a switch no more than elsewhere.
    """
    series = points(run, f"hippocampus/{name}")
    found = []
    for old, new in itertools.pairwise(run.stretches):
        a, b = within(series, old), within(series, new)
        if (name == "threshold" and old.end < settled(run)) or len(a) < 3 or not b:
            continue
        count = len(late(a))
        before = a[-2 * count : -count] or a[:1]
        found.append((mean(early(b)) - mean(late(a))) - (mean(late(a)) - mean(before)))
    return found


def _jump(run: FinishedRun) -> float | None:
    """Mean surprise over the first few logged steps of a task minus that over the last of the one before."""
    series = points(run, "hippocampus/surprise_mean")
    pairs = [(within(series, old), within(series, new)) for old, new in itertools.pairwise(run.stretches)]
    found = [mean(new[:FIRST]) - mean(old[-LAST:]) for old, new in pairs if old and new]
    return mean(found) if found else None


FIRST, LAST = 5, 20  # logged steps
SIGNALS = (("surprise_mean", "mean surprise"), ("threshold", "write threshold"))
START_UP = "The threshold is an average that begins at 0: switches within three of its time constants are left out."


def _of_signals(cast: Cast, what: str, values: dict[str, dict[int, float]], better: Better) -> list[Contrast]:
    """Surprise and threshold against 0, as far as they were logged."""
    found = []
    for name, title in SIGNALS:
        if values[name]:
            contrast = against(f"{what} of {title}", "TRC²", values[name], 0.0, better)
            found.append(_while_clipped(cast, contrast) if name == "threshold" else contrast)
    return found


def _switches(cast: Cast) -> Claim:
    def average(name: str) -> Callable[[FinishedRun], float | None]:
        return lambda run: mean(rises) if (rises := _rises(run, name)) else None

    values = {name: by_seed(cast, average(name)) for name, _ in SIGNALS}
    return rule(
        "surprise.switches", "Surprise and write threshold rise when the task changes",
        where=TRACES, paper="figure only",
        how="Beginning of the new task (first fifth) minus end of the old (last fifth), less the change over the fifth "
        "before that, mean over switches, against 0.",
        contrasts=_of_signals(cast, "rise", values, "higher"),
        beside=[against(f"jump of mean surprise: first {FIRST} logged steps minus last {LAST}", "TRC²", jump, 0.0,
                        "higher")] if (jump := by_seed(cast, _jump)) else [],
        missing=_missing(cast, values["threshold"], "a switch of tasks after the threshold's start-up"),
        notes=[START_UP, *_ceiling(cast)],
    )  # fmt: skip


def _relaxes(cast: Cast) -> Claim:
    def fall(name: str) -> Callable[[FinishedRun], float | None]:
        def of(run: FinishedRun) -> float | None:
            series = points(run, f"hippocampus/{name}")
            since = settled(run) if name == "threshold" else 0
            later = [stretch for stretch in run.stretches[1:] if stretch.start >= since]
            parts = [values for stretch in later if (values := within(series, stretch))]
            return mean([mean(late(values)) - mean(early(values)) for values in parts]) if parts else None

        return of

    values = {name: by_seed(cast, fall(name)) for name, _ in SIGNALS}
    return rule(
        "surprise.relaxes", "Surprise and write threshold then fall within the task",
        where=TRACES, paper="figure only",
        how="End of a task minus its beginning, mean over tasks after the first, against 0.",
        contrasts=_of_signals(cast, "change", values, "lower"),
        missing=_missing(cast, values["threshold"], "a task that begins after the threshold's start-up"),
        notes=[START_UP, *_ceiling(cast)],
    )  # fmt: skip


def _last_switch(cast: Cast) -> Claim:
    first = by_seed(cast, lambda run: r[0] if len(r := _rises(run, "surprise_mean")) > 1 else None)
    last = by_seed(cast, lambda run: r[-1] if len(r := _rises(run, "surprise_mean")) > 1 else None)
    return rule(
        "surprise.last_switch", "The clearest rise is at the last switch (WikiText-103 → GSM8K)",
        where=TRACES, paper="figure only",
        how="Rise of mean surprise, beyond its trend, at the last switch minus that at the first, by seed.",
        contrasts=[Contrast("rise of mean surprise", "last switch", "first switch", last, first, "higher")]
        if last else [],
        missing=_missing(cast, last, "a stream with two switches"),
    )  # fmt: skip


def _td(run: FinishedRun, task: str) -> list[float]:
    stretch = next((s for s in run.stretches if s.task == task), None)
    return within(points(run, "train/loss_td"), stretch) if stretch is not None else []


def _decades(run: FinishedRun, task: str) -> float | None:
    values = _td(run, task)
    return _fall(mean(early(values)), mean(late(values))) if values else None


def _from_peak(run: FinishedRun, task: str) -> float | None:
    """The same from the highest mean of a few neighbouring logged steps, wherever in the task it is.

    The highest of many lies above the end of nearly any loss: a number to look at, never one to test against 0.
    """
    values = _td(run, task)
    if len(values) < FIRST:
        return None
    return _fall(max(mean(values[at : at + FIRST]) for at in range(len(values) - FIRST + 1)), mean(late(values)))


def _fall(first: float, last: float) -> float:
    return math.log10(first / last) if first > 0 and last > 0 else math.nan


def _critic_falls(cast: Cast) -> Claim:
    values = {task: by_seed(cast, partial(_decades, task=task)) for task in cast.evidence.tasks}
    peaks = [f"{task} {', '.join(f'{v:.2g} (seed {seed})' for seed, v in sorted(known.items()))}"
             for task in values if (known := by_seed(cast, partial(_from_peak, task=task)))]  # fmt: skip
    return rule(
        "critic.falls", "The critic's loss falls within each task",
        where=LOSSES, paper="figure only",
        how="log10 of L_td at the beginning of a task over that at its end, for each task, against 0.",
        contrasts=[against(f"decades L_td falls in {task}", "TRC²", v, 0.0, "higher")
                   for task, v in values.items() if v],
        missing=_missing(cast, next(iter(values.values())), "logged L_td"),
        notes=[f"L_td may still rise in the first fifth of a task, as it learns to value what is new. From its peak, "
               f"the highest mean of {FIRST} neighbouring steps, it falls by {'; '.join(peaks)} decades. Nothing is "
               "tested by that: the highest of many lies above the end of nearly any loss."] if peaks else [],
    )  # fmt: skip


def _critic_decades(cast: Cast) -> Claim:
    def average(run: FinishedRun) -> float | None:
        known = [d for stretch in run.stretches if (d := _decades(run, stretch.task)) is not None]
        return mean(known) if known else None

    values = by_seed(cast, average)
    return rule(
        "critic.decades", "… by orders of magnitude",
        where=LOSSES, paper="“by orders of magnitude”; figure only",
        how="The same, mean over tasks, against 1 (ten times).",
        contrasts=[against("decades L_td falls, mean over tasks", "TRC²", values, 1.0, "higher")] if values else [],
        missing=_missing(cast, values, "logged L_td"),
    )  # fmt: skip


def _replay_loss(cast: Cast) -> Claim:
    def parts(run: FinishedRun) -> tuple[float, float] | None:
        series = [(step, value) for step, value in points(run, "train/loss_replay") if value > 0]
        first = within(series, run.stretches[0])
        rest = [value for step, value in series if step > run.stretches[0].end]
        return (mean(early(first)), mean(rest)) if first and rest else None

    begin = by_seed(cast, lambda run: p[0] if (p := parts(run)) else None)
    rest = by_seed(cast, lambda run: p[1] if (p := parts(run)) else None)
    return rule(
        "replay.loss", "The replay loss is largest early in the first task and smaller over the later tasks",
        where=LOSSES, paper="figure only", how="Mean L_rep after the first task minus that in the first fifth of it.",
        contrasts=[Contrast("mean L_rep", "later tasks", "beginning of the first", rest, begin)] if begin else [],
        missing=_missing(cast, begin, "logged L_rep over two tasks"),
    )  # fmt: skip


def _drift(run: FinishedRun, name: str) -> float | None:
    """The end of the last task minus the end of the first, relative to the mean: past what every run begins with."""
    series = points(run, name)
    first, last = (within(series, stretch) for stretch in (run.stretches[0], run.stretches[-1]))
    whole = mean([value for _, value in series])
    return (mean(late(last)) - mean(late(first))) / whole if first and last and whole else None


def _loss_drift(cast: Cast) -> Claim:
    values = {name: by_seed(cast, lambda run, n=name: _drift(run, f"train/{n}"))  # type: ignore[misc]
              for name in ("loss_td", "loss_replay")}  # fmt: skip
    return rule(
        "losses.drift", "The critic's and the replay loss do not drift upward over the stream",
        where="Figure E.4, caption", paper="figure only",
        how=f"Last fifth of the last task minus last fifth of the first, relative to the mean, against {DRIFT:g}.",
        contrasts=[against(f"relative drift of {title}", "TRC²", values[name], DRIFT, "lower")
                   for name, title in (("loss_td", "L_td"), ("loss_replay", "L_rep")) if values[name]],
        missing=_missing(cast, values["loss_td"], "logged L_td and L_rep"),
    )  # fmt: skip


def _balance(run: FinishedRun) -> float:
    """λ_lb Σ A when all experts are equally loaded: A = 1 in each column."""
    assert isinstance(run.config.model, TRC2Config)
    return run.config.model.lambda_load_balance * run.config.model.num_columns


def _router_range(cast: Cast) -> Claim:
    def largest(run: FinishedRun) -> float | None:
        values = [value for _, value in points(run, "train/loss_load_balance")]
        if not values or _balance(run) == 0:
            return None
        return math.nan if any(map(math.isnan, values)) else max(values) / _balance(run)

    low, high = paper.ROUTER_RANGE
    values = by_seed(cast, largest)
    bound = round(high / 0.04, 2)
    return rule(
        "router.range", "The router loss stays bounded near its balanced value",
        where=LOSSES, paper=f"{low}–{high} over the run, {paper.ROUTER_AT_END} at the end; balanced is 0.04 (d768-l4)",
        how=f"Largest logged router loss over its balanced value λ_lb·L, against the paper's {high} / 0.04 = "
        f"{bound:g}.",
        contrasts=[against("largest router loss / balanced", "TRC²", values, bound, "lower")] if values else [],
        missing=_missing(cast, values, "logged router loss"),
    )  # fmt: skip


def _router_drift(cast: Cast) -> Claim:
    values = by_seed(cast, lambda run: _drift(run, "train/loss_load_balance"))
    return rule(
        "router.drift", "The router loss does not drift upward over the stream",
        where=LOSSES, paper=f"{paper.ROUTER_AT_END} at the end of {paper.ROUTER_RANGE[0]}–{paper.ROUTER_RANGE[1]}",
        how=f"Last fifth of the last task minus last fifth of the first, relative to the mean, against {DRIFT:g}.",
        contrasts=[against("relative drift", "TRC²", values, DRIFT, "lower")] if values else [],
        missing=_missing(cast, values, "logged router loss"),
    )  # fmt: skip


def _controller(cast: Cast) -> Claim:
    def together(run: FinishedRun) -> float | None:
        gaps, strengths = (dict(points(run, name, "control")) for name in ("replay/forgetting", "replay/coefficient"))
        steps = sorted(gaps.keys() & strengths.keys())
        if len(steps) < 3 or len({strengths[step] for step in steps}) < 2 or len({gaps[step] for step in steps}) < 2:
            return None
        return statistics.correlation([gaps[step] for step in steps], [strengths[step] for step in steps])

    def raised(run: FinishedRun) -> float | None:
        values = [value for _, value in points(run, "replay/coefficient", "control")]
        return mean(values) - base_settings(run.config.model).coefficient if values else None

    values, more = by_seed(cast, together), by_seed(cast, raised)
    return rule(
        "replay.controller", "The controller strengthens replay when it measures forgetting",
        where="section 3.2; section B.6", paper="no trace of it is shown",
        how="Correlation of measured forgetting and replay coefficient over the calls of the controller, against 0.",
        contrasts=[against("correlation of forgetting and coefficient", "TRC²", values, 0.0, "higher")]
        if values else [],
        missing=_missing(cast, values, "three calls of the controller that differ"),
        notes=["The controller's own equations make it so: a check that it works, no finding.",
               *(["Mean coefficient above its base: "
                  + ", ".join(f"{value:.3g} (seed {seed})" for seed, value in sorted(more.items())) + "."]
                 if more else [])],
    )  # fmt: skip


def _listed(values: dict[int, float]) -> str:
    return ", ".join(f"{value:.0%} (seed {seed})" for seed, value in sorted(values.items()))
