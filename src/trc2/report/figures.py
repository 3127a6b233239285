"""The figures of a report: what any set of runs of one stream can show."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.ticker import EngFormatter

from trc2.metrics.forgetting import TaskSpan, mean
from trc2.report.run import AUFC, FLOPS, FORGETTING, OWN_LOSS, Measure, Run
from trc2.report.runs import RunTable
from trc2.report.tables import NotWritten
from trc2.system.numbers import exponential, number_text
from trc2.system.plot_style import (
    MARKERS,
    MAX_SERIES,
    Figure,
    ink,
    label,
    label_ends,
    label_points,
    palette,
    plain_log_ticks,
    shorten,
)

Points = list[tuple[int, float]]
MAX_ROWS = 30  # variants in one figure with a row each
MAX_POINTS = 300  # of a line of training records

# ------------------------------------------------------------------------------------------------------ what is drawn


def drawn_variants(table: RunTable, variants: Sequence[str] | None = None) -> dict[str, tuple[str, str]]:
    """At most six variants with their colour and marker, the same in every figure of a report.

    Of more than six: the reference, and others evenly spread over the ranking by final loss, with its best and last.
    """
    chosen = list(table.learned if variants is None else variants) or list(table.competitors)
    if len(chosen) > MAX_SERIES:
        means = table.means(table.final_loss)["mean"]
        ranked = sorted((v for v in chosen if v in means.index), key=lambda v: (math.isnan(means[v]), means[v]))
        keep = dict.fromkeys([table.reference] if table.reference in ranked else [])
        others = [variant for variant in ranked if variant not in keep]
        places = np.linspace(0, len(others) - 1, MAX_SERIES - len(keep)).round().astype(int)
        keep |= dict.fromkeys(others[place] for place in places)
        chosen = [variant for variant in chosen if variant in keep]
    looks = dict(zip(palette(), MARKERS, strict=True))
    usual = {} if variants is None else drawn_variants(table)
    taken = {variant: usual[variant] for variant in chosen if variant in usual}
    free = [look for look in looks.items() if look not in taken.values()]
    return {variant: taken.get(variant) or free.pop(0) for variant in chosen}


def variant_curve(table: RunTable, variant: str, points: Callable[[Run], Points]) -> pd.DataFrame:
    """A curve of a variant by step: mean, lowest and highest over seeds, at steps that all seeds have."""
    seeds: dict[int, list[pd.Series]] = {}
    for run in table.runs_of(variant):
        curve = points(run)
        if curve:
            seeds.setdefault(run.config.train.seed, []).append(pd.Series(dict(curve), dtype=float))
    if not seeds:
        return pd.DataFrame(columns=["mean", "low", "high"])
    by_seed = [pd.concat(draws, axis=1, join="inner").mean(axis=1, skipna=False) for draws in seeds.values()]
    frame = pd.concat(by_seed, axis=1, join="inner").replace([np.inf, -np.inf], np.nan)
    ends = {"mean": frame.mean(axis=1, skipna=False), "low": frame.min(axis=1), "high": frame.max(axis=1)}
    return pd.DataFrame(ends).sort_index()


def log_perplexities(task: str) -> Callable[[Run], Points]:
    def points(run: Run) -> Points:
        table = run.perplexity
        return [(step, table.value(step, task)) for step in table.steps if table.has(step, task)]

    return points


def changes(run: Run, span: TaskSpan) -> Points:
    """How much worse a task's log-perplexity is than right after its own training. Below 0 it is better."""
    table = run.perplexity
    after = [step for step in table.steps if step >= span.end and table.has(step, span.task)]
    post = table.post(span)
    return [(step, table.metric.gap(better=post, worse=table.value(step, span.task))) for step in after]


def mean_changes(run: Run) -> Points:
    """The mean of `changes` over the tasks that are past."""
    by_step: dict[int, list[float]] = {}
    for span in run.spans:
        for step, value in changes(run, span):
            if step > span.end:
                by_step.setdefault(step, []).append(value)
    return [(step, sum(values) / len(values)) for step, values in sorted(by_step.items())]


