"""Everything that the study writes into one folder: the claims, the tables, the figures and a page that shows them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from studies.paper.arithmetic import remarks
from studies.paper.claims import ROWS
from studies.paper.figures import FIGURES
from studies.paper.figures.drawing import COUNTS, Subject
from studies.paper.ledger import Ledger, Scope, build_ledger
from studies.paper.render import as_json, as_markdown, count_sentence
from studies.paper.roles import Roles
from studies.paper.tables import TABLES
from trc2.errors import UserError
from trc2.report.report import Report
from trc2.report.runs import read_runs
from trc2.system.files import make_folder, reading
from trc2.system.plot_style import DPI


def read_counts(folders: Sequence[Path]) -> dict[str, dict[str, float]]:
    """Perplexities of counts of each task's own text, from counts.json beside the runs. Empty if there is none."""
    path = next((found for folder in folders if (found := folder / "counts.json").is_file()), None)
    if path is None:
        return {}
    with reading(path):
        content = json.loads(path.read_text(encoding="utf-8"))
        return {task: {name: float(known["own"][name]) for name in COUNTS} for task, known in content["tasks"].items()}


def find_verify(folders: Sequence[Path]) -> Path | None:
    """verify.json in one of the folders, or in a folder `verify` beside them."""
    places = [place for folder in folders for place in (folder, folder.parent / "verify")]
    return next((found for place in places if (found := place / "verify.json").is_file()), None)


def ledger_of(folders: Sequence[Path]) -> Ledger:
    roles = Roles(read_runs(folders))
    return build_ledger(ROWS, roles, remarks(roles))


def write_study(folders: Sequence[Path], out: Path, dpi: int = DPI) -> Report:
    """claims.md, claims.json, tables/, figures/ and README.md."""
    report = Report(out)
    ledger = ledger_of(folders)
    subject = Subject(ledger.roles, read_counts(folders), find_verify(folders))
    make_folder(out)
    report.write_text("claims.md", as_markdown(ledger, subject.counts))
    report.write_text("claims.json", as_json(ledger))
    lines = ["# The paper's tables and figures, from these runs", ""]
    lines += ["The [table of claims](claims.md) tests the paper's claims.", ""]
    lines += [f"- {count_sentence(ledger, scope)}" for scope in Scope] + [""]
    lines += report.write_tables(TABLES, subject) + report.write_figures(FIGURES, subject, dpi)
    report.write_text("README.md", "\n".join([*lines, *report.left_out_lines()]))
    return report


def check_folders(names: Sequence[str]) -> list[Path]:
    folders = [Path(name) for name in names]
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"{folder} is not a folder: give a folder of runs such as results/lab.")
    return folders
