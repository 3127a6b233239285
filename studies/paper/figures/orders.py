"""The same tasks in other orders: forgetting over each stream, at its end, by metric, and each task's own boundary."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from studies.paper.figures.drawing import (
    TEXT_TITLES,
    Subject,
    add_legend,
    area_curve,
    average,
    colour_of,
    draw_band,
    face_of,
    marker_of,
    retitle,
    standard_deviation,
)
from studies.paper.roles import Roles, mean
from trc2.report.figures import draw_tasks
from trc2.report.run import Measure, area_at, own_score
from trc2.report.tables import NotWritten
from trc2.system.plot_style import Figure, ink, label, plain_log_ticks

MAX_ORDERS = 12
PLACES = ("first", "in between", "last")


def shuffled(subject: Subject) -> tuple[list[str], list[str]]:
    """Configurations trained in several orders, TRC² first, and the orders that all of them have."""
    roles = subject.roles
    rows = roles.table.runs[~roles.table.runs.is_reference]
    counts = rows.groupby("variant", sort=False)["order"].nunique()
    variants = sorted(counts.index[counts > 1], key=lambda variant: variant != roles.trc2)
    orders = [order for order in roles.table.orders if variants and all(roles.runs(v, [order]) for v in variants)]
    if len(orders) < 2:
        raise NotWritten("needs runs in several orders of the tasks (stream.order)")
    return list(variants)[:6], orders[:MAX_ORDERS]


def short(subject: Subject, order: str) -> str:
    """Initials of the tasks, or their places in the list where initials are not distinct: C→W→G."""
    initials = {task: subject.task_title(task)[:1].upper() for task in subject.tasks}
    if len(set(initials.values())) < len(initials):
        initials = {task: str(place) for place, task in enumerate(subject.tasks, start=1)}
    return "→".join(initials[task] for task in order.split(" → "))


def shared_seeds(roles: Roles, variants: Sequence[str], orders: Sequence[str]) -> list[int]:
    """The seeds that every configuration has in every order, so that all orders are compared on equal seeds."""
    found = [{run.config.train.seed for run in roles.runs(v, [order])} for v in variants for order in orders]
    return sorted(set.intersection(*found))


def cells(subject: Subject, measure: Measure, variants: Sequence[str], orders: Sequence[str]) -> list[list[float]]:
    """The mean over the shared seeds, one row per configuration and one column per order."""
    seeds = shared_seeds(subject.roles, variants, orders)
    rows = []
    for variant in variants:
        known = [subject.roles.seeds(measure, variant, order) for order in orders]
        rows.append([mean([values[seed] for seed in seeds if seed in values]) for values in known])
    return rows


def _caption(subject: Subject, variants: Sequence[str], orders: Sequence[str], words: str) -> str:
    seeds = shared_seeds(subject.roles, variants, orders)
    letters = ", ".join(f"{short(subject, task)} = {subject.task_title(task)}" for task in subject.tasks)
    steps = max(run.end for run in subject.roles.runs(variants[0]))
    return (
        f"{words} {letters}; {steps:,} steps, {len(orders)} orders, on the seeds that all orders share: "
        f"{', '.join(map(str, seeds))}."
    )


AREA = Measure("aufc", "forgetting (AUFC)", area_at(), unit="nats", is_forgetting=True)


def trajectories(subject: Subject) -> Figure:
    """AUFC over the stream, one panel per order, one scale."""
    roles = subject.roles
    variants, orders = shuffled(subject)
    table = cells(subject, AREA, variants, orders)
    lowest = sum(min(range(len(variants)), key=lambda row: table[row][column]) == 0 for column in range(len(orders)))
    title = f"{roles.title(variants[0])} forgets least of {len(variants)} in {lowest} of {len(orders)} orders"
    figure = Figure("orders_curves", title, len(orders), height=2.3)
    labelled: list[tuple[Any, list[tuple[float, str, str]]]] = []
    for place, (axes, order) in enumerate(zip(figure.panels, orders, strict=True)):
        ends = []
        for variant in variants:
            runs = roles.runs(variant, [order])
            band = average([area_curve(run) for run in runs], standard_deviation)
            if band is not None and band.steps:
                line = "-" if roles.table.variants.replays[variant] else "--"
                draw_band(axes, band, colour_of(roles, variant), is_main=variant == variants[0], linestyle=line)
                ends.append((band.middle[-1], roles.title(variant), colour_of(roles, variant)))
        run = roles.runs(variants[0], [order])[0]
        draw_tasks(axes, run.spans, roles.table.task_titles, run.end)
        axes.set_title(short(subject, order), pad=14)
        axes.set_ylabel("AUFC ↓ (nats)" if place % 3 == 0 else "")
        if place < len(orders) - 3:
            axes.set_xlabel("")
        if place % 3 == 2 or place == len(orders) - 1:
            labelled.append((axes, ends))
    high = max(axes.get_ylim()[1] for axes in figure.panels)
    for axes in figure.panels:
        axes.set_ylim(0, high)
    words = (
        "Forgetting over the stream in every order. Solid: with replay. Dashed: without. Bands: one standard deviation."
    )
    figure.caption = _caption(subject, variants, orders, words)
    return figure


def _heat(axes: Any, table: list[list[float]], rows: list[str], columns: list[str]) -> None:
    """Numbers inside coloured cells."""
    known = [value for row in table for value in row if math.isfinite(value)]
    top = max(known, default=1.0) or 1.0
    axes.imshow(table, cmap="YlOrBr", vmin=0, vmax=1.15 * top, aspect="auto")
    for row, line in enumerate(table):
        for column, value in enumerate(line):
            dark = math.isfinite(value) and value > 0.72 * top
            text = f"{value:.2f}" if math.isfinite(value) else "–"
            axes.text(column, row, text, ha="center", va="center", fontsize=7.5, color="white" if dark else "#222222")
    axes.set_xticks(range(len(columns)), columns, rotation=45, ha="right")
    axes.set_yticks(range(len(rows)), rows)
    axes.tick_params(length=0)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)


def robustness(subject: Subject) -> Figure:
    """AUFC by configuration and order, mean and range over orders, and the best other over TRC²."""
    roles = subject.roles
    variants, orders = shuffled(subject)
    table = cells(subject, AREA, variants, orders)
    names, columns = [label(roles.title(v), 30) for v in variants], [short(subject, order) for order in orders]
    learned = [row for row, v in enumerate(variants) if row and not roles.unlearned(v, orders)]
    ratios = [
        min((table[row][place] for row in learned), default=math.nan) / table[0][place] for place in range(len(orders))
    ]
    above = sum(ratio > 1 for ratio in ratios)
    title = f"Another configuration forgets less than {names[0]} in {len(orders) - above} of {len(orders)} orders"
    figure = Figure("orders_robustness", title, 3, height=0.34 * len(variants) + 1.6)
    heat, ranges, bars = figure.panels
    _heat(heat, table, names, columns)
    heat.set_title("AUFC at the end (nats)")
    for row, (variant, values) in enumerate(zip(variants, table, strict=True)):
        colour = colour_of(roles, variant)
        ranges.plot([min(values), max(values)], [row, row], color=colour, linewidth=2.4, alpha=0.5)
        ranges.plot(mean(values), row, marker_of(roles, variant), color=colour, markerfacecolor=face_of(roles, variant))
    ranges.set_ylim(len(variants) - 0.5, -0.5)
    ranges.set_yticks([])
    ranges.set_xlim(left=0)
    ranges.set_title("mean and range over orders")
    ranges.set_xlabel("AUFC ↓ (nats)")
    bars.bar(range(len(orders)), ratios, 0.7, color=colour_of(roles, variants[0]))
    bars.axhline(1.0, color=ink("grey"), linewidth=0.9)
    bars.set_xticks(range(len(orders)), columns, rotation=45, ha="right")
    bars.set_title(label(f"best other ÷ {names[0]}", 30))
    words = f"Forgetting at the end of every order. Right: above 1, {names[0]} forgets least of those that learned."
    figure.caption = _caption(subject, variants, orders, words)
    return figure


def by_metric(subject: Subject) -> Figure:
    """One heat map per metric, and the means over orders relative to TRC²."""
    roles = subject.roles
    variants, orders = shuffled(subject)
    shown = [
        m
        for m in ("perplexity", "bleu", "token_accuracy")
        if all(m in r.tables for v in variants for r in roles.runs(v, orders))
    ]
    tables = {
        m: cells(subject, Measure(f"{m}_aufc", m, area_at(m), is_forgetting=True), variants, orders) for m in shown
    }
    tables = {m: table for m, table in tables.items() if any(math.isfinite(value) for row in table for value in row)}
    names, columns = [label(roles.title(v), 30) for v in variants], [short(subject, order) for order in orders]
    means = {
        m: [mean([value for value in row if math.isfinite(value)]) for row in table] for m, table in tables.items()
    }
    least = [min(range(len(variants)), key=lambda row, m=m: means[m][row]) == 0 for m in tables]  # type: ignore[misc]
    title = f"Averaged over orders, {names[0]} forgets least by {sum(least)} of {len(tables)} metrics"
    figure = Figure("orders_metrics", title, len(tables) + 1, columns=2, height=0.34 * len(variants) + 1.5)
    for place, (axes, (metric, table)) in enumerate(zip(figure.panels, tables.items(), strict=False)):
        _heat(axes, table, names if place % 2 == 0 else [""] * len(names), columns)
        gained = all(roles.gained(v, metric, orders) for v in variants) if metric in TEXT_TITLES else True
        unit = "nats" if metric == "perplexity" else "share of gain" if gained else "raw"
        axes.set_title(label(f"AUFC, {TEXT_TITLES.get(metric, metric)} ({unit})"))
    last = figure.panels[len(tables)]
    wide = 0.8 / len(tables)
    for place, (metric, values) in enumerate(means.items()):
        base = values[0] or math.nan
        for row, (variant, value) in enumerate(zip(variants, values, strict=True)):
            height = row - 0.4 + wide * (place + 0.5)
            last.barh(height, value / base, wide * 0.9, color=colour_of(roles, variant), alpha=1 - 0.3 * place)
            name = f" {TEXT_TITLES.get(metric, metric)}"
            last.text(value / base, height, name, va="center", fontsize=6.5, color=ink("grey"))
    last.axvline(1.0, color=ink("grey"), linewidth=0.9)
    last.set_ylim(len(variants) - 0.5, -0.5)
    last.set_yticks(range(len(variants)), names if len(tables) % 2 == 0 else [""] * len(names))
    last.set_title(label(f"mean over orders ÷ {names[0]}", 40))
    words = "Forgetting by metric, configuration and order. Units differ, so the means are relative to TRC²."
    figure.caption = _caption(subject, variants, orders, words)
    return figure


def at_window_completion(subject: Subject) -> Figure:
    """Perplexity of each task at the end of its own training, by its place in the order."""
    roles = subject.roles
    variants, orders = shuffled(subject)
    figure = Figure("orders_boundary", " ", len(subject.tasks), height=2.8)
    wins = total = 0
    for axes, task in zip(figure.panels, subject.tasks, strict=True):
        table = cells(subject, Measure(f"{task}/own", task, own_score(task), is_log=True), variants, orders)
        by_place = sorted(range(len(orders)), key=lambda column: (orders[column].split(" → ").index(task), column))
        for row, variant in enumerate(variants):
            xs = [place + 0.5 * (row + 0.5) / len(variants) - 0.25 for place in range(len(orders))]
            axes.plot(xs, [table[row][column] for column in by_place], marker_of(roles, variant), markersize=5,
                      color=colour_of(roles, variant), markerfacecolor=face_of(roles, variant))  # fmt: skip
        wins += sum(min(range(len(variants)), key=lambda r: table[r][c]) == 0 for c in range(len(orders)))
        total += len(orders)
        axes.set_xticks(
            range(len(orders)), [short(subject, orders[column]) for column in by_place], rotation=45, ha="right"
        )
        axes.set_yscale("log")
        plain_log_ticks(axes.yaxis)
        axes.set_title(label(subject.task_title(task)))
    figure.panels[0].set_ylabel("perplexity ↓")
    title = f"{roles.title(variants[0])} has the lowest perplexity in {wins} of {total} windows"
    retitle(figure, title)
    add_legend(figure, roles, variants, [roles.title(variant) for variant in variants], 2)
    words = "Perplexity right after each task's own training; orders from the task first to the task last. Log scale."
    figure.caption = _caption(subject, variants, orders, words)
    return figure
