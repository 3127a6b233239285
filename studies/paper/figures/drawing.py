"""What the figures of the study share: whose runs, in which colours, and the caption that says what the data are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from studies.paper.roles import Roles, mean
from trc2.metrics.forgetting import aufc
from trc2.report.run import Measure, Run, own_score
from trc2.report.variants import FAMILIES
from trc2.stats.intervals import Moments, moments
from trc2.system.numbers import quantity
from trc2.system.plot_style import Figure, ink, label

TEXT_TITLES = {"bleu": "BLEU", "token_accuracy": "token accuracy"}
Curve = list[tuple[int, float]]
COUNTS = ("unigram", "bigram", "trigram")


@dataclass(frozen=True)
class Subject:
    """What is drawn: the runs by role, and references that do not come from runs."""

    roles: Roles
    counts: dict[str, dict[str, float]] = field(default_factory=dict)
    verify: Path | None = None

    @property
    def tasks(self) -> list[str]:
        return self.roles.table.tasks

    def task_title(self, task: str) -> str:
        return self.roles.table.task_titles[task]


def colour_of(roles: Roles, variant: str) -> str:
    return FAMILIES.get(roles.table.variants.backbone[variant], ("", "#777777", ""))[1]


def marker_of(roles: Roles, variant: str) -> str:
    return FAMILIES.get(roles.table.variants.backbone[variant], ("", "", ">"))[2]


def face_of(roles: Roles, variant: str) -> str:
    """Markers are filled with replay and hollow without."""
    return colour_of(roles, variant) if roles.table.variants.replays[variant] else ink("ground")


FILLED = "Filled: with replay. Hollow: without."


def family_of(roles: Roles, variant: str) -> str:
    return str(roles.table.variants.family[variant])


def scale_words(subject: Subject, variants: Iterable[str]) -> str:
    """Data, sizes, steps and seeds below every figure."""
    table, chosen = subject.roles.table, list(variants)
    rows = table.variants.loc[chosen]
    sizes = [quantity(float(count)) for count in (rows.parameters.min(), rows.parameters.max())]
    size = sizes[0] if sizes[0] == sizes[1] else f"{sizes[0]} to {sizes[1]}"
    counts = sorted({int(n) for n in rows.n})
    n = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    steps = max(run.end for variant in chosen for run in subject.roles.runs(variant))
    order = " → ".join(subject.task_title(task) for task in table.order.split(" → "))
    return f"{order}, {size} parameters, {steps:,} steps of {min(rows.tokens_per_step):,} new tokens, n = {n} seeds."


def text_metric(run: Run, task: str) -> str | None:
    """The paper's text score: token accuracy where texts have several fields, BLEU for running text."""
    assert run.config.stream is not None
    layout = next(entry.format for entry in run.config.stream.tasks if entry.name == task)
    wanted = "token_accuracy" if layout == "gsm8k" or layout.count("{") > 1 else "bleu"
    return next((name for name in (wanted, "token_accuracy") if name in run.tables), None)


def boundary_measures(subject: Subject) -> list[Measure]:
    """Perplexity and text score of every task right after its own training."""
    table = subject.roles.table
    run = next(iter(table.by_name.values()))
    found = [
        Measure(f"{task}/perplexity", f"{subject.task_title(task)} perplexity", own_score(task), is_log=True)
        for task in subject.tasks
    ]
    for task in subject.tasks:
        metric = text_metric(run, task)
        if metric is not None:
            title, unit = f"{subject.task_title(task)} {TEXT_TITLES[metric]}", "%" if metric == "token_accuracy" else ""
            factor = 100.0 if metric == "token_accuracy" else 1.0
            found.append(Measure(f"{task}/{metric}", title, own_score(task, metric), "higher", unit, factor=factor))
    return found


# --------------------------------------------------------------------------------------------------------- curves


def score_curve(run: Run, metric: str, task: str) -> Curve:
    """The score of a task over the stream, without the untrained network."""
    table = run.tables.get(metric)
    if table is None:
        return []
    return [(step, table.scores[step][task]) for step in table.steps if step > 0 and table.has(step, task)]


def area_curve(run: Run, metric: str = "perplexity") -> Curve:
    """AUFC over the stream, mean over past tasks."""
    table = run.tables.get(metric)
    if table is None:
        return []
    areas = {step: list(aufc(table, step).values()) for step in table.steps}
    return [(step, mean(values)) for step, values in areas.items() if values]


