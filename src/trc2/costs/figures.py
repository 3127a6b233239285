"""Bench results as a table and as pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.table import Table

from trc2.system.console import table_of
from trc2.system.files import write_atomically


def results_table(name: str, report: dict[str, Any]) -> Table:
    title = f"{name}: {report['rows']} × {report['length']} tokens, {report['threads']} threads"
    table = table_of(("measure", "value"), align="wr", title=title)
    for key, value in report["results"].items():
        text = f"{value:,.0f}" if value >= 1000 else f"{value:.3f}"
        table.add_row(key.replace("_", " "), text if value < 1e9 else f"{value / 1e9:.1f}G")
    table.add_row("peak memory of a pass, MB", f"{report['peak_memory_mb']['learning_pass']:.0f}")
    return table


def scaling_table(name: str, report: dict[str, Any]) -> Table:
    axis, first = report["scaling"], report["points"][0]
    title = f"{name}: cost of a learning pass as {axis} grow"
    heads, caption = (axis, "seconds", "time ×", "FLOPs ×"), "relative to the first row"
    table = table_of(heads, align="wrrr", title=title, caption=caption)
    for point in report["points"]:
        growth = [f"{point[key] / first[key]:.2f}" for key in ("minimum", "flops")]
        table.add_row(f"{point[axis]:,}", f"{point['minimum']:.3f}", *growth)
    return table


def draw_bars(report: dict[str, Any], path: Path) -> None:
    """Left: passes. Right: where the learning pass goes. Minimum of all rounds, the median as a tick."""
    from trc2.system.plot_style import Figure, ink, palette, style

    passes = {n: t for n, t in report["seconds"].items() if not n.startswith("part: ") and n != "large product"}
    parts = {n.removeprefix("part: "): t for n, t in report["seconds"].items() if n.startswith("part: ")}
    with style():
        figure = Figure("bench", "Bars: fastest round. Ticks: median round.", 2, height=4.2)
        panels = {"each pass": passes, "parts of a learning pass, alone": parts}
        for axes, (title, bars) in zip(figure.panels, panels.items(), strict=True):
            names = list(bars)[::-1]
            axes.barh(names, [bars[n]["minimum"] for n in names], color=palette()[0])
            axes.plot([bars[n]["median"] for n in names], names, "|", color=ink(), markersize=12)
            axes.set(title=title, xlabel="seconds")
        write_atomically(path, figure.drawing.png())


def draw_scaling(report: dict[str, Any], path: Path) -> None:
    """Time against size, beside the FLOPs it should follow."""
    from trc2.system.plot_style import Figure, label_ends, palette, style

    axis, points = report["scaling"], report["points"]
    sizes = [point[axis] for point in points]
    with style():
        figure = Figure("bench", f"Cost of a learning pass as {axis} grow", height=4.2)
        axes = figure.panels[0]
        ends = []
        for key, text, line, colour in (
            ("minimum", "time", "o-", palette()[0]),
            ("flops", "FLOPs", "s--", palette()[1]),
        ):
            values = [point[key] / points[0][key] for point in points]
            axes.plot(sizes, values, line, color=colour)
            ends.append((values[-1], text, colour))
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axes.set(ylim=(0, 1.1 * max(axes.get_ylim())), xlabel=axis, ylabel="relative to the smallest")
        figure.lay_out()
        label_ends(axes, ends)
        write_atomically(path, figure.drawing.png())
