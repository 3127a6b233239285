"""Scores right after each task's training against model size, and by width: the paper's scale views."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from trc2.report.evidence import Arm
from trc2.report.grid import Number
from trc2.report.old_figures import label
from trc2.report.plots.canvas import Picture, Sheet, grid_of, hide_rest, paler
from trc2.report.plots.ticks import linear_ticks, log_ticks, should_be_log, tick_words
from trc2.report.scope import METRIC_TITLES, LeftOut, Reading, Scope, boundary_score, parameters, text_metric

FILLED = "Filled: with replay; hollow: without."


def whiskers(scope: Scope) -> str:
    """What whiskers are, if any arm has several seeds, and what filled markers are."""
    several = any(len(scope.runs(arm)) > 1 for arm in scope.competitors)
    return f"Whiskers: 95 % t-intervals over seeds. {FILLED}" if several else FILLED


def perplexity_against_size(scope: Scope) -> Picture:
    """Perplexity at each task's boundary against the number of parameters."""
    return _against_size(scope, "size_perplexity", "perplexity", lambda task: ("perplexity", 1.0))


def text_against_size(scope: Scope) -> Picture:
    """The text score at each task's boundary against the number of parameters."""
    return _against_size(scope, "size_text", "text score", lambda task: text_choice(scope, task))


def text_choice(scope: Scope, task: str) -> tuple[str, float] | None:
    """A task's text score and what to multiply it by."""
    metric = text_metric(scope.evidence.runs[0], task)
    return None if metric is None else (metric, 100.0 if metric == "token_accuracy" else 1.0)


def score_label(metric: str) -> str:
    """With its unit, and an arrow that says which way is better."""
    if metric == "perplexity":
        return "perplexity ↓"
    unit = " (%)" if metric == "token_accuracy" else ""
    return f"{METRIC_TITLES.get(metric, metric)} ↑{unit}"


def _against_size(scope: Scope, name: str, what: str, choose: Callable[[str], tuple[str, float] | None]) -> Picture:
    sizes = {arm.title: parameters(arm) for arm in scope.arms}
    if len(set(sizes.values())) < 2:
        raise LeftOut("needs models of at least two sizes")
    chosen = {task: choice for task in scope.evidence.tasks if (choice := choose(task)) is not None}
    if not chosen:
        raise LeftOut(f"needs a {what} in every evaluation")
    rows, columns = grid_of(len(chosen))
    sheet = Sheet(scope, rows, columns)
    for axes, (task, (metric, scale)) in zip(sheet.panels, chosen.items(), strict=False):
        found = [(arm, scope.number(arm, boundary_score(metric, task), scale)) for arm in scope.competitors]
        known = [(arm, number) for arm, number in found if number is not None and math.isfinite(number.value)]
        for points in _by_family(known, sizes).values():
            xs, ys = [sizes[arm.title] for arm, _ in points], [number.value for _, number in points]
            if len(set(xs)) == len(xs) > 1:
                axes.plot(xs, ys, color=paler(points[0][0].family.colour, 0.4), linewidth=1.0, zorder=2)
            for arm, number in points:
                sheet.point(axes, arm, sizes[arm.title], number)
        axes.margins(0.12)
        axes.set_title(label(scope.task_titles[task]).strip())
        axes.set_xlabel("parameters")
        axes.set_ylabel(score_label(metric))
        if should_be_log(number.value for _, number in known):
            log_ticks(axes)
        else:
            linear_ticks(axes.yaxis)
        log_ticks(axes, "x")
        sheet.label_points(axes, [(arm, sizes[arm.title], number.value) for arm, number in known])
    hide_rest(sheet.panels, len(chosen))
    caption = f"Task-boundary {what} against model size. {whiskers(scope)}"
    return sheet.finish(name, caption, f"{scope.data_words(scope.competitors)}. {whiskers(scope)}")