def draw_curve(axes: Any, curve: pd.DataFrame, colour: str, transform: Callable[[Any], Any] = np.asarray) -> float:
    """A line with a band from the lowest to the highest seed. Returns the height of its end."""
    if curve.empty:
        return math.nan
    steps = curve.index.to_numpy()
    axes.plot(steps, transform(curve["mean"]), color=colour)
    axes.fill_between(steps, transform(curve.low), transform(curve.high), color=colour, alpha=0.18, linewidth=0)
    return float(np.asarray(transform(curve["mean"]))[-1])


def draw_tasks(axes: Any, spans: Iterable[TaskSpan], titles: dict[str, str], end: int) -> None:
    """Shaded bands for the tasks' own training, with their names above where there is room."""
    bands: dict[tuple[int, int], list[str]] = {}
    for span in spans:
        if span.end > 0:  # tasks that a parent learned have no steps here
            bands.setdefault((span.start, span.end), []).append(span.task)
    width = axes.get_position().width * axes.figure.get_size_inches()[0] if axes.figure else 3.0
    for index, ((start, stop), tasks) in enumerate(bands.items()):
        axes.axvspan(start, stop, color=ink("bands").split()[index % 2], zorder=0, linewidth=0)
        text = titles.get(tasks[0], tasks[0]) if len(tasks) == 1 else f"{len(tasks)} tasks at once"
        room = int(width * (stop - start) / max(1, end) / 0.09)
        if room >= min(len(text), 5):
            place = axes.get_xaxis_transform()
            middle = (start + stop) / 2
            axes.text(middle, 1.01, label(text, room), transform=place, ha="center", fontsize=8, color=ink("grey"))
    axes.set_xlim(0, end)
    axes.set_xlabel("optimizer step")
    axes.xaxis.get_major_locator().set_params(integer=True, nbins=5)


def _shaded_spans(table: RunTable, variants: Iterable[str]) -> tuple[tuple[TaskSpan, ...], int]:
    """The tasks' stretches that are shaded, and the last step."""
    runs = [run for variant in variants for run in table.runs_of(variant)]
    longest = max(runs, key=lambda run: (len({s.start for s in run.spans}), run.end))
    return longest.spans, max(run.end for run in runs)


def data_caption(table: RunTable, variants: Sequence[str]) -> str:
    """For every caption: order, model sizes, length, seeds."""
    rows = table.variants.loc[list(variants)]
    order = " → ".join(table.task_titles.get(task, task) for task in table.order.split(" → "))
    sizes = sorted({f"{count / 1e6:.2g}" for count in rows.parameters}, key=float)
    size = f"{sizes[0]} to {sizes[-1]}" if len(sizes) > 1 else sizes[0]
    seeds = sorted(set(rows.n))
    n = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"{seeds[0]}"
    steps = max(run.end for variant in variants for run in table.runs_of(variant))
    return f"{order}; {size} million parameters; {steps:,} steps; n = {n} seed{'s' if n != '1' else ''}."


def selection_caption(table: RunTable, drawn: Iterable[str]) -> str:
    """Which variants are not drawn, and why."""
    drawn = list(drawn)
    more = len([variant for variant in table.learned if variant not in drawn])
    failed = [variant for variant in table.competitors if variant not in table.learned]
    text = f" Drawn are {len(drawn)} of {len(drawn) + more} variants, spread over the ranking." if more else ""
    if failed:
        text += f" Left out, because they did not learn all their tasks: {', '.join(failed)}."
    return text


def extremes(table: RunTable, measure: Measure, variants: Sequence[str]) -> str:
    """Forgetting is lowest for A (0.2 nats) and highest for B (0.9 nats)."""
    name = measure.title.split(",")[0]
    means = table.means(measure)["mean"]
    means = means.loc[means.index.intersection(list(variants))].dropna()
    if means.empty:
        return f"{name} was not measured".capitalize()
    low, high = str(means.idxmin()), str(means.idxmax())
    numbers = {variant: f"{number_text(means[variant])} {measure.unit}".strip() for variant in (low, high)}
    subject = f"{name[0].upper()}{name[1:]} is"
    if numbers[low] == numbers[high]:
        return f"{subject} {numbers[low]}" + (" for every variant" if len(means) > 1 else "")
    return f"{subject} lowest for {shorten(low)} ({numbers[low]}) and highest for {shorten(high)} ({numbers[high]})"


# ------------------------------------------------------------------------------------------------------ the figures


