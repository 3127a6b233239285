"""Every table and figure of the paper from run folders alone, in one folder with a page that shows them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from trc2.files import write_atomically
from trc2.report.contrast_tables import closed_table, effects_table, factorial_table, paired_area_table, paired_table
from trc2.report.evidence import Evidence
from trc2.report.grid import Table
from trc2.report.markdown import code, markdown
from trc2.report.page import write_page
from trc2.report.paper_tables import ablation_table, area_table, boundary_table, budget_table, component_table
from trc2.report.plots.canvas import DPI, Picture, style
from trc2.report.plots.gallery import FIGURES
from trc2.report.scope import LeftOut, Scope, unlearnt

# What is written, in this order. A table is a function of the scope; so is a figure (see plots/gallery.py). One more of
# either is one more line.
TABLES: tuple[tuple[str, Callable[[Scope], Table]], ...] = (
    ("Task-boundary performance", boundary_table),
    ("Forgetting area", area_table),
    ("Ablation", ablation_table),
    ("Thalamus × memory × replay", factorial_table),
    ("Effects of thalamus, memory and replay", effects_table),
    ("Paired comparisons", paired_table),
    ("Paired comparisons, forgetting area", paired_area_table),
    ("Distance from plain to joint", closed_table),
    ("Budget", budget_table),
    ("Component shares", component_table),
)


@dataclass
class Dossier:
    """What was written, what was left out and why, and how long it took."""

    folder: Path
    written: list[Path] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def index(self) -> Path:
        return self.folder / "report.md"


def write_dossier(evidence: Evidence, folder: Path, *, reference: str | None = None, dpi: int = DPI) -> Dossier:
    """tables/, figures/, report.md and the page."""
    begun = time.perf_counter()
    scope, dossier = Scope(evidence, reference), Dossier(folder)
    tables, figures = folder / "tables", folder / "figures"
    for path in (tables, figures):
        path.mkdir(parents=True, exist_ok=True)
    lines = _opening(scope)
    lines += ["## Tables", ""]
    for title, make in TABLES:
        try:
            table = make(scope)
        except LeftOut as reason:
            dossier.left_out[title] = str(reason)
            continue
        written = table.write(tables)
        dossier.written += written
        links = " · ".join(f"[{path.suffix[1:]}](tables/{path.name})" for path in written)
        lines += [f"### {markdown(table.title)}", "", table.to_markdown(), "", f"{markdown(table.caption)} {links}", ""]
    lines += ["## Figures", ""]
    for title, draw in FIGURES:
        try:
            with style():
                picture = draw(scope)
        except LeftOut as reason:
            dossier.left_out[title] = str(reason)
            continue
        dossier.pictures.append(picture)
        written = picture.write(figures, dpi)
        dossier.written += written
        lines += [f"### {markdown(title)}", "", f"![{markdown(title)}](figures/{written[0].name})", ""]
        lines += [f"{markdown(picture.caption)} [svg](figures/{written[1].name})", ""]
    page = write_page(evidence, folder / "report.html")
    dossier.written.append(page)
    lines[2:2] = [f"[One page to look around in]({page.name})", ""]
    if dossier.left_out:
        lines += ["## Left out", ""]
        lines += [f"- {markdown(title)}: {markdown(reason)}." for title, reason in dossier.left_out.items()] + [""]
    write_atomically(dossier.index, "\n".join(lines).encode())
    dossier.written.append(dossier.index)
    dossier.seconds = time.perf_counter() - begun
    return dossier


def _opening(scope: Scope) -> list[str]:
    """What the report is of: arms, repetitions, and runs that count nowhere or only with a mark."""
    evidence = scope.evidence
    lines = [
        "# Report",
        "",
        f"{len(evidence.runs)} runs of {len(evidence.arms)} arms. {markdown(scope.data_words())}.",
        "",
    ]
    orders = [" → ".join(scope.task_titles[task] for task in order) for order in evidence.orders]
    if len(orders) > 1:
        shown = "; ".join(orders[:6]) + (f"; and {len(orders) - 6} more" if len(orders) > 6 else "")
        lines += [
            f"Orders: {markdown(shown)}. Tables and figures are of the first where they do not say otherwise.",
            "",
        ]
    if evidence.unfinished:
        names = ", ".join(code(str(run.name)) for run in evidence.unfinished)
        lines += [f"Unfinished, counted nowhere: {names}.", ""]
    failed = {run.name: unlearnt(run) for run in evidence.runs if unlearnt(run)}
    if failed:
        told = ", ".join(f"{code(name)} ({', '.join(map(markdown, tasks))})" for name, tasks in failed.items())
        lines += [f"Did not learn a task, marked †: {told}.", ""]
    return lines