def _by_family(
    known: list[tuple[Arm, Number]], sizes: dict[str, int]
) -> dict[tuple[str, str], list[tuple[Arm, Number]]]:
    """Points that are the same thing in several sizes: the title up to the size says so."""
    groups: dict[tuple[str, str], list[tuple[Arm, Number]]] = {}
    for arm, number in sorted(known, key=lambda entry: sizes[entry[0].title]):
        groups.setdefault((arm.family.name, arm.title.replace(f" {arm.size}", "")), []).append((arm, number))
    return groups


def scores_by_width(scope: Scope) -> Picture:
    """Bars of perplexity above and text scores below, one panel per task, grouped by width."""
    widths = sorted({arm.runs[0].config.model.d_model for arm in scope.competitors})
    tasks = scope.evidence.tasks
    choices: list[list[tuple[str, str, float]]] = [[(task, "perplexity", 1.0) for task in tasks]]
    texts = [(task, *choice) for task in tasks if (choice := text_choice(scope, task)) is not None]
    if texts:
        choices.append(texts)
    columns = max(len(row) for row in choices)
    bars = max(sum(arm.runs[0].config.model.d_model == width for arm in scope.competitors) for width in widths)
    wide = max(2.8, 0.11 * bars * len(widths) + 0.9)
    if columns > 4:
        columns, choices = 4, [row[at : at + 4] for row in choices for at in range(0, len(row), 4)]
    sheet = Sheet(scope, len(choices), columns, size=(min(wide, 5.5), 2.3))
    for place, axes in enumerate(sheet.panels):
        row = choices[place // columns]
        if place % columns >= len(row):
            axes.set_visible(False)
            continue
        task, metric, scale = row[place % columns]
        _draw_bars(sheet, axes, boundary_score(metric, task), scale, widths)
        axes.set_title(label(scope.task_titles[task]).strip())
        axes.set_ylabel(score_label(metric))
    words = f"Bars start at 0 where the axis is linear; longer whiskers are cut. {whiskers(scope)}"
    caption = f"Task-boundary scores grouped by width d. {words}"
    return sheet.finish("families_by_width", caption, f"{scope.data_words(scope.competitors)}. {words}")


def _draw_bars(sheet: Sheet, panel: Any, of: Reading, scale: float, widths: list[int]) -> None:
    scope = sheet.scope
    place, middles, seen = 0.0, [], []
    for width in widths:
        begin = place
        for arm in scope.competitors:
            number = scope.number(arm, of, scale)
            if arm.runs[0].config.model.d_model != width:
                continue
            if number is not None and math.isfinite(number.value):
                look = sheet.looks[arm.title]
                face = look.colour if look.is_filled else "white"
                half = number.half if math.isfinite(number.half) else None
                panel.bar(
                    place, number.value, 0.82, color=face, edgecolor=look.colour, linewidth=1.0, yerr=half,
                    error_kw={"elinewidth": 0.8, "ecolor": "#333333"},
                )  # fmt: skip
                panel.annotate(
                    str(look.number), (place, 0), xycoords=("data", "axes fraction"), xytext=(0, 1.5),
                    textcoords="offset points", ha="center", fontsize=5.5, color="white" if look.is_filled else "#333",
                )  # fmt: skip
                seen.append(number.value)
                sheet.key_arm(arm, numbered=True)
            place += 1
        middles.append((begin + place - 1) / 2)
        place += 0.8
    panel.set_xticks(middles, [f"d = {width}" for width in widths])
    panel.tick_params(axis="x", length=0)
    if should_be_log(seen):
        panel.set_ylim(min(seen) * 0.6, max(seen) * 1.3)
        log_ticks(panel)
    else:
        # No score is below 0, and bars numbered at their feet stand on the axis; the whisker of a few seeds may be
        # many times its bar, and is cut before it flattens all of them.
        highest = max(seen, default=0.0) or 1.0
        panel.set_ylim(0, min(panel.get_ylim()[1], 2 * highest))
        linear_ticks(panel.yaxis)
        tick_words(panel.yaxis)