def curves_figure(table: RunTable) -> Figure:
    """Perplexity of every task over training."""
    drawn = drawn_variants(table)
    tasks = table.all_tasks
    if len(tasks) > 6:
        tasks = [tasks[place] for place in np.linspace(0, len(tasks) - 1, 6).round().astype(int)]
    title = extremes(table, table.final_loss, list(drawn))
    figure = Figure("curves", title, len(tasks))
    spans, end = _shaded_spans(table, drawn)
    ends = []
    for axes, task in zip(figure.panels, tasks, strict=True):
        curves = {variant: variant_curve(table, variant, log_perplexities(task)) for variant in drawn}
        ends.append([(draw_curve(axes, curves[variant], colour, np.exp), variant, colour)
                     for variant, (colour, _) in drawn.items()])  # fmt: skip
        axes.set_yscale("log")
        axes.set_title(label(table.task_titles[task], 30), pad=16)
    figure.lay_out()
    for place, axes in enumerate(figure.panels):
        if place % 3 == 0:
            axes.set_ylabel("validation perplexity")
        draw_tasks(axes, spans, table.task_titles, end)
        plain_log_ticks(axes.yaxis)
        if place % 3 == 2 or place == len(tasks) - 1:
            label_ends(axes, ends[place])
    shown = f" {len(tasks)} of {len(table.all_tasks)} tasks are shown." if len(tasks) < len(table.all_tasks) else ""
    figure.caption = (
        "Validation perplexity of every task over training, log scale. Lines: mean over seeds; bands: lowest to "
        f"highest seed; shaded: the tasks' own training. {data_caption(table, list(drawn))}"
        f"{shown}{selection_caption(table, drawn)}"
    )
    return figure


def forgetting_figure(table: RunTable) -> Figure:
    """How much worse past tasks have become."""
    drawn = drawn_variants(table)
    curves = {variant: variant_curve(table, variant, mean_changes) for variant in drawn}
    if all(curve.empty for curve in curves.values()):
        raise NotWritten("needs runs that train at least two tasks one after another")
    title = extremes(table, FORGETTING, list(drawn))
    figure = Figure("forgetting", title, height=3.4)
    axes = figure.panels[0]
    spans, end = _shaded_spans(table, drawn)
    ends = [(draw_curve(axes, curves[variant], colour), variant, colour) for variant, (colour, _) in drawn.items()]
    axes.axhline(0.0, color=ink("grey"), linewidth=0.8, zorder=1)
    axes.set_ylabel("rise of log-perplexity since\nits own training (nats)")
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, -0.01), max(high, 0.1))
    figure.lay_out()
    draw_tasks(axes, spans, table.task_titles, end)
    label_ends(axes, ends)
    figure.caption = (
        "Mean over past tasks of the rise in log-perplexity since the end of their own training; below 0 they have "
        "become better. A rise of 0.1 nats is about 10 % more perplexity. Lines: mean over seeds; bands: lowest to "
        f"highest seed. {data_caption(table, list(drawn))}{selection_caption(table, drawn)}"
    )
    return figure


