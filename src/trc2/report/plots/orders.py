"""The same tasks in other orders: forgetting over each stream, at its end, by metric, and each task's own boundary."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from trc2.report.evidence import Arm
from trc2.report.finished import gap_unit
from trc2.report.grid import Number
from trc2.report.names import order_of
from trc2.report.old_figures import label
from trc2.report.plots.canvas import GREY, Picture, Sheet, grid_of, hide_rest, paler
from trc2.report.plots.curves import Spread, area_curve, draw_arms
from trc2.report.plots.ticks import linear_ticks, log_ticks, tick_words
from trc2.report.scope import (
    METRIC_TITLES,
    LeftOut,
    Reading,
    Scope,
    area_at,
    boundary_score,
    mean_of,
    metrics_of,
    unlearnt,
)

Order = tuple[str, ...]
PLACES = ("#dcebf7", "#f3f3f3", "#fbe8da")  # behind bars: the task came first, in between, last
MOST_ORDERS = 12


def shuffled(scope: Scope) -> tuple[list[Arm], list[Order]]:
    """Arms that were trained in several orders, and the orders that all of them have."""
    arms = [
        arm for arm in scope.evidence.arms if not arm.is_bound and len({order_of(run.config) for run in arm.runs}) > 1
    ]
    orders = [order for order in scope.evidence.orders if arms and all(arm.in_order(order) for arm in arms)]
    if len(orders) < 2:
        raise LeftOut("needs runs in several orders of the tasks (stream.order)")
    return arms, orders[:MOST_ORDERS]


def in_order(arm: Arm, order: Order, of: Reading) -> Number | None:
    return mean_of(of(run) for run in arm.in_order(order))


def _footer(scope: Scope, arms: list[Arm], orders: list[Order], words: str) -> str:
    counts = sorted({len(arm.in_order(order)) for arm in arms for order in orders})
    seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    tasks = ", ".join(f"{letter} = {name}" for letter, name in letters(scope).items())
    plural = "seed" if counts == [1] else "seeds"
    return f"{tasks}; {scope.steps:,} steps, {len(orders)} orders, n = {seeds} {plural} in each order.{words}"


def letters(scope: Scope) -> dict[str, str]:
    """What stands for a task in the name of an order, and the task."""
    return {scope.order_letters((task,)): scope.task_titles[task] for task in scope.evidence.tasks}


def area_by_order(scope: Scope) -> Picture:
    """Forgetting area over the stream, one panel per order."""
    arms, orders = shuffled(scope)
    if not any(area_curve(run, "perplexity") for arm in arms for run in arm.runs):
        raise LeftOut("needs runs of at least two tasks one after another")
    rows, columns = grid_of(len(orders))
    sheet = Sheet(scope, rows, columns, size=(3.4, 2.3))
    for axes, order in zip(sheet.panels, orders, strict=False):
        curve = partial(area_curve, metric="perplexity")
        draw_arms(sheet, axes, curve, arms=arms, runs=partial(Arm.in_order, order=order), spread=Spread.deviation)
        axes.set_title(scope.order_letters(order), pad=12)
        axes.set_ylabel("forgetting area ↓ (nats)")
    high = max(axes.get_ylim()[1] for axes in sheet.panels[: len(orders)])
    for axes in sheet.panels[: len(orders)]:
        axes.set_ylim(0, high)
        linear_ticks(axes.yaxis)
    hide_rest(sheet.panels, len(orders))
    several = any(len(arm.in_order(order)) > 1 for arm in arms for order in orders)
    words = " One scale in all panels." + (Spread.deviation.words if several else "")
    caption = f"Forgetting area (log-perplexity) over the stream in every order; markers at task boundaries.{words}"
    return sheet.finish("orders_curves", caption, _footer(scope, arms, orders, words))


def order_robustness(scope: Scope) -> Picture:
    """A heat map of the area at the end, its mean and range over orders, and how the reference compares."""
    arms, orders = shuffled(scope)
    cells = {arm.title: [in_order(arm, order, area_at("perplexity", -1)) for order in orders] for arm in arms}
    if not any(number for row in cells.values() for number in row):
        raise LeftOut("needs runs of at least two tasks one after another")
    ours = scope.reference if scope.reference.title in cells else arms[0]
    rivals = [arm for arm in arms if arm.title != ours.title]
    sheet = Sheet(scope, 1, 3, size=(max(3.3, 0.35 * len(orders) + 1.6), 0.3 * len(arms) + 1.3))
    heat, ranges, ratios = sheet.panels
    heat_map(sheet, heat, arms, orders, cells)
    heat.set_title("forgetting area at the end (nats)")
    _draw_ranges(sheet, ranges, arms, cells)
    if rivals:
        shares = []
        for place, order in enumerate(orders):
            learnt = [arm for arm in rivals if not any(map(unlearnt, arm.in_order(order)))]
            best = min((_value(cells[arm.title][place]) for arm in learnt), default=math.nan)
            shares.append(_ratio(best, _value(cells[ours.title][place])))
        look = sheet.looks[ours.title]
        ratios.bar(range(len(orders)), shares, 0.7, color=look.colour)
        ratios.axhline(1.0, color=GREY, linewidth=0.9)
        ratios.set_xticks(range(len(orders)), [scope.order_letters(order) for order in orders], rotation=45, ha="right")
        ratios.set_title(label(f"best other ÷ {ours.title}", 44).strip())
        ratios.set_ylabel("ratio of areas")
        linear_ticks(ratios.yaxis)
    else:
        ratios.set_visible(False)
    words = " Middle: mean and range over orders. Right: above 1 it forgets less."
    caption = (
        "Order robustness: forgetting area at the end by arm and order; its mean and range over orders; and the "
        f"smallest area of any other arm that learnt its tasks divided by that of {ours.title}."
    )
    return sheet.finish("orders_robustness", caption, _footer(scope, arms, orders, words))


def _draw_ranges(sheet: Sheet, axes: Any, arms: list[Arm], cells: dict[str, list[Number | None]]) -> None:
    for height, arm in enumerate(arms):
        values = [number.value for number in cells[arm.title] if number is not None and math.isfinite(number.value)]
        if values:
            look = sheet.looks[arm.title]
            axes.plot([min(values), max(values)], [height, height], color=look.colour, linewidth=2.2, alpha=0.5)
            sheet.point(axes, arm, sum(values) / len(values), float(height))
    axes.set_ylim(len(arms) - 0.5, -0.5)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_xlim(left=min(0.0, axes.get_xlim()[0]))
    axes.margins(x=0.08)
    linear_ticks(axes.xaxis)
    axes.set_title("mean and range over orders")
    axes.set_xlabel("forgetting area ↓ (nats)")


def heat_map(
    sheet: Sheet, axes: Any, arms: list[Arm], orders: list[Order], cells: dict[str, list[Number | None]],
    *, named: bool = True,
) -> None:  # fmt: skip
    """Arms down, orders across, numbers inside."""
    values = [[_value(number) for number in cells[arm.title]] for arm in arms]
    known = [value for row in values for value in row if math.isfinite(value)]
    top = max(known, default=1.0) or 1.0
    axes.imshow(
        [[value if math.isfinite(value) else math.nan for value in row] for row in values], cmap="YlOrBr", vmin=0,
        vmax=top * 1.15, aspect="auto",
    )  # fmt: skip
    for row, line in enumerate(values):
        for column, value in enumerate(line):
            text = f"{value:.2f}" if math.isfinite(value) else "–"
            dark = math.isfinite(value) and value > 0.72 * top
            axes.text(column, row, text, ha="center", va="center", fontsize=6.5, color="white" if dark else "#222222")
    axes.set_xticks(range(len(orders)), [sheet.scope.order_letters(order) for order in orders], rotation=45, ha="right")
    axes.set_yticks(range(len(arms)), [sheet.words(arm, 34) if named else "" for arm in arms])
    axes.tick_params(length=0)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)


def areas_by_metric_and_order(scope: Scope) -> Picture:
    """One heat map per metric and, beside them, the means over orders."""
    arms, orders = shuffled(scope)
    metrics = metrics_of(run for arm in arms for run in arm.runs)
    tables = {
        metric: {arm.title: [in_order(arm, order, area_at(metric, -1)) for order in orders] for arm in arms}
        for metric in metrics
    }
    tables = {metric: cells for metric, cells in tables.items() if any(n for row in cells.values() for n in row)}
    if not tables:
        raise LeftOut("needs runs of at least two tasks one after another")
    count = len(tables) + 1
    sheet = Sheet(scope, 1, count, size=(max(2.7, 0.34 * len(orders) + 1.0), 0.3 * len(arms) + 1.3))
    for place, (axes, (metric, cells)) in enumerate(zip(sheet.panels, tables.items(), strict=False)):
        heat_map(sheet, axes, arms, orders, cells, named=place == 0)
        axes.set_title(f"{METRIC_TITLES.get(metric, metric)} AUFC")
    _draw_profile(sheet, sheet.panels[count - 1], arms, tables)
    runs = [run for arm in arms for run in arm.runs]
    units = "; ".join(f"{METRIC_TITLES.get(metric, metric)}: {gap_unit(runs, metric)}" for metric in tables)
    words = f" {units}. Lower is better everywhere."
    caption = f"Forgetting area at the end by metric, arm and order, and means over orders.{words}"
    return sheet.finish("orders_metrics", caption, _footer(scope, arms, orders, words))


def _draw_profile(sheet: Sheet, axes: Any, arms: list[Arm], tables: dict[str, dict[str, list[Number | None]]]) -> None:
    from matplotlib.patches import Patch

    wide = 0.8 / len(tables)
    for place, (metric, cells) in enumerate(tables.items()):
        tint = 0.75 * place / max(1, len(tables) - 1)
        for height, arm in enumerate(arms):
            values = [_value(number) for number in cells[arm.title]]
            known = [value for value in values if math.isfinite(value)]
            if known:
                colour = sheet.looks[arm.title].colour
                axes.barh(
                    height - 0.4 + wide * (place + 0.5), sum(known) / len(known), wide * 0.9,
                    color=paler(colour, tint), edgecolor=colour, linewidth=0.7,
                )  # fmt: skip
        patch = Patch(facecolor=paler(GREY, tint), edgecolor=GREY)
        sheet.key(f"{METRIC_TITLES.get(metric, metric)} AUFC (right)", patch)
    axes.set_ylim(len(arms) - 0.5, -0.5)
    axes.set_yticks(range(len(arms)), [""] * len(arms))
    axes.set_title("mean over orders")
    linear_ticks(axes.xaxis)


def boundary_by_order(scope: Scope) -> Picture:
    """Each task's perplexity right after its own training, in every order; behind: when it came."""
    from matplotlib.patches import Patch

    arms, orders = shuffled(scope)
    tasks = scope.evidence.tasks
    rows, columns = grid_of(
        len(tasks), 3 if len(arms) * len(orders) <= 36 else 1 if len(arms) * len(orders) > 80 else 2
    )
    sheet = Sheet(scope, rows, columns, size=(max(3.4, 0.09 * len(arms) * len(orders) + 1.0), 2.4))
    names = ("trained first", "in between", "trained last")
    for axes, task in zip(sheet.panels, tasks, strict=False):
        seen = []
        for group, order in enumerate(orders):
            place = order.index(task)
            when = 0 if place == 0 else 2 if place == len(order) - 1 else 1
            axes.axvspan(group - 0.5, group + 0.5, color=PLACES[when], linewidth=0, zorder=0)
            sheet.key(names[when], Patch(facecolor=PLACES[when], edgecolor="#cccccc"))
            numbers = [in_order(arm, order, boundary_score("perplexity", task)) for arm in arms]
            seen += _draw_group(sheet, axes, arms, group, numbers)
        axes.set_xlim(-0.5, len(orders) - 0.5)
        axes.set_xticks(range(len(orders)), [scope.order_letters(order) for order in orders], rotation=45, ha="right")
        axes.tick_params(axis="x", length=0)
        axes.set_title(label(scope.task_titles[task]).strip())
        axes.set_ylabel("perplexity ↓")
        if seen:
            axes.set_ylim(min(seen) * 0.75, max(seen) * 1.25)
        log_ticks(axes)
        tick_words(axes.yaxis)
    hide_rest(sheet.panels, len(tasks))
    for arm in arms:
        sheet.key_arm(arm)
    words = " Logarithmic axes do not start at 0."
    caption = f"Perplexity of each task right after its own training, in every order.{words}"
    return sheet.finish("orders_boundary", caption, _footer(scope, arms, orders, words))


def _draw_group(sheet: Sheet, axes: Any, arms: list[Arm], group: int, numbers: list[Number | None]) -> list[float]:
    """Bars of all arms side by side; returns their heights."""
    wide = 0.84 / len(arms)
    seen = []
    for place, (arm, number) in enumerate(zip(arms, numbers, strict=True)):
        if number is None or not math.isfinite(number.value) or number.value <= 0:
            continue
        look = sheet.looks[arm.title]
        half = number.half if math.isfinite(number.half) else None
        axes.bar(
            group - 0.42 + wide * (place + 0.5), number.value, wide * 0.9, yerr=half,
            color=look.colour if look.is_filled else "white", edgecolor=look.colour, linewidth=0.8,
            error_kw={"elinewidth": 0.7, "ecolor": "#333333"},
        )  # fmt: skip
        seen.append(number.value)
    return seen


def _value(number: Number | None) -> float:
    return math.nan if number is None else number.value


def _ratio(above: float, below: float) -> float:
    return above / below if below > 0 and math.isfinite(above) else math.nan
