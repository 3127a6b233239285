"""A verification report for people: a table for the terminal and a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from trc2.system.numbers import short
from trc2.verify.all_checks import GROUPS, Report

if TYPE_CHECKING:
    from trc2.system.plot_style import Figure

MARK = {True: Text("pass", style="green"), False: Text("FAIL", style="bold red"), None: Text("n/a", style="dim")}
COLOUR = {True: "#2a9d5c", False: "#d62839", None: "#9aa0a6"}
RELATION = {"<=": "≤", ">": ">", "==": "="}
FLOOR = 1e-19  # where an exact zero is drawn on the logarithmic axis


def as_table(report: Report, width: int = 120) -> Table:
    """Every check with its measured number and its bound. A narrow terminal does without the claims."""
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
        measured = "–" if check.measured is None else short(check.measured)
        bound = "–" if check.measured is None else f"{RELATION[check.relation]} {short(check.bound)}"
        claim = [check.claim] if has_claims else []
        table.add_row(group, check.name, *claim, measured, bound, MARK[check.passed])
    return table


def notes(report: Report) -> list[str]:
    """Remarks that explain the numbers, each once."""
    return list(dict.fromkeys(f"{check.group} {check.name}: {check.note}" for check in report.checks if check.note))


def draw(report: Mapping[str, Any]) -> Figure:
    """One row per check of verify.json: a dot at the measured value, a bar over the values its bound allows."""
    from trc2.system.plot_style import Figure, ink

    checks = report["checks"]
    applied = [check for check in checks if check["passed"] is not None]
    title = f"{report['model']}: {sum(check['passed'] for check in applied)} of {len(applied)} checks hold"
    figure = Figure("causality", title, height=0.2 * len(checks) + 1.0)
    axes = figure.panels[0]
    for row, check in enumerate(checks):
        colour = COLOUR[check["passed"]]
        measured = math.nan if check["measured"] is None else float(check["measured"])  # "nan" and "inf" are words
        if not math.isfinite(measured):
            text = "does not apply" if check["measured"] is None else "not finite"
            axes.text(FLOOR, row, text, va="center", fontsize=7, color=colour)
            continue
        bound = max(check["bound"], FLOOR)
        allowed = (bound, 1e4) if check["relation"] == ">" else (FLOOR / 4, bound)
        axes.plot(allowed, [row, row], color=COLOUR[True], alpha=0.18, linewidth=7, solid_capstyle="butt", zorder=1)
        axes.plot(max(measured, FLOOR), row, "o", color=colour, markersize=5, zorder=3)
    axes.set_xscale("log")
    axes.set(xlim=(FLOOR / 4, 1e4), ylim=(len(checks) - 0.5, -0.5))
    axes.set_yticks(range(len(checks)), [f"{check['group']}  {check['name']}" for check in checks])
    powers = range(-15, 4, 3)
    axes.set_xticks([FLOOR, *(10.0**e for e in powers)], ["0", *(f"$10^{{{e}}}$" for e in powers)])
    axes.minorticks_off()
    axes.grid(axis="x", color=ink("pale"), linewidth=0.4)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("measured (dot) and what its bound allows (band)")
    groups = "; ".join(f"{name}: {GROUPS[name]}" for name in dict.fromkeys(check["group"] for check in checks))
    figure.caption = (
        f"Dots: measured. Bands: what the bound allows. {groups}. {report['num_parameters']:,} parameters, float64, "
        f"seed {report['seed']}."
    )
    return figure


def summary(report: Report) -> str:
    """One line to end on."""
    applied = [check for check in report.checks if check.passed is not None]
    if report.passed:
        return f"All {len(applied)} checks hold ({report.seconds:.0f} s)."
    groups = sorted({check.group for check in report.failed})
    names = ", ".join(f"{check.group} {check.name}" for check in report.failed)
    about = "; ".join(f"{group} is {GROUPS[group]}" for group in groups)
    return f"{len(report.failed)} of {len(applied)} checks fail: {names} ({about})."