def _scatter(table: RunTable, name: str, across: Measure, up: Measure, axis_labels: tuple[str, str]) -> Figure:
    """Learned variants as points with intervals. The drawn ones have colours and names, the others are grey.

    The two variants of the title always have their names.
    """
    drawn = drawn_variants(table)
    x, y = table.means(across), table.means(up)
    shown = [v for v in table.learned if v in x.index and v in y.index]
    shown = [v for v in shown if math.isfinite(x["mean"][v]) and math.isfinite(y["mean"][v])]
    if len(shown) < 2:
        raise NotWritten("needs two variants that learned their tasks")
    figure = Figure(name, extremes(table, up, table.learned), height=4.2)
    axes = figure.panels[0]
    points = {variant: (x["mean"][variant], y["mean"][variant]) for variant in shown}
    in_title = {str(find(shown, key=lambda variant: points[variant][1])): ink("grey") for find in (min, max)}
    named = in_title | {variant: drawn[variant][0] for variant in shown if variant in drawn}
    for variant, point in points.items():
        colour, marker = named.get(variant, ink("pale")), drawn[variant][1] if variant in drawn else "o"
        axes.plot(*point, marker=marker, color=colour, markersize=6.5, zorder=3 if variant in named else 2)
    axes.margins(0.12)
    limits = axes.get_xlim(), axes.get_ylim()
    for variant, colour in named.items():
        for frame, middle, key in ((x, points[variant][0], "xerr"), (y, points[variant][1], "yerr")):
            reach = [[max(0.0, middle - frame.low[variant])], [max(0.0, frame.high[variant] - middle)]]
            if np.isfinite(reach).all():
                axes.errorbar(*points[variant], **{key: reach}, fmt="none", ecolor=colour, elinewidth=1, alpha=0.5)
    axes.set(xlim=limits[0], ylim=limits[1], xlabel=axis_labels[0], ylabel=axis_labels[1])
    if across.unit == "FLOP":
        axes.xaxis.set_major_formatter(EngFormatter(unit=across.unit))
    figure.lay_out()
    label_points(axes, [(*points[variant], variant, colour) for variant, colour in named.items()])
    grey = len(shown) - len(named)
    figure.caption = f"Whiskers: 95 % t-intervals, cut at the frame. {data_caption(table, shown)}"
    figure.caption += f" Grey: {grey} further variants, named in the tables." if grey else ""
    figure.caption += selection_caption(table, shown)
    return figure


def keeping_figure(table: RunTable) -> Figure:
    """Forgetting against how well the tasks were learned."""
    across = "loss right after each task's own training (nats)  ← learned better"
    up = "forgetting at the end (nats)  ↓ kept better"
    figure = _scatter(table, "keeping_learning", OWN_LOSS, FORGETTING, (across, up))
    figure.caption = (
        "How well tasks were learned (across: mean log-perplexity right after their own training) and how much was "
        f"lost since (up: mean rise of past tasks). The best place is the lower left. {figure.caption}"
    )
    return figure


def cost_figure(table: RunTable) -> Figure:
    """Final loss against training FLOPs."""
    costs = table.means(FLOPS)["mean"]
    costs = costs.loc[costs.index.intersection(table.learned)].dropna()
    if len(costs) > 1 and costs.max() <= 1.02 * costs.min():
        raise NotWritten("needs variants whose training costs differ by more than 2 %")
    labels = "training FLOPs of a run  ← cheaper", "final loss (nats)  ↓ better"
    figure = _scatter(table, "cost", FLOPS, table.final_loss, labels)
    figure.caption = (
        "Final loss, the mean log-perplexity of all tasks after the last step, against FLOPs of matrix products in "
        f"training, replay included. {figure.caption}"
    )
    return figure


def final_figure(table: RunTable) -> Figure:
    """Final loss and forgetting of every variant with intervals, best first."""
    means = table.means(table.final_loss)
    rows = means.loc[means.index.intersection(table.learned)].dropna(subset=["mean"]).sort_values("mean")
    if len(rows) < 2:
        raise NotWritten("needs two variants that learned their tasks")
    hidden, rows = max(0, len(rows) - MAX_ROWS), rows.iloc[:MAX_ROWS]
    title = extremes(table, table.final_loss, list(rows.index))
    measures = [table.final_loss, AUFC] if len(table.means(AUFC)) else [table.final_loss]
    figure = Figure("final_scores", title, len(measures), columns=2, height=0.9 + 0.19 * len(rows))
    for axes, measure in zip(figure.panels, measures, strict=True):
        means_of_rows = table.means(measure).reindex(rows.index)
        _rows(axes, means_of_rows, dict.fromkeys(map(str, rows.index), palette()[0]), first=axes is figure.panels[0])
        axes.set_xlabel(f"{measure.title.split(',')[0]} ({measure.unit})  ← better")
    references = [v for v in table.variants.index if v not in table.competitors and v in means.index
                  and len(table.example(v).order) == len(table.all_tasks)]  # fmt: skip
    if references:
        best = min(references, key=lambda variant: means["mean"][variant])
        figure.panels[0].axvline(means["mean"][best], color=ink("grey"), linestyle=":", linewidth=1.2)
    figure.caption = (
        "Final loss, the mean log-perplexity of all tasks after the last step, and forgetting (AUFC), the area under "
        "the forgetting curve; lower is better. Mean over seeds with 95 % t-interval; without a line: one seed. "
        + (f"Dotted: {best}, a reference. " if references else "")
        + data_caption(table, list(rows.index))
        + (f" {hidden} further variants end worse." if hidden else "")
        + selection_caption(table, table.learned)
    )
    return figure


