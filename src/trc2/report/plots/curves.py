"""Learning curves: perplexity, text scores and forgetting areas over the stream, as means over seeds with bands."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any

from trc2.metrics.forgetting import aufc_curve, mean
from trc2.report.evidence import Arm
from trc2.report.finished import FinishedRun, gap_unit
from trc2.report.old_figures import label
from trc2.report.plots.against_size import score_label, text_choice
from trc2.report.plots.canvas import GREY, Picture, Sheet, bands, grid_of, hide_rest
from trc2.report.plots.ticks import linear_ticks, log_ticks
from trc2.report.scope import METRIC_TITLES, LeftOut, Scope, headline, headline_words, metrics_of
from trc2.stats.intervals import Moments, moments
from trc2.stats.smoothing import gaussian_smooth

Curve = list[tuple[int, float]]
SIGMA = 1.0  # evaluations


class Spread(str, Enum):
    """What the band around a mean over seeds is. The paper has the first for scores, the second for areas."""

    error = "one standard error of the mean"
    deviation = "one standard deviation over seeds"

    def of(self, known: Moments) -> float:
        return known.standard_error if self is Spread.error else known.sd

    @property
    def words(self) -> str:
        return f" Bands: ± {self.value}."


def band_words(scope: Scope, arms: list[Arm], spread: Spread = Spread.error) -> str:
    """What bands are, where there are any."""
    return spread.words if any(len(scope.runs(arm)) > 1 for arm in arms) else ""


def perplexity_curves(scope: Scope) -> Picture:
    """Validation perplexity of every task, on a logarithmic axis."""
    tasks = scope.evidence.tasks
    sheet = _sheet(scope, len(tasks))
    for axes, task in zip(sheet.panels, tasks, strict=False):
        draw_arms(sheet, axes, partial(score_curve, metric="perplexity", task=task), is_log=True)
        axes.set_title(label(scope.task_titles[task]).strip(), pad=12)
        axes.set_ylabel("perplexity ↓")
        log_ticks(axes)
    caption = (
        f"Perplexity over the stream, geometric means over seeds; markers at task boundaries.{headline_words(scope)}"
    )
    return _finish(sheet, "curves_perplexity", caption, "", len(tasks))


def text_curves(scope: Scope) -> Picture:
    """The text score of every task, smoothed as in the paper, with what was measured pale behind."""
    chosen = {task: choice for task in scope.evidence.tasks if (choice := text_choice(scope, task)) is not None}
    if not chosen:
        raise LeftOut("needs a text score in every evaluation")
    sheet = _sheet(scope, len(chosen))
    for axes, (task, (metric, scale)) in zip(sheet.panels, chosen.items(), strict=False):
        sigma = SIGMA if metric == "bleu" else 0.0
        draw_arms(sheet, axes, partial(score_curve, metric=metric, task=task, scale=scale, first=1), sigma=sigma)
        axes.set_title(label(scope.task_titles[task]).strip(), pad=12)
        axes.set_ylabel(score_label(metric))
        linear_ticks(axes.yaxis)
    words = ""
    if any(metric == "bleu" for metric, _ in chosen.values()):
        words = (
            f" BLEU: Gaussian smoothed over neighbouring evaluations (σ = {SIGMA:g}), measured means pale behind; "
            "without step 0, where it means nothing."
        )
    caption = f"Teacher-forced text scores over the stream, means over seeds.{words}{headline_words(scope)}"
    return _finish(sheet, "curves_text", caption, words, len(chosen))


def area_curves(scope: Scope) -> Picture:
    """The forgetting area of every metric, mean over past tasks."""
    metrics = metrics_of(run for arm in scope.competitors for run in scope.runs(arm))
    known = [metric for metric in metrics if any(area_curve(run, metric) for run in _runs(scope))]
    if not known:
        raise LeftOut("needs runs of at least two tasks one after another")
    sheet = _sheet(scope, len(known))
    for axes, metric in zip(sheet.panels, known, strict=False):
        draw_arms(sheet, axes, partial(area_curve, metric=metric), spread=Spread.deviation)
        axes.set_title(f"{METRIC_TITLES.get(metric, metric)} AUFC", pad=12)
        unit = gap_unit(_runs(scope), metric)
        axes.set_ylabel(f"forgetting area ↓ ({unit})")
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
        linear_ticks(axes.yaxis)
    caption = (
        "Area under the forgetting curve over the stream, mean over past tasks, lower is better; markers at task "
        f"boundaries.{headline_words(scope)}"
    )
    return _finish(sheet, "curves_aufc", caption, " Mean over past tasks.", len(known), Spread.deviation)


def _runs(scope: Scope) -> list[FinishedRun]:
    return [run for arm in scope.competitors for run in scope.runs(arm)]


def _sheet(scope: Scope, panels: int) -> Sheet:
    rows, columns = grid_of(panels)
    return Sheet(scope, rows, columns, size=(3.6, 2.7))


def _finish(
    sheet: Sheet, name: str, caption: str, words: str, used: int, spread: Spread = Spread.error
) -> Picture:  # fmt: skip
    hide_rest(sheet.panels, used)
    scope, arms = sheet.scope, headline(sheet.scope)
    more = band_words(scope, arms, spread)
    return sheet.finish(name, f"{caption}{more}", f"{scope.data_words(arms)}.{words}{more}")


def score_curve(run: FinishedRun, metric: str, task: str, scale: float = 1.0, first: int = 0) -> Curve:
    """A task's score over the stream, from step `first` on."""
    table = run.tables.get(metric)
    if table is None:
        return []
    return [(step, scale * table.scores[step][task]) for step in table.steps if step >= first and table.has(step, task)]


