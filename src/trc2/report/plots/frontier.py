"""What quality costs: text scores against the bill, loss against arithmetic, forgetting against speed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from trc2.report.evidence import PRIMARY
from trc2.report.figures import label
from trc2.report.plots.against_size import score_label, text_choice, whiskers
from trc2.report.plots.canvas import GREY, Picture, Sheet, grid_of, hide_rest
from trc2.report.plots.ticks import linear_ticks, log_ticks, should_be_log, tick_words
from trc2.report.scope import LeftOut, Reading, Scope, area_at, boundary_score, cost, measured

Better = Literal["lower", "higher"]
FRONTIER = "Grey line: no arm is better in both."


def text_frontier(scope: Scope) -> Picture:
    """The text score of every task at its boundary against peak memory × hours per device."""
    chosen = {task: choice for task in scope.evidence.tasks if (choice := text_choice(scope, task)) is not None}
    if not chosen:
        raise LeftOut("needs a text score in every evaluation")
    rows, columns = grid_of(len(chosen))
    sheet = Sheet(scope, rows, columns)
    for axes, (task, (metric, scale)) in zip(sheet.panels, chosen.items(), strict=False):
        scatter(sheet, axes, (cost("gb_hours"), 1.0), (boundary_score(metric, task), scale), "higher", cheap="lower")
        axes.set_title(label(scope.task_titles[task]).strip())
        axes.set_xlabel("peak memory × time (GB·h per device)")
        axes.set_ylabel(score_label(metric))
    hide_rest(sheet.panels, len(chosen))
    return _finish(sheet, "frontier_text", "Task-boundary text scores against the bill of the whole run.")


def loss_frontier(scope: Scope) -> Picture:
    """Mean log-perplexity at the end, and the forgetting area, against training FLOPs per token."""
    sheet = Sheet(scope, 1, 2, size=(3.7, 2.9))
    readings = (
        ("mean log-perplexity at the end ↓ (nats)", measured(PRIMARY)),
        ("forgetting area at the end ↓ (nats)", area_at("perplexity", -1)),
    )
    for axes, (title, of) in zip(sheet.panels, readings, strict=True):
        scatter(sheet, axes, (cost("training_flops_per_token"), 1e-6), (of, 1.0), "lower", cheap="lower")
        axes.set_xlabel("training arithmetic (MFLOP per token)")
        axes.set_ylabel(title)
    return _finish(sheet, "frontier_loss", "Loss and forgetting against arithmetic.")


def speed_and_retention(scope: Scope) -> Picture:
    """Forgetting area at the end against training speed: the lower right corner is preferred."""
    sheet = Sheet(scope, 1, 1, size=(6.6, 3.6))
    (axes,) = sheet.panels
    scatter(sheet, axes, (cost("tokens_per_second"), 1e-3), (area_at("perplexity", -1), 1.0), "lower", cheap="higher")
    axes.set_xlabel("training speed (thousand tokens/s)")
    axes.set_ylabel("forgetting area at the end ↓ (AUFC, nats)")
    axes.annotate(
        "better ↘", (0.99, 0.02), xycoords="axes fraction", ha="right", va="bottom", fontsize=7, color=GREY, zorder=0
    )
    return _finish(sheet, "speed_retention", "Speed against retention; the preferred corner is the lower right.")


def _finish(sheet: Sheet, name: str, caption: str) -> Picture:
    words = f"{FRONTIER} {whiskers(sheet.scope)}"
    return sheet.finish(name, f"{caption} {words}", f"{sheet.scope.data_words(sheet.scope.competitors)}. {words}")


def scatter(
    sheet: Sheet, axes: Any, across: tuple[Reading, float], up: tuple[Reading, float], better: Better, *, cheap: Better
) -> None:
    """One point per competitor, those that nothing beats in both joined by steps."""
    number = sheet.scope.number
    found = [(arm, number(arm, *across), number(arm, *up)) for arm in sheet.scope.competitors]
    known = [
        (arm, x, y)
        for arm, x, y in found
        if x is not None and y is not None and math.isfinite(x.value) and math.isfinite(y.value)
    ]
    if len(known) < 2:
        raise LeftOut("needs at least two arms that have both numbers")
    for arm, x, y in known:
        sheet.point(axes, arm, x, y)
    best = unbeaten([(x.value, y.value) for _, x, y in known], cheap, better)
    if len(best) > 1:
        steps = "post" if cheap == "lower" else "pre"
        axes.step(*zip(*best, strict=True), where=steps, color="#999999", linewidth=0.9, zorder=1)
    axes.margins(0.1)
    for which, values in (("x", [x.value for _, x, _ in known]), ("y", [y.value for _, _, y in known])):
        axis = axes.xaxis if which == "x" else axes.yaxis
        if should_be_log(values):
            log_ticks(axes, which)
        else:
            linear_ticks(axis)
            tick_words(axis)
    sheet.label_points(axes, [(arm, x.value, y.value) for arm, x, y in known], is_wide=len(sheet.panels) < 3)


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
