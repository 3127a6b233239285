"""The checks of causality and state, drawn from verify.json, which `trc2 verify` writes."""

from __future__ import annotations

import json
import math

from studies.paper.figures.drawing import Subject
from trc2.report.tables import NotWritten
from trc2.system.plot_style import Figure, ink, label
from trc2.verify.all_checks import GROUPS

FLOOR = 1e-18  # where an exact zero is drawn
GREEN, RED = "#009E73", "#D55E00"


def causality(subject: Subject) -> Figure:
    """One row per check: the measured number beside what its bound allows."""
    if subject.verify is None:
        raise NotWritten("needs verify.json: run `trc2 verify --out results/verify`")
    report = json.loads(subject.verify.read_text(encoding="utf-8"))
    checks = [check for check in report["checks"] if check["passed"] is not None]
    passed = sum(check["passed"] for check in checks)
    title = f"{passed} of {len(checks)} checks of causality and state hold on {report['model']}"
    figure = Figure("causality", title, 1, height=0.17 * len(checks) + 0.8)
    (axes,) = figure.panels
    names = []
    for row, check in enumerate(checks):
        bound, measured = (max(FLOOR, _number(check[name])) for name in ("bound", "measured"))
        low, high = (FLOOR, bound) if check["relation"] == "<=" else (bound, 1e18)
        if check["relation"] != "==":
            axes.plot(
                [low, min(high, 1e9)], [-row, -row], color=ink("pale"), linewidth=4, solid_capstyle="butt", alpha=0.5
            )
        axes.plot(min(measured, 1e9), -row, "o", color=GREEN if check["passed"] else RED, markersize=4)
        names.append(label(f"{check['group']}  {check['name']}", 46))
    axes.set_xscale("log")
    axes.set_yticks([-float(row) for row in range(len(checks))], names, fontsize=7.5)
    axes.set_ylim(-len(checks) + 0.4, 0.6)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("measured (an exact zero is drawn at the left edge)")
    groups = "; ".join(f"{name}: {words}" for name, words in GROUPS.items() if any(c["group"] == name for c in checks))
    figure.caption = (
        f"Dots: measured. Bars: what the bound allows. {groups}. {report['num_parameters']:,} parameters, float64, "
        f"seed {report['seed']}."
    )
    return figure


def _number(value: object) -> float:
    number = float(str(value))
    return abs(number) if math.isfinite(number) else 1e9