def _rows(axes: Any, frame: pd.DataFrame, colours: dict[str, str], *, first: bool) -> None:
    """One row per variant: a dot with its interval. Names on the left panel only."""
    places = np.arange(len(frame))[::-1]
    middles = frame["mean"].to_numpy()
    span = np.nanmax(middles) - np.nanmin(middles) if np.isfinite(middles).any() else 1.0
    for place, (variant, row) in zip(places, frame.iterrows(), strict=True):
        colour = colours[str(variant)]
        if math.isfinite(row.low) and math.isfinite(row.high):
            axes.plot([row.low, row.high], [place, place], color=colour, alpha=0.45, linewidth=2.2)
        axes.plot([row["mean"]], [place], "o", color=colour, markersize=4.5)
    reach = 0.35 * span if span > 0 else 0.1
    axes.set_xlim(np.nanmin(middles) - reach, np.nanmax(middles) + reach)
    axes.set_ylim(-0.7, len(frame) - 0.3)
    axes.set_yticks(places, [label(str(variant), 46) for variant in frame.index] if first else [""] * len(frame))
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color=ink("pale"), linewidth=0.4, alpha=0.6)


VERDICT_COLOURS = {"better": "#0072B2", "worse": "#D55E00", "equivalent": "#009E73", "undecided": "#8a8a8a"}


def differences_figure(table: RunTable) -> Figure:
    """The reference against every other variant, with verdicts."""
    measures = [table.final_loss, AUFC] if len(table.means(AUFC)) else [table.final_loss]
    differences = {measure.name: table.differences(measure) for measure in measures}
    main = differences[table.final_loss.name]
    rows = [str(variant) for variant in main.sort_values("mean").index if variant in table.learned]
    if not rows:
        raise NotWritten("needs a second variant that learned its tasks on a seed that the reference has too")
    hidden, rows = max(0, len(rows) - MAX_ROWS), rows[:MAX_ROWS]
    counts = main.verdict.loc[rows].value_counts()
    parts = [f"{verdict} in {counts[verdict]}" for verdict in VERDICT_COLOURS if verdict in counts]
    title = f"{shorten(table.reference)} against {len(rows)} variants, final loss: {', '.join(parts)}"
    figure = Figure("differences", title, len(measures), columns=2, height=0.9 + 0.19 * len(rows))
    for axes, measure in zip(figure.panels, measures, strict=True):
        frame = differences[measure.name].reindex(rows)
        colours = {variant: VERDICT_COLOURS.get(str(frame.verdict[variant]), ink("pale")) for variant in rows}
        _rows(axes, frame, colours, first=axes is figure.panels[0])
        axes.axvline(0.0, color=ink("grey"), linewidth=0.8, zorder=1)
        axes.set_title(measure.title.split(",")[0])
        axes.set_xlabel(f"{label(table.reference, 18)} − other ({measure.unit})\n← {label(table.reference, 18)} better")
    tones = "blue: the reference is better, orange: worse, green: equivalent, grey: undecided"
    figure.caption = (
        f"{table.reference} − other variant on equal seeds, mean with 95 % t-interval, cut at the frame. Colours are "
        f"verdicts at a Holm-corrected p below 0.05: {tones}. Without a line: one pair, which decides nothing. "
        f"{data_caption(table, rows)}" + (f" {hidden} further variants are in the table." if hidden else "")
        + selection_caption(table, table.learned)
    )  # fmt: skip
    return figure


STRENGTHS = (
    ("replay/coefficient", "weight of the replay loss"),
    ("replay/share", "share of replayed tokens in a step"),
)


