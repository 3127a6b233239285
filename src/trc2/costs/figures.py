"""Bench results as a table and as pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.table import Table

from trc2.costs.tables import number_table


def results_table(name: str, report: dict[str, Any]) -> Table:
    title = f"{name}: {report['rows']} × {report['length']} tokens, {report['threads']} threads"
    table = number_table(title, ("measure", "value"))
    for key, value in report["results"].items():
        text = f"{value:,.0f}" if value >= 1000 else f"{value:.3f}"
        table.add_row(key.replace("_", " "), text if value < 1e9 else f"{value / 1e9:.1f}G")
    table.add_row("peak memory of a pass, MB", f"{report['peak_memory_mb']['learning_pass']:.0f}")
    return table


def scaling_table(name: str, report: dict[str, Any]) -> Table:
    axis, first = report["scaling"], report["points"][0]
    title = f"{name}: cost of a learning pass as {axis} grow"
    table = number_table(title, (axis, "seconds", "time ×", "FLOPs ×"), "relative to the first row")
    for point in report["points"]:
        growth = [f"{point[key] / first[key]:.2f}" for key in ("minimum", "flops")]
        table.add_row(f"{point[axis]:,}", f"{point['minimum']:.3f}", *growth)
    return table


def draw_bars(report: dict[str, Any], path: Path) -> None:
    """Left: passes; right: where the learning pass goes. Minimum of all rounds, the median as a tick."""
    from matplotlib.figure import Figure

    passes = {n: t for n, t in report["seconds"].items() if not n.startswith("part: ") and n != "large product"}
    parts = {n.removeprefix("part: "): t for n, t in report["seconds"].items() if n.startswith("part: ")}
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    for place, (title, bars) in enumerate((("seconds per pass", passes), ("parts of a learning pass, alone", parts))):
        axes = figure.add_subplot(1, 2, place + 1)
        names = list(bars)[::-1]
        axes.barh(names, [bars[n]["minimum"] for n in names], color="#4c78a8")
        axes.plot([bars[n]["median"] for n in names], names, "|", color="#222222", markersize=12, label="median")
        axes.set_title(title)
        axes.set_xlabel("seconds")
        axes.spines[["top", "right"]].set_visible(False)
        if names:
            axes.legend(frameon=False)
    figure.savefig(path, dpi=130)


def draw_scaling(report: dict[str, Any], path: Path) -> None:
    """Time against size, beside the FLOPs it should follow."""
    from matplotlib.figure import Figure

    axis, points = report["scaling"], report["points"]
    figure = Figure(figsize=(5.5, 4.2), layout="constrained")
    axes = figure.add_subplot()
    sizes = [point[axis] for point in points]
    for key, label, style in (("minimum", "time", "o-"), ("flops", "FLOPs", "s--")):
        axes.plot(sizes, [point[key] / points[0][key] for point in points], style, label=label)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.set_ylim(0, 1.1 * max(axes.get_ylim()))
    axes.set_xlabel(axis)
    axes.set_ylabel("relative to the smallest")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=130)