def area_curve(run: FinishedRun, metric: str) -> Curve:
    table = run.tables.get(metric)
    if table is None:
        return []
    means = [(step, mean(list(values.values()))) for step, values in aufc_curve(table)]
    return [(step, value) for step, value in means if value is not None]


def draw_arms(
    sheet: Sheet, axes: Any, of: Callable[[FinishedRun], Curve], *, sigma: float = 0.0, arms: list[Arm] | None = None,
    runs: Callable[[Arm], list[FinishedRun]] | None = None, boundary_marks: bool = True, is_log: bool = False,
    spread: Spread = Spread.error,
) -> None:  # fmt: skip
    """A line per arm over bands of tasks: the mean over seeds, its spread, and what was measured if it is smoothed."""
    scope = sheet.scope
    ends, stretches, last = [], None, 0
    for arm in headline(scope) if arms is None else arms:
        here = (runs or scope.runs)(arm)
        curves = [curve for curve in map(of, here) if curve]
        if not curves:
            continue
        averaged = average(curves, spread, is_log=is_log)
        smooth = gaussian_smooth([(float(step), value) for step, value, _, _ in averaged], sigma)
        look = sheet.looks[arm.title]
        steps = [step for step, _, _, _ in averaged]
        if len(curves) > 1:
            low, high = [entry[2] for entry in averaged], [entry[3] for entry in averaged]
            axes.fill_between(steps, low, high, color=look.colour, alpha=0.15, linewidth=0, zorder=2)
        if sigma:
            raw = [value for _, value, _, _ in averaged]
            axes.plot(steps, raw, color=look.colour, alpha=0.3, linewidth=0.7, zorder=2)
        boundaries = {stretch.end for stretch in here[0].stretches}
        marked = [place for place, step in enumerate(steps) if step in boundaries] if boundary_marks else []
        axes.plot(
            steps, [value for _, value in smooth], linestyle=look.line, linewidth=1.3, zorder=3, markevery=marked,
            markersize=3.5, clip_on=False, **look.markers,
        )  # fmt: skip
        ends.append((arm, float(steps[-1]), smooth[-1][1]))
        if stretches is None:
            stretches = here[0].stretches
        last = max(last, here[0].stretches[-1].end)
    if stretches is not None:
        bands(scope, axes, stretches, last)
    if not any(math.isfinite(line) for drawn in axes.lines for line in drawn.get_ydata()):
        axes.text(0.5, 0.5, "no finite numbers", transform=axes.transAxes, ha="center", color=GREY)
    sheet.label_ends(axes, ends)


def average(
    curves: list[Curve], spread: Spread = Spread.error, *, is_log: bool = False
) -> list[tuple[int, float, float, float]]:
    """(step, mean, low and high end of its band) at the steps that all curves have; a broken value breaks both.

    On a logarithmic axis mean and spread are those of the logarithms: the middle that the eye sees.
    """
    shared = set.intersection(*({step for step, _ in curve} for curve in curves))
    tables = [dict(curve) for curve in curves]
    found = []
    for step in sorted(shared):
        values = [table[step] for table in tables]
        known = moments(map(_log, values) if is_log else values)
        ends = (known.mean, known.mean - spread.of(known), known.mean + spread.of(known))
        middle, low, high = map(math.exp, ends) if is_log else ends
        found.append((step, middle, low, high))
    return found


def _log(value: float) -> float:
    return math.log(value) if value > 0 else math.nan