def train_points(path: str) -> Callable[[Run], Points]:
    def points(run: Run) -> Points:
        steps, values = run.series("train", path)
        every = max(1, len(steps) // MAX_POINTS)
        return list(zip(steps[::every], values[::every], strict=True))

    return points


def replay_figure(table: RunTable) -> Figure:
    """What the replay controller did."""
    controlled = [v for v in table.learned if table.example(v).config.control.mode == "closed_loop"]
    panels = []
    for path, title_of_axis in STRENGTHS:
        curves = {v: variant_curve(table, v, train_points(path)) for v in controlled}
        curves = {v: curve for v, curve in curves.items() if not curve.empty and curve["mean"].nunique() > 1}
        if curves:
            panels.append((title_of_axis, curves))
    if not panels:
        raise NotWritten("needs a run with a replay controller (control.mode=closed_loop)")
    last = {variant: curve["mean"].iloc[-1] for variant, curve in panels[0][1].items()}
    low, high = min(last.values()), max(last.values())
    ends = number_text(low) if number_text(low) == number_text(high) else f"{number_text(low)} to {number_text(high)}"
    figure = Figure(
        "replay",
        f"The replay controller ends at a {panels[0][0].split()[0]} of {ends}",
        len(panels),
        columns=1,
        height=3.0,
    )
    for axes, (title_of_axis, curves) in zip(figure.panels, panels, strict=True):
        drawn = drawn_variants(table, list(curves))
        spans, end = _shaded_spans(table, drawn)
        heights = [(draw_curve(axes, curves[v], colour), v, colour) for v, (colour, _) in drawn.items()]
        axes.set_ylabel(title_of_axis)
        axes.set_ylim(bottom=0)
        figure.lay_out()
        draw_tasks(axes, spans, table.task_titles, end)
        label_ends(axes, heights)
    drawn_all = [variant for _, curves in panels for variant in drawn_variants(table, list(curves))]
    figure.caption = (
        "Strength of replay over training, as the controller set it. Lines: mean over seeds; bands: lowest to highest "
        f"seed. {data_caption(table, drawn_all)}"
    )
    return figure


def orders_figure(table: RunTable) -> Figure:
    """Forgetting of variants that were trained in several orders of the tasks."""
    by_order = {order: table.means(AUFC, order=order)["mean"] for order in table.orders}
    frame = pd.DataFrame(by_order)
    frame = frame.loc[[v for v in table.learned if v in frame.index and frame.loc[v].notna().sum() > 1]]
    if frame.empty:
        raise NotWritten("needs a variant that was trained in several orders of the tasks (stream.order)")
    drawn = drawn_variants(table, list(frame.index))
    spread = (frame.max(axis=1) - frame.min(axis=1)).loc[list(drawn)]
    title = f"Forgetting by order of the tasks: the order changes it by {spread.min():.2f} to {spread.max():.2f} nats"
    figure = Figure("orders", title, height=3.6)
    axes = figure.panels[0]
    orders = [order for order in table.orders if frame[order].notna().any()]
    for variant, (colour, marker) in drawn.items():
        axes.plot(range(len(orders)), frame.loc[variant, orders], marker=marker, color=colour, linewidth=0.8)
    names = [
        " →\n".join(label(table.task_titles.get(task, task), 11) for task in order.split(" → ")) for order in orders
    ]
    axes.set_xticks(range(len(orders)), names if len(orders) <= 8 else [str(n + 1) for n in range(len(orders))])
    axes.set_ylim(bottom=0)
    axes.set_ylabel("forgetting (AUFC) at the end (nats)\n↓ better")
    figure.lay_out()
    label_ends(axes, [(frame.loc[variant, orders].iloc[-1], variant, colour) for variant, (colour, _) in drawn.items()])
    figure.caption = (
        "Forgetting (AUFC) at the end of every order of the tasks that a variant was trained in, mean over its seeds "
        f"in that order. {data_caption(table, list(drawn))}"
    )
    return figure


FIGURES: tuple[tuple[str, Callable[[RunTable], Figure]], ...] = (
    ("Perplexity over training", curves_figure),
    ("Forgetting over training", forgetting_figure),
    ("Final scores", final_figure),
    ("Differences", differences_figure),
    ("Keeping against learning", keeping_figure),
    ("Final loss against cost", cost_figure),
    ("Orders of the tasks", orders_figure),
    ("Replay controller", replay_figure),
)


# ------------------------------------------------------------------------------------------------------ one run


MEMORY_SIGNALS = (
    ("hippocampus/surprise_mean", "mean surprise"),
    ("hippocampus/threshold", "write threshold"),
    ("hippocampus/keep_fraction", "share of candidates written"),
)


def run_figure(run: Run, *, is_continued: bool = False) -> Any:
    """One run: the perplexity of every task and, if a task is past, how much worse it has become.

    The steps of a continued run are its own, so tasks of the parent are compared with the parent.
    """
    has_past = any(run.perplexity.past(step) for step in run.perplexity.steps)
    title = f"{run.name}: {_worst_loss(run, is_continued)}"
    figure = Figure("summary", title, 2 if has_past else 1, columns=2, height=3.3)
    drawn = list(run.spans)
    if len(drawn) > MAX_SERIES:
        drawn = [drawn[place] for place in np.linspace(0, len(drawn) - 1, MAX_SERIES).round().astype(int)]
    scores, *rises = figure.panels
    scores.set_title("validation perplexity", pad=16)
    scores.set_yscale("log")
    scored = {
        s.task: [(step, exponential(value) or math.nan) for step, value in log_perplexities(s.task)(run)] for s in drawn
    }
    ends = [(scores, _draw_run(scores, run, scored))]
    plain_log_ticks(scores.yaxis)
    for axes in rises:
        since = "the parent or its own training" if is_continued else "its own training"
        axes.set_title(f"rise of log-perplexity since {since} (nats)", pad=16, fontsize=9)
        axes.axhline(0.0, color=ink("grey"), linewidth=0.8, zorder=1)
        risen = {s.task: changes(run, s) for s in drawn}
        finite = [value for points in risen.values() for _, value in points if math.isfinite(value)]
        axes.set_ylim(min([-0.01, *(1.1 * value for value in finite)]), max([0.1, *(1.1 * value for value in finite)]))
        ends.append((axes, _draw_run(axes, run, {task: points for task, points in risen.items() if len(points) > 1})))
    figure.lay_out()
    for axes, named in ends:
        draw_tasks(axes, run.spans, {}, max(1, run.end))
        label_ends(axes, named)
    return figure.drawing


def _draw_run(axes: Any, run: Run, points: dict[str, Points]) -> list[tuple[float, str, str]]:
    """One line per task, with gaps where a value is not a number. Returns their ends for `label_ends`."""
    ends = []
    for span, colour in zip([s for s in run.spans if s.task in points], palette(), strict=False):
        steps = [step for step, _ in points[span.task]]
        values = [value if math.isfinite(value) else math.nan for _, value in points[span.task]]
        axes.plot(steps, values, color=colour, marker="o", markersize=3)
        ends += [(values[-1], span.task, colour)] if values else []
    return ends


def _worst_loss(run: Run, is_continued: bool) -> str:
    """What the run lost in one clause, for the title of its figure."""
    lost = {task.removeprefix("cl/perplexity/forgetting/"): value for task, value in run.summary().items()
            if task.startswith("cl/perplexity/forgetting/") and math.isfinite(value)}  # fmt: skip
    if not lost:
        return "no task is past yet"
    task = max(lost, key=lambda name: lost[name])
    if lost[task] < 0.005:
        return "no past task became worse"
    since = "in the parent" if is_continued else "right after its own training"
    times = math.exp(min(lost[task], 700))
    rise = f"{times - 1:.0%} higher than" if times < 10 else f"{times:.3g} times that"
    return f"perplexity of {task} is {rise} {since}"


def memory_figure(run: Run) -> Any:
    """What the episodic memory of one run did: surprise, write threshold and the share of candidates written."""
    shown = [(path, title_of_panel) for path, title_of_panel in MEMORY_SIGNALS if run.series("train", path)[0]]
    written = mean(run.series("train", "hippocampus/keep_fraction")[1])
    title = "Episodic memory" if written is None else f"Episodic memory: {written:.0%} of the candidates were written"
    figure = Figure("hippocampus", f"{run.name}. {title}", len(shown), height=2.8)
    for axes, (path, title_of_panel) in zip(figure.panels, shown, strict=True):
        points = train_points(path)(run)
        axes.plot([step for step, _ in points], [value for _, value in points], color=palette()[0], linewidth=1.0)
        axes.set_title(title_of_panel, pad=16)
        axes.set_ylim(bottom=min(0.0, *(value for _, value in points if math.isfinite(value)), 0.0))
    figure.lay_out()
    for axes in figure.panels:
        draw_tasks(axes, run.spans, {task: task for task in run.tasks}, max(1, run.end))
    return figure.drawing
