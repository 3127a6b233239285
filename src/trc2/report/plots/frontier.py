"""What quality costs: text scores against the bill, loss against arithmetic, forgetting against speed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from trc2.report.evidence import PRIMARY, Arm
from trc2.report.finished import FinishedRun
from trc2.report.grid import Number
from trc2.report.old_figures import label
from trc2.report.plots.against_size import score_label, text_choice, whiskers
from trc2.report.plots.canvas import GREY, Picture, Sheet, grid_of, hide_rest
from trc2.report.plots.ticks import linear_ticks, log_ticks, should_be_log, tick_words
from trc2.report.scope import LeftOut, Reading, Scope, area_at, boundary_score, cost, measured

Better = Literal["lower", "higher"]
NEAR = 1.0
FRONTIER = "Grey line: no arm that learnt its tasks is better in both. "


def text_frontier(scope: Scope) -> Picture:
    """The text score of every task at its boundary against peak memory × hours per device."""
    chosen = {task: choice for task in scope.evidence.tasks if (choice := text_choice(scope, task)) is not None}
    if not chosen:
        raise LeftOut("needs a text score in every evaluation")
    rows, columns = grid_of(len(chosen))
    sheet = Sheet(scope, rows, columns)
    lines = []
    for axes, (task, (metric, scale)) in zip(sheet.panels, chosen.items(), strict=False):
        score = (boundary_score(metric, task), scale)
        lines.append(scatter(sheet, axes, (cost("gb_hours"), 1.0), score, "higher", cheap="lower"))
        axes.set_title(label(scope.task_titles[task]).strip())
        axes.set_xlabel("peak memory × time (GB·h per device)")
        axes.set_ylabel(score_label(metric))
    hide_rest(sheet.panels, len(chosen))
    return _finish(sheet, "frontier_text", "Task-boundary text scores against the bill of the whole run.", any(lines))


def loss_frontier(scope: Scope) -> Picture:
    """Mean log-perplexity at the end, and the forgetting area, against training FLOPs per token."""
    sheet = Sheet(scope, 1, 2, size=(3.7, 2.9))
    readings = (
        ("mean log-perplexity at the end ↓ (nats)", measured(PRIMARY)),
        ("forgetting area at the end ↓ (nats)", area_at("perplexity", -1)),
    )
    lines = []
    for axes, (title, of) in zip(sheet.panels, readings, strict=True):
        work = (cost("training_flops_per_token"), 1e-6)
        lines.append(scatter(sheet, axes, work, (of, 1.0), "lower", cheap="lower"))
        axes.set_xlabel("training arithmetic (MFLOP per token)")
        axes.set_ylabel(title)
    return _finish(sheet, "frontier_loss", "Loss and forgetting against arithmetic.", any(lines))


def speed_and_retention(scope: Scope) -> Picture:
    """Forgetting area at the end against training speed: the lower right corner is preferred."""
    sheet = Sheet(scope, 1, 1, size=(6.6, 3.6))
    (axes,) = sheet.panels
    speed, area = (cost("tokens_per_second"), 1e-3), (area_at("perplexity", -1), 1.0)
    has_line = scatter(sheet, axes, speed, area, "lower", cheap="higher")
    axes.set_xlabel("training speed (thousand tokens/s)")
    axes.set_ylabel("forgetting area at the end ↓ (AUFC, nats)")
    axes.annotate(
        "better ↘", (0.99, 0.02), xycoords="axes fraction", ha="right", va="bottom", fontsize=7, color=GREY, zorder=0
    )
    caption = "Speed against retention; the preferred corner is the lower right."
    return _finish(sheet, "speed_retention", caption, has_line)


def keeping_and_learning(scope: Scope) -> Picture:
    """What was lost since each task's own training against how well it was learnt; together they are the end."""
    sheet = Sheet(scope, 1, 1, size=(6.6, 3.8))
    (axes,) = sheet.panels
    known = _known(scope, (just_learnt, 1.0), (lost_since, 1.0))
    best = min(x.value + y.value for _, x, y in known)
    near = [(arm, x, y) for arm, x, y in known if x.value + y.value <= best + NEAR]
    left, right = _room([x.value for _, x, _ in near])
    low, high = _room([y.value for _, _, y in near])
    axes.set_xlim(left, right)
    axes.set_ylim(low, high)
    _equal_ends(axes)
    has_line = _draw(sheet, axes, near, "lower", cheap="lower")
    for axis in (axes.xaxis, axes.yaxis):
        linear_ticks(axis)
        tick_words(axis)
    sheet.label_points(axes, [(arm, x.value, y.value) for arm, x, y in near], is_wide=True)
    axes.set_xlabel("just learnt: mean log-perplexity after each task's own training ↓ (nats)")
    axes.set_ylabel("lost from then to the end ↓ (nats)")
    far = [arm.title for arm, _, _ in known if arm not in [shown for shown, _, _ in near]]
    outside = f" Not drawn, as they end more than {NEAR:g} nat worse than the best: {', '.join(far)}." if far else ""
    caption = "Learning against keeping. Along a slanted line the mean log-perplexity at the end is the number on it."
    return _finish(sheet, "keeping_learning", f"{caption}{outside}", has_line)