def signal_curve(run: Run, path: str, most: int = 300) -> Curve:
    """A signal of the training log, averaged over neighbouring logged steps so that at most `most` points remain."""
    points = list(zip(*run.series("train", path), strict=True))
    if path == "train/loss_replay":
        points = [(step, value) for step, value in points if value != 0]  # steps that had nothing to replay
    every = max(1, math.ceil(len(points) / most))
    parts = [points[at : at + every] for at in range(0, len(points), every)]
    return [(part[-1][0], mean([value for _, value in part])) for part in parts]


@dataclass(frozen=True)
class Band:
    """A mean over seeds with its spread, by step."""

    steps: list[int]
    middle: list[float]
    low: list[float]
    high: list[float]


def average(curves: Sequence[Curve], spread: Callable[[Moments], float], *, is_log: bool = False) -> Band | None:
    """The mean and its spread at the steps that all curves have. On a log axis those of the logarithms."""
    curves = [curve for curve in curves if curve]
    if not curves:
        return None
    tables = [dict(curve) for curve in curves]
    shared = sorted(set.intersection(*map(set, tables)))
    rows = []
    for step in shared:
        values = [table[step] for table in tables]
        known = moments([math.log(v) if v > 0 else math.nan for v in values] if is_log else values)
        half = spread(known) if known.n > 1 else 0.0
        ends = (known.mean, known.mean - half, known.mean + half)
        rows.append([math.exp(end) for end in ends] if is_log else list(ends))
    return Band(shared, *(list(column) for column in zip(*rows, strict=True)))


def draw_band(axes: Any, band: Band, colour: str, *, is_main: bool = True, **line: Any) -> None:
    width = 2.0 if is_main else 0.9
    axes.plot(band.steps, band.middle, color=colour, linewidth=width, zorder=4 if is_main else 3, **line)
    if is_main and band.low != band.middle:
        axes.fill_between(band.steps, band.low, band.high, color=colour, alpha=0.18, linewidth=0, zorder=2)


def standard_error(known: Moments) -> float:
    return known.standard_error


def standard_deviation(known: Moments) -> float:
    return known.sd


def draw_counts(axes: Any, subject: Subject, task: str, *, vertical: bool = False) -> bool:
    """Perplexities of count tables as dotted lines. Whether there are any."""
    known = subject.counts.get(task, {})
    names = [name for name in COUNTS[1:] if name in known]  # unigrams are far off and would flatten the rest
    for name in names:
        (axes.axvline if vertical else axes.axhline)(known[name], color=ink("grey"), linewidth=0.8, linestyle=":")
        place = {"x": known[name], "y": 0.98, "rotation": 90, "va": "top", "ha": "right"} if vertical else {
            "x": 0.01, "y": known[name], "va": "bottom", "ha": "left"}  # fmt: skip
        transform = axes.get_xaxis_transform() if vertical else axes.get_yaxis_transform()
        axes.text(place.pop("x"), place.pop("y"), label(name), transform=transform, fontsize=7.5,
                  color=ink("grey"), **place)  # fmt: skip
    return bool(names)


def counts_words(is_drawn: bool) -> str:
    return " Dotted: tables of counts trained on the same tokens." if is_drawn else ""


def plot_point(
    axes: Any, x: tuple[float, float, float], y: tuple[float, float, float], colour: str, marker: str, face: str
) -> None:
    """A marker at (mean, low, high) of both coordinates with the intervals as whiskers."""
    errors = {}
    for name, (middle, low, high) in (("xerr", x), ("yerr", y)):
        if math.isfinite(low) and math.isfinite(high):
            errors[name] = [[max(0.0, middle - low)], [max(0.0, high - middle)]]
    axes.errorbar(x[0], y[0], **errors, fmt=marker, color=colour, markerfacecolor=face, markersize=6, elinewidth=0.9,
                  zorder=4)  # fmt: skip


def add_legend(figure: Figure, roles: Roles, variants: Sequence[str], names: Sequence[str], columns: int = 4) -> None:
    """Markers and names below all panels."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], linestyle="none", marker=marker_of(roles, v), color=colour_of(roles, v), markersize=6,
               markerfacecolor=face_of(roles, v), label=label(name))
        for v, name in zip(variants, names, strict=True)
    ]  # fmt: skip
    figure.drawing.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=8.5)


def retitle(figure: Figure, title: str) -> None:
    """A title that is known only after drawing."""
    figure.title = title
    figure.drawing.suptitle(label(title, 120), x=0.01, ha="left", fontsize=11, fontweight="bold")


def listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
