"""Pictures of runs. Any number of tasks and runs can be told apart."""

from __future__ import annotations

import math
import textwrap
from pathlib import Path
from typing import Any

from trc2.errors import plain
from trc2.files import write_atomically
from trc2.metrics.forgetting import Stretch, aufc_curve, mean
from trc2.report.finished import FinishedRun
from trc2.report.plots.ticks import linear_ticks, log_ticks, quiet_axis
from trc2.report.signals import WRITES, train_curve, worth_showing

# Okabe–Ito, told apart also without full colour vision; its yellow is hard to see on white, so brown stands for it.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F3F00", "#000000")
STYLES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
SHADES = ("#f4f6f8", "#e9eef3")
FEW, MANY = 6, 20  # more names than this do not fit above a panel, and more numbers than that neither
LEGEND_COLUMNS, LEGEND_ROW = 6, 0.25  # inches
MAX_PIXELS = 2**15  # of a picture's longer side; beyond twice that none can be saved


def look(index: int) -> dict[str, Any]:
    """How the line of a task or a run is drawn: colours repeat after 8, and then with another style and marker."""
    return {
        "color": COLOURS[index % len(COLOURS)],
        "linestyle": STYLES[index // len(COLOURS) % len(STYLES)],
        "marker": MARKERS[index % len(MARKERS)],
        "markersize": 4,
    }


def new_figure(width: float, height: float) -> Any:
    from trc2.report.plots.inline import InlineFigure  # matplotlib takes a while to import

    return InlineFigure(figsize=(width, height), layout="constrained")


def save(figure: Any, path: Path) -> None:
    """As PNG, whole or not at all."""
    write_atomically(path, figure.png())


def label(text: str, limit: int = 40) -> str:
    """A name in a picture: matplotlib would read formulas between dollars and hide what begins with an underscore."""
    text = " ".join(plain(text).split())
    text = text if len(text) <= limit else f"…{text[1 - limit :]}"
    return f" {text}".replace("$", r"\$")


def plot(axes: Any, points: list[tuple[int, float]], **line: Any) -> None:
    """A line with gaps where a value is not finite, and with about forty markers at most."""
    values = [value if math.isfinite(value) else math.nan for _, value in points]
    axes.plot([step for step, _ in points], values, markevery=max(1, len(points) // 40), **line)


def add_legend(figure: Any, axes: Any) -> None:
    """One legend below all panels, which grow as it does."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        width, height = figure.get_size_inches()
        columns = min(LEGEND_COLUMNS, max(1, int(width // 1.6)), len(handles))
        figure.set_size_inches(width, height + LEGEND_ROW * math.ceil(len(handles) / columns))
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=8, frameon=False)


def names(tasks: list[str]) -> dict[str, str]:
    """How tasks are called in a picture: many get numbers, since names would overlap above the panels."""
    if len(tasks) <= FEW:
        return {task: task for task in tasks}
    return {task: f"{number} {task}" for number, task in enumerate(tasks, start=1)}


def tidy(axes: Any, stretches: tuple[Stretch, ...], called: dict[str, str], end: int, title: str) -> None:
    """Task stretches as shaded bands with their names, or numbers, on top; whole steps up to `end`; no frame."""
    bands: dict[tuple[int, int], list[str]] = {}
    for stretch in stretches:
        if stretch.end > 0:  # what a parent had learnt has no steps here
            bands.setdefault((stretch.start, stretch.end), []).append(called[stretch.task])
    every = math.ceil(len(bands) / MANY)
    for index, ((start, stop), here) in enumerate(bands.items()):
        axes.axvspan(start, stop, color=SHADES[index % 2], zorder=0, linewidth=0)
        text = here[0] if len(here) == 1 else f"{len(here)} tasks at once"
        if len(bands) > FEW:
            text = text.split()[0] if index % every == 0 else ""
        middle = (start + stop) / 2
        axes.text(middle, 1.01, text, transform=axes.get_xaxis_transform(), ha="center", fontsize=8, color="#555")
    axes.set_xlim(-0.02 * end, 1.02 * end)  # the markers of the first and the last step are whole
    linear_ticks(axes.xaxis, whole=True)
    axes.set_xlabel("optimizer step", fontsize=8)
    axes.set_title(title, loc="left", fontsize=10, pad=16)
    axes.tick_params(labelsize=8, which="both")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def draw_perplexity(axes: Any, run: FinishedRun, task: str, **line: Any) -> None:
    table = run.tables["perplexity"]
    points = [(step, table.scores[step][task]) for step in table.steps if table.has(step, task)]
    plot(axes, [(step, value if value > 0 else math.nan) for step, value in points], linewidth=1.5, **line)
    axes.set_yscale("log")


def draw_summary(run: FinishedRun, path: Path) -> None:
    save(summary_figure(run), path)


def summary_figure(run: FinishedRun) -> Any:
    """Perplexity of every task over the stream; where something is past, how it changed since, and the area of that."""
    called, end = names(run.tasks), run.stretches[-1].end
    has_past = any(run.tables["perplexity"].past(step) for step in run.tables["perplexity"].steps)
    figure = new_figure(13 if has_past else 5.5, 4)
    left, *others = figure.subplots(1, 3 if has_past else 1, squeeze=False)[0]
    for index, stretch in enumerate(run.stretches):
        draw_perplexity(left, run, stretch.task, label=label(called[stretch.task]), **look(index))
    tidy(left, run.stretches, called, end, "validation perplexity")
    log_ticks(left)
    if has_past:
        left.plot([], [], color="#222", linewidth=2.2, label="mean of past tasks (middle, right)")
        _draw_changes(others[0], run)
        tidy(others[0], run.stretches, called, end, "forgotten since its own training (nats)")
        _draw_areas(others[1], run)
        tidy(others[1], run.stretches, called, end, "area under the forgetting curve (nats)")
        for axes in others:
            at_least(axes, 0.1)
    add_legend(figure, left)
    return figure


def changes(run: FinishedRun, stretch: Stretch) -> list[tuple[int, float]]:
    """How much worse a task's log-perplexity is than right after its own training, from there on; below 0 is better."""
    table = run.tables["perplexity"]
    after = [step for step in table.steps if step >= stretch.end and table.has(step, stretch.task)]
    post = table.post(stretch)
    return [(step, table.metric.gap(better=post, worse=table.value(step, stretch.task))) for step in after]


def _draw_changes(axes: Any, run: FinishedRun) -> None:
    """Forgetting with its sign: rising is lost, falling is gained."""
    axes.axhline(0.0, color="#777", linewidth=0.8, zorder=1)
    total: dict[int, list[float]] = {}
    for index, stretch in enumerate(run.stretches):
        points = changes(run, stretch)
        if len(points) > 1:
            plot(axes, points, linewidth=1.2, **look(index))
        for step, value in points:
            if step > stretch.end:
                total.setdefault(step, []).append(value)
    means = [(step, sum(values) / len(values)) for step, values in sorted(total.items())]
    plot(axes, means, color="#222", linewidth=2.2, zorder=3)


def _draw_areas(axes: Any, run: FinishedRun) -> None:
    areas = aufc_curve(run.tables["perplexity"])
    for index, stretch in enumerate(run.stretches):
        points = [(step, values[stretch.task]) for step, values in areas if stretch.task in values]
        plot(axes, points, linewidth=1.2, **look(index))
    draw_mean_area(axes, run, color="#222", linewidth=2.2, zorder=3)


def draw_mean_area(axes: Any, run: FinishedRun, **line: Any) -> None:
    """AUFC over the stream, its mean over past tasks."""
    means = [(step, mean(list(values.values()))) for step, values in aufc_curve(run.tables["perplexity"])]
    plot(axes, [(step, value) for step, value in means if value is not None], **line)


def at_least(axes: Any, height: float) -> None:
    """An axis with 0 on it that is not filled by next to nothing."""
    low, high = axes.get_ylim()
    high = max(high, height)
    axes.set_ylim(min(low, -0.03 * high), high)
    linear_ticks(axes.yaxis)


def draw_hippocampus(run: FinishedRun, path: Path) -> None:
    save(hippocampus_figure(run), path)


def hippocampus_figure(run: FinishedRun) -> Any:
    """The paper's panels of write dynamics, without those that would only repeat another or stay at one number."""
    shown, said = worth_showing([run], WRITES)
    columns = 2 if len(shown) == 4 else min(3, len(shown))  # no panel stands alone in its row beside two empty places
    rows = math.ceil(len(shown) / columns)
    figure = new_figure(max(6.0, 4.2 * columns), 3 * rows)
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes, (name, title) in zip(panels, shown, strict=False):
        curve = train_curve(run, name)
        plot(axes, curve, color=COLOURS[0], linewidth=1.0)
        tidy(axes, run.stretches, names(run.tasks), run.stretches[-1].end, title)
        quiet_axis(axes, [value for _, value in curve])
    for axes in panels[len(shown) :]:
        axes.set_visible(False)
    if said:
        width, height = figure.get_size_inches()
        lines = textwrap.wrap(said.strip(), int(width / 0.07))
        figure.set_size_inches(width, height + 0.2 * len(lines))
        figure.supxlabel("\n".join(lines), fontsize=8, color="#555", x=0.01, ha="left")
    return figure


def draw_comparison(runs: list[FinishedRun], path: Path) -> None:
    """Perplexity of every task, one panel each, and AUFC: one line per run."""
    tasks = runs[0].tasks
    count = len(tasks) + 1
    columns = min(4, count)
    rows = math.ceil(count / columns)
    figure = new_figure(4.2 * columns, 3.6 * rows)
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    most = max(runs, key=lambda run: len({stretch.start for stretch in run.stretches})).stretches
    called, end = names(tasks), max(run.stretches[-1].end for run in runs)
    for axes, task in zip(panels, tasks, strict=False):
        for number, run in enumerate(runs):
            draw_perplexity(axes, run, task, label=label(run.name), **look(number))
        tidy(axes, most, called, end, f"{called[task]}: validation perplexity")
        log_ticks(axes)
    for number, run in enumerate(runs):
        draw_mean_area(panels[count - 1], run, linewidth=1.5, **look(number))
    tidy(panels[count - 1], most, called, end, "forgetting area (mean of past tasks, nats)")
    at_least(panels[count - 1], 0.1)
    for axes in panels[count:]:
        axes.set_visible(False)
    add_legend(figure, panels[0])
    save(figure, path)
