"""A verification report for people: a table for the terminal and a picture."""

from __future__ import annotations

import math
from pathlib import Path

from rich.table import Table
from rich.text import Text

from trc2.verify.all_checks import GROUPS, Report
from trc2.verify.check import Check

MARK = {True: Text("pass", style="green"), False: Text("FAIL", style="bold red"), None: Text("n/a", style="dim")}
COLOUR = {True: "#2a9d5c", False: "#d62839", None: "#9aa0a6"}
RELATION = {"<=": "≤", ">": ">", "==": "="}
FLOOR = 1e-19  # where an exact zero is drawn on the logarithmic axis


def as_table(report: Report, width: int = 120) -> Table:
    """Every check with its measured number and its bound; a narrow terminal does without the claims."""
    has_claims = width >= 110
    table = Table(title=f"{report.model}: {report.num_parameters:,} parameters, float64, seed {report.seed}")
    table.add_column("")
    table.add_column("check", no_wrap=True)
    if has_claims:
        table.add_column("what is measured")
    for heading in ("measured", "must be", ""):
        table.add_column(heading, justify="right", no_wrap=True)
    group = ""
    for check in report.checks:
        if check.group != group:
            table.add_section()
            group = check.group
        measured = "–" if check.measured is None else number(check.measured)
        bound = "–" if check.measured is None else f"{RELATION[check.relation]} {number(check.bound)}"
        claim = [check.claim] if has_claims else []
        table.add_row(group, check.name, *claim, measured, bound, MARK[check.passed])
    return table


def notes(report: Report) -> list[str]:
    """Remarks that explain the numbers, each once."""
    return list(dict.fromkeys(f"{check.group} {check.name}: {check.note}" for check in report.checks if check.note))


def number(value: float) -> str:
    """Short, and exact where it can be."""
    if not math.isfinite(value):
        return str(value)
    return str(int(value)) if value == int(value) and abs(value) < 1e6 else f"{value:.2g}"


def draw(report: Report, path: Path) -> None:
    """One row per check: a dot at the measured value, a bar over the values its bound allows."""
    from matplotlib.figure import Figure

    checks = list(report.checks)
    figure = Figure(figsize=(10, 0.27 * len(checks) + 1.6), layout="constrained")
    axes = figure.add_subplot()
    for row, check in enumerate(checks):
        _draw_row(axes, row, check)
    axes.set_xscale("log")
    axes.set_xlim(FLOOR / 4, 1e4)
    axes.set_ylim(len(checks) - 0.5, -0.5)
    axes.set_yticks(range(len(checks)), [f"{check.group}  {check.name}" for check in checks], fontsize=8)
    axes.set_xticks(
        [FLOOR, 1e-15, 1e-12, 1e-9, 1e-6, 1e-3, 1, 1e3], ["0", *[f"$10^{{{e}}}$" for e in range(-15, 4, 3)]]
    )
    axes.minorticks_off()
    axes.grid(axis="x", color="#e6e6e6", zorder=0)
    axes.set_xlabel("measured (dot) and what its bound allows (band)")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    applied = [check for check in checks if check.passed is not None]
    held = sum(check.passed is True for check in applied)
    axes.set_title(f"{report.model}: {held} of {len(applied)} checks hold", loc="left", fontsize=11)
    figure.savefig(path, dpi=150)


def _draw_row(axes: object, row: int, check: Check) -> None:
    from matplotlib.axes import Axes

    assert isinstance(axes, Axes)
    if check.measured is None or not math.isfinite(check.measured):
        axes.text(
            FLOOR,
            row,
            "does not apply" if check.measured is None else "not finite",
            va="center",
            fontsize=7,
            color=COLOUR[check.passed],
        )
        return
    bound = max(check.bound, FLOOR)
    low, high = (bound, 1e4) if check.relation == ">" else (FLOOR / 4, bound)
    axes.plot([low, high], [row, row], color=COLOUR[True], alpha=0.18, linewidth=7, solid_capstyle="butt", zorder=1)
    axes.plot(max(check.measured, FLOOR), row, "o", color=COLOUR[check.passed], markersize=5, zorder=3)


def summary(report: Report) -> str:
    """One line to end on."""
    applied = [check for check in report.checks if check.passed is not None]
    if report.passed:
        return f"All {len(applied)} checks hold ({report.seconds:.0f} s)."
    groups = sorted({check.group for check in report.failed})
    names = ", ".join(f"{check.group} {check.name}" for check in report.failed)
    about = "; ".join(f"{group} is {GROUPS[group]}" for group in groups)
    return f"{len(report.failed)} of {len(applied)} checks fail: {names} ({about})."