def _equal_ends(axes: Any) -> None:
    """Lines on which what was learnt and what was lost add up to the same end."""
    from matplotlib.ticker import MaxNLocator

    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    for end in MaxNLocator(6).tick_values(left + low, right + high):
        axes.plot((left, right), (end - left, end - right), color="#DDDDDD", linewidth=0.7, zorder=0)
        at_left = low < end - left < high
        if at_left or left < end - high < right:  # else it comes in from above
            place, shift = ((left, end - left), (3, 1)) if at_left else ((end - high, high), (3, -8))
            axes.annotate(f"{end:g}", place, shift, textcoords="offset points", fontsize=6, color=GREY)


def _room(values: Sequence[float]) -> tuple[float, float]:
    """Limits with some air around the points; intervals may reach beyond."""
    low, high = min(values), max(values)
    air = 0.15 * (high - low) or 0.05
    return low - air, high + air


def just_learnt(run: FinishedRun) -> float | None:
    """The mean over trained tasks of log-perplexity right after a task's own training."""
    table = run.tables["perplexity"]
    found = [table.post(stretch) for stretch in run.stretches]
    return None if math.isnan(sum(found)) else sum(found) / len(found)


def lost_since(run: FinishedRun) -> float | None:
    """By how much that mean is higher at the end; negative where later tasks helped."""
    table, learnt, end = run.tables["perplexity"], just_learnt(run), run.stretches[-1].end
    if learnt is None or not all(table.has(end, stretch.task) for stretch in run.stretches):
        return None
    return sum(table.value(end, stretch.task) for stretch in run.stretches) / len(run.stretches) - learnt


def _finish(sheet: Sheet, name: str, caption: str, has_line: bool) -> Picture:
    words = f"{FRONTIER if has_line else ''}{whiskers(sheet.scope)}"
    return sheet.finish(name, f"{caption} {words}", f"{sheet.scope.data_words(sheet.scope.competitors)}. {words}")


def scatter(
    sheet: Sheet, axes: Any, across: tuple[Reading, float], up: tuple[Reading, float], better: Better, *, cheap: Better
) -> bool:
    """One point per competitor, those that nothing beats in both joined by steps; whether there are such steps."""
    known = _known(sheet.scope, across, up)
    has_line = _draw(sheet, axes, known, better, cheap=cheap)
    axes.margins(0.1)
    for which, values in (("x", [x.value for _, x, _ in known]), ("y", [y.value for _, _, y in known])):
        axis = axes.xaxis if which == "x" else axes.yaxis
        if should_be_log(values):
            log_ticks(axes, which)
        else:
            linear_ticks(axis)
            tick_words(axis)
    sheet.label_points(axes, [(arm, x.value, y.value) for arm, x, y in known], is_wide=len(sheet.panels) < 3)
    return has_line


Place = tuple[Arm, Number, Number]


def _known(scope: Scope, across: tuple[Reading, float], up: tuple[Reading, float]) -> list[Place]:
    """The competitors that have both numbers."""
    found = [(arm, scope.number(arm, *across), scope.number(arm, *up)) for arm in scope.competitors]
    known = [
        (arm, x, y)
        for arm, x, y in found
        if x is not None and y is not None and math.isfinite(x.value) and math.isfinite(y.value)
    ]
    if len(known) < 2:
        raise LeftOut("needs at least two arms that have both numbers")
    return known


def _draw(sheet: Sheet, axes: Any, places: list[Place], better: Better, *, cheap: Better) -> bool:
    """The points, and steps along those that nothing beats: not learning is cheap and forgets nothing, so who did not
    learn a task beats nobody. Whether there are steps."""
    for arm, x, y in places:
        sheet.point(axes, arm, x, y)
    best = unbeaten([(x.value, y.value) for arm, x, y in places if not sheet.scope.unlearnt(arm)], cheap, better)
    if len(best) < 2:
        return False
    steps = "post" if cheap == "lower" else "pre"
    axes.step(*zip(*best, strict=True), where=steps, color="#999999", linewidth=0.9, zorder=1)
    return True


def unbeaten(points: Sequence[tuple[float, float]], cheap: Better, better: Better) -> list[tuple[float, float]]:
    """The points that no other beats in one coordinate and equals or beats in the other, from left to right."""
    across, up = (1 if cheap == "lower" else -1), (1 if better == "lower" else -1)
    kept = {
        (x, y)
        for x, y in points
        if not any(
            across * a <= across * x and up * b <= up * y and (a, b) != (x, y) for a, b in points
        )
    }  # fmt: skip
    return sorted(kept)
