"""Pictures of runs. Any number of tasks and runs can be told apart."""

from __future__ import annotations

import io
import math
import warnings
from pathlib import Path
from typing import Any

from trc2.errors import plain
from trc2.files import write_atomically
from trc2.metrics.forgetting import Stretch, aufc_curve, mean
from trc2.report.finished import FinishedRun

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
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save(figure: Any, path: Path) -> None:
    """As PNG, whole or not at all."""
    content = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # a name in a script the font lacks is no reason to stop
        figure.savefig(content, format="png", dpi=min(150, MAX_PIXELS / max(figure.get_size_inches())))
    write_atomically(path, content.getvalue())


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
    from matplotlib.ticker import MaxNLocator

    bands: dict[tuple[int, int], list[str]] = {}
    for stretch in stretches:
        bands.setdefault((stretch.start, stretch.end), []).append(called[stretch.task])
    every = math.ceil(len(bands) / MANY)
    for index, ((start, stop), here) in enumerate(bands.items()):
        axes.axvspan(start, stop, color=SHADES[index % 2], zorder=0, linewidth=0)
        text = here[0] if len(here) == 1 else f"{len(here)} tasks at once"
        if len(bands) > FEW:
            text = text.split()[0] if index % every == 0 else ""
        middle = (start + stop) / 2
        axes.text(middle, 1.01, text, transform=axes.get_xaxis_transform(), ha="center", fontsize=8, color="#555")
    axes.set_xlim(-0.01 * end, 1.01 * end)  # the markers of the first and the last step are whole
    axes.xaxis.set_major_locator(MaxNLocator(nbins="auto", integer=True))
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
    """Perplexity of every task over the stream, and the area under the forgetting curve."""
    figure = new_figure(10, 4)
    left, right = figure.subplots(1, 2)
    called, end = names(run.tasks), run.stretches[-1].end
    for index, stretch in enumerate(run.stretches):
        draw_perplexity(left, run, stretch.task, label=label(called[stretch.task]), **look(index))
    left.plot([], [], color="#222", linewidth=2.2, label="mean of past tasks (right)")
    tidy(left, run.stretches, called, end, "validation perplexity")
    areas = aufc_curve(run.tables["perplexity"])
    for index, stretch in enumerate(run.stretches):
        points = [(step, values[stretch.task]) for step, values in areas if stretch.task in values]
        plot(right, points, linewidth=1.2, **look(index))
    draw_mean_area(right, run, color="#222", linewidth=2.2, zorder=3)
    tidy(right, run.stretches, called, end, "area under the forgetting curve (log-perplexity)")
    add_legend(figure, left)
    save(figure, path)


def draw_mean_area(axes: Any, run: FinishedRun, **line: Any) -> None:
    """AUFC over the stream, its mean over past tasks."""
    means = [(step, mean(list(values.values()))) for step, values in aufc_curve(run.tables["perplexity"])]
    plot(axes, [(step, value) for step, value in means if value is not None], **line)
    axes.set_ylim(bottom=0)


HIPPOCAMPUS = (
    ("surprise_mean", "mean surprise"),
    ("surprise_max", "largest surprise"),
    ("threshold", "write threshold τ"),
    ("keep_fraction", "writes ÷ candidates"),
    ("raw_fraction", "share above τ before its update"),
    ("writes", "writes per step"),
)


def draw_hippocampus(run: FinishedRun, path: Path) -> None:
    """The paper's six panels of write dynamics."""
    figure = new_figure(10, 6)
    for axes, (name, title) in zip(figure.subplots(3, 2).flat, HIPPOCAMPUS, strict=True):
        steps, values = run.series("train", f"hippocampus/{name}")
        plot(axes, list(zip(steps, values, strict=True)), color=COLOURS[0], linewidth=1.0)
        tidy(axes, run.stretches, names(run.tasks), run.stretches[-1].end, title)
    save(figure, path)


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
    for number, run in enumerate(runs):
        draw_mean_area(panels[count - 1], run, linewidth=1.5, **look(number))
    tidy(panels[count - 1], most, called, end, "forgetting area (mean of past tasks)")
    for axes in panels[count:]:
        axes.set_visible(False)
    add_legend(figure, panels[0])
    save(figure, path)
