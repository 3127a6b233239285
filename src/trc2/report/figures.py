"""Pictures of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trc2.metrics.forgetting import aufc, mean
from trc2.report.runs import FinishedRun

# Okabe–Ito: told apart also without full colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
SHADES = ("#f4f6f8", "#e9eef3")


def new_figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def tidy(axes: Any, run: FinishedRun, title: str) -> None:
    """Task stretches as shaded bands with their names on top; no frame."""
    low, high = 0, run.stretches[-1].end
    for index, stretch in enumerate(run.stretches):
        axes.axvspan(stretch.start, stretch.end, color=SHADES[index % 2], zorder=0, linewidth=0)
        middle = (stretch.start + stretch.end) / 2
        axes.text(
            middle, 1.01, stretch.task, transform=axes.get_xaxis_transform(), ha="center", fontsize=8, color="#555"
        )
    axes.set_xlim(low, high)
    axes.set_title(title, loc="left", fontsize=10, pad=16)
    axes.tick_params(labelsize=8, which="both")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def draw_summary(run: FinishedRun, path: Path) -> None:
    """Perplexity of every task over the stream, and the area under the forgetting curve."""
    figure = new_figure(10, 4)
    left, right = figure.subplots(1, 2)
    table = run.tables["perplexity"]
    for index, stretch in enumerate(run.stretches):
        steps = [step for step in table.steps if table.has(step, stretch.task)]
        values = [table.scores[step][stretch.task] for step in steps]
        left.plot(steps, values, "o-", markersize=3, color=COLOURS[index], label=stretch.task, linewidth=1.6)
    left.set_yscale("log")
    left.set_xlabel("optimizer step", fontsize=8)
    left.legend(fontsize=8, frameon=False)
    tidy(left, run, "validation perplexity")
    draw_aufc(right, [run], "area under the forgetting curve (log-perplexity)")
    figure.savefig(path, dpi=150)


def draw_aufc(axes: Any, runs: list[FinishedRun], title: str) -> None:
    """AUFC over the stream, its mean over past tasks; one line per run, per task where there is one run."""
    for number, run in enumerate(runs):
        table = run.tables["perplexity"]
        areas = [(step, aufc(table, step)) for step in table.steps]
        areas = [(step, values) for step, values in areas if values]
        means = [mean(list(values.values())) for _, values in areas]
        label = run.name if len(runs) > 1 else "mean of past tasks"
        colour = COLOURS[number] if len(runs) > 1 else "#222"
        axes.plot([step for step, _ in areas], means, "o-", markersize=3, color=colour, label=label, linewidth=1.8)
        if len(runs) == 1:
            for index, stretch in enumerate(run.stretches):
                points = [(step, values[stretch.task]) for step, values in areas if stretch.task in values]
                if points:
                    axes.plot(*zip(*points, strict=True), "--", color=COLOURS[index], label=stretch.task, linewidth=1.2)
    axes.set_xlabel("optimizer step", fontsize=8)
    axes.set_ylim(bottom=0)
    if axes.lines and any(len(line.get_xdata()) for line in axes.lines):
        axes.legend(fontsize=8, frameon=False)
    tidy(axes, runs[0], title)


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
        axes.plot(steps, values, color=COLOURS[0], linewidth=1.0)
        tidy(axes, run, title)
    figure.savefig(path, dpi=150)


def draw_comparison(runs: list[FinishedRun], path: Path) -> None:
    """Perplexity of every task, one panel each, and AUFC: one line per run."""
    stretches = runs[0].stretches
    figure = new_figure(4.2 * (len(stretches) + 1), 3.6)
    panels = figure.subplots(1, len(stretches) + 1)
    for axes, stretch in zip(panels, stretches, strict=False):
        for number, run in enumerate(runs):
            table = run.tables["perplexity"]
            steps = [step for step in table.steps if table.has(step, stretch.task)]
            values = [table.scores[step][stretch.task] for step in steps]
            axes.plot(steps, values, "o-", markersize=3, color=COLOURS[number], label=run.name, linewidth=1.5)
        axes.set_yscale("log")
        axes.set_xlabel("optimizer step", fontsize=8)
        tidy(axes, runs[0], f"{stretch.task}: validation perplexity")
    draw_aufc(panels[-1], runs, "forgetting area (mean of past tasks)")
    figure.savefig(path, dpi=150)
